"""A real SGLang server as the flow sees it."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..cpu.platform import is_selected
from ..demo.server import ServerFailed, ServerProcess, cpu_environment
from .arms import Arm
from .flow import ArmFailed
from .timeline import RequestFailed, Timeline, from_events

REQUEST_TIMEOUT = 600  # seconds without an event


class RunningServer:
    """Streaming requests to a server that is ready."""

    def __init__(self, process: ServerProcess) -> None:
        self._process = process

    def info(self) -> Mapping[str, Any]:
        with urllib.request.urlopen(f"{self._process.base_url}/server_info", timeout=60) as response:
            answer: dict[str, Any] = json.loads(response.read())
            return answer

    def flush(self) -> None:
        """Empty the prefix cache, so that no run's prefill is free.

        Raises:
            RequestFailed: the server did not become idle within 30 s.
        """
        request = urllib.request.Request(f"{self._process.base_url}/flush_cache?timeout=30", b"")
        try:
            urllib.request.urlopen(request, timeout=60).close()
        except OSError as error:
            raise RequestFailed(f"/flush_cache: {_reason(error)}") from error

    def generate(self, input_ids: Sequence[int], temperature: float, max_new_tokens: int) -> Timeline:
        """One streaming ``/generate`` request; returns when it is done. May be called from many threads.

        Raises:
            RequestFailed: the server refused or aborted it, or the connection broke.
        """
        body = {
            "input_ids": list(input_ids),
            "sampling_params": {"temperature": temperature, "max_new_tokens": max_new_tokens},
            "stream": True,
        }
        request = urllib.request.Request(
            f"{self._process.base_url}/generate",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        events: list[tuple[float, bytes]] = []
        sent = time.perf_counter()
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT) as response:
                for line in response:
                    now = time.perf_counter()
                    data = line.strip().removeprefix(b"data:").strip()
                    if data and data != b"[DONE]":
                        events.append((now, data))
        except (OSError, http.client.HTTPException) as error:
            raise RequestFailed(f"/generate: {_reason(error)}") from error
        return from_events(sent, events)


class Servers:
    """Starts the server of an arm; its log stays in `logs` as ``<arm>.log``."""

    def __init__(
        self, model: str, draft: str | None, server_args: Sequence[str], logs: Path, start_timeout: float
    ) -> None:
        self.model, self.draft, self.server_args = model, draft, server_args
        self.logs, self.start_timeout = logs, start_timeout

    @contextmanager
    def start(self, arm: Arm) -> Iterator[RunningServer]:
        """A server that is ready, ended with the block whatever happens.

        Raises:
            ArmFailed: it did not start, or a request failed;
                the message holds its log's last error and path.
        """
        log_path = self.logs / f"{arm.name.replace(' ', '-').lower()}.log"
        arguments = arm.server_arguments(self.model, self.draft, self.server_args)
        with ServerProcess(arguments, log_path=log_path, environment=self._environment()) as process:
            try:
                process.wait_until_ready(self.start_timeout)
            except ServerFailed as error:
                reason = str(error).partition(";")[0]
                raise ArmFailed(f"{reason}: {last_error(error.log)} (log: {log_path})") from error
            try:
                yield RunningServer(process)
            except RequestFailed as error:
                status = process.process.poll()
                end = (
                    ""
                    if status is None
                    else f"; the server ended with status {status}: {last_error(process.log())}"
                )
                raise ArmFailed(f"{error}{end} (log: {log_path})") from error

    def _environment(self) -> dict[str, str]:
        if not is_selected():
            return dict(os.environ)
        environment = cpu_environment()
        if "HF_HUB_OFFLINE" not in os.environ and not all(
            Path(path).exists() for path in (self.model, self.draft) if path is not None
        ):
            del environment["HF_HUB_OFFLINE"]
        return environment


def last_error(log: str) -> str:
    """The log's last line that names an error, or else its last line; at most 300 characters."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    named = [line for line in lines if "Error: " in line or "error: " in line]
    return (named or lines or ["its log is empty"])[-1][:300]


def _reason(error: BaseException) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"status {error.code}: {error.read().decode(errors='replace')[:300]}"
    return f"{type(error).__name__}: {error}"

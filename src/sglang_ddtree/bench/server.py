"""A real SGLang server as the flow sees it."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..client import Client, RequestFailed
from ..cpu.platform import first_advice, is_selected
from ..demo.server import ServerFailed, ServerProcess, cpu_environment
from .arms import Arm
from .flow import ArmFailed
from .timeline import Timeline, from_events

# "ValueError: no such model", "launch_server.py: error: ...", and a traceback's "AssertionError" without a text.
_NAMES_ERROR = re.compile(r"(Error|Exception|error): |^[\w.]*(Error|Exception)$")
# `sglang.srt.entrypoints.engine`, behind the scheduler's own traceback.
_FOLLOWS = re.compile(
    r"^EOFError$|RuntimeError: (Rank \d+ scheduler died during initialization|Initialization failed)"
)
_LACKS_MODULE = re.compile(r"(ModuleNotFound|Import)Error: ")
_STAMP = re.compile(r"\[\d{4}-\d\d-\d\d[^\]]*\] ")


class RunningServer(Client):
    """Streaming requests to a server that is ready; all but these need the `process`."""

    def __init__(self, base_url: str, process: ServerProcess | None = None) -> None:
        super().__init__(base_url)
        self._process = process

    @property
    def process(self) -> ServerProcess:
        assert self._process is not None
        return self._process

    def log(self) -> str:
        """All that it wrote so far."""
        return self.process.log()

    def explain(self, error: Exception) -> str:
        """Why a request failed, with the server's end if it ended."""
        status = self.process.process.poll()
        end = "" if status is None else f"; the server ended with status {status}: {last_error(self.log())}"
        return f"{error}{end} (log: {self.process.log_path})"

    def pause(self) -> None:
        """Stop all its processes: an idle scheduler polls and takes a core."""
        self.process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        self.process.signal(signal.SIGCONT)

    def flush(self) -> None:
        """Empty the prefix cache, so that no run's prefill is free.

        Raises:
            RequestFailed: the server did not become idle within 30 s.
        """
        with self.open("/flush_cache?timeout=30", b"", timeout=60):
            pass

    def metrics(self) -> str | None:
        """The page ``/metrics``; None where the server gives none."""
        try:
            with self.open("/metrics", timeout=10) as response:
                return response.read().decode(errors="replace")
        except RequestFailed:
            return None

    def generate(self, input_ids: Sequence[int], temperature: float, max_new_tokens: int) -> Timeline:
        """One streaming ``/generate`` request; returns when it is done.

        Raises:
            RequestFailed: the server refused or aborted it, or the connection broke.
        """
        body = {
            "input_ids": list(input_ids),
            "sampling_params": {"temperature": temperature, "max_new_tokens": max_new_tokens},
            "stream": True,
        }
        encoded = json.dumps(body).encode()
        events: list[tuple[float, bytes]] = []
        sent = time.perf_counter()
        with self.open("/generate", encoded) as response:
            for line in response:
                now = time.perf_counter()
                data = line.strip().removeprefix(b"data:").strip()
                if data and data != b"[DONE]":
                    events.append((now, data))
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
        with self.launch(arm) as wait:
            server = wait()
            try:
                yield server
            except RequestFailed as error:
                raise ArmFailed(server.explain(error)) from error

    @contextmanager
    def launch(self, arm: Arm) -> Iterator[Callable[[], RunningServer]]:
        """A server that is starting, ended with the block; what is given waits until it is ready.

        Raises:
            ArmFailed: from that; it did not start, the message holds its log's last error and path.
        """
        log_path = self.logs / f"{arm.name.replace(' ', '-').lower()}.log"
        arguments = arm.server_arguments(self.model, self.draft, self.server_args)
        with ServerProcess(arguments, log_path=log_path, environment=self._environment()) as process:

            def wait() -> RunningServer:
                try:
                    process.wait_until_ready(self.start_timeout)
                except ServerFailed as error:
                    cause = last_error(error.log)
                    if _LACKS_MODULE.search(cause):
                        cause = first_advice(cause)
                    reason = f"{str(error).partition(';')[0]}: {cause}"
                    raise ArmFailed(f"{reason} (log: {log_path})", _STAMP.sub("", reason)) from error
                return RunningServer(process.base_url, process)

            yield wait

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
    """The log's last line that names an error, or else its last line; at most 300 characters.

    What SGLang's main process says of a scheduler that ended counts only where the scheduler said nothing.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    named = [line for line in lines if _NAMES_ERROR.search(line)]
    causes = [line for line in named if not _FOLLOWS.search(line)]
    return (causes or named or lines or ["its log is empty"])[-1][:300]

"""A SGLang server as a child process on the CPU platform, which ends when its owner does."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from sglang_ddtree.cpu.platform import PLATFORM_NAME

HOST = "127.0.0.1"
_PR_SET_PDEATHSIG = 1


class ServerFailed(RuntimeError):
    """The server ended or did not get ready; `log` is all it wrote."""

    def __init__(self, reason: str, log: str) -> None:
        super().__init__(f"{reason}; the end of its log:\n{tail(log)}")
        self.log = log


def tail(log: str, lines: int = 30) -> str:
    """The last lines of a log."""
    return "\n".join(log.rstrip().splitlines()[-lines:])


def free_port() -> int:
    """A TCP port that nobody listens on at the moment.

    A server takes it only many seconds later. So it is drawn at random, from below the range from which the kernel
    serves whoever asks for any port: another start is unlikely to be given the same one meanwhile.
    """
    draw = random.SystemRandom()
    while True:
        port = draw.randrange(10_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port


def flags(options: Mapping[str, Any]) -> list[str]:
    """Command-line flags from keywords: ``{"page_size": 4, "disable_radix_cache": True}``.

    None and False leave a flag out.
    """
    words: list[str] = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(str(value))
    return words


def cpu_environment(threads: int | None = None) -> dict[str, str]:
    """This process's environment, set for the CPU platform and for files that are all local."""
    environment = {**os.environ, "SGLANG_PLATFORM": PLATFORM_NAME, "HF_HUB_OFFLINE": "1"}
    # Threads that spin while they wait make each forward 20 times slower on a machine with other work to do.
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    return environment


class ServerProcess:
    """``python -m sglang.launch_server`` in a process group of its own. Use it as a context manager."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        log_path: Path,
        environment: Mapping[str, str],
        port: int | None = None,
    ) -> None:
        self.port = port if port is not None else free_port()
        self.base_url = f"http://{HOST}:{self.port}"
        self.log_path = log_path
        command = [sys.executable, "-m", "sglang.launch_server", *arguments]
        command += ["--host", HOST, "--port", str(self.port)]
        with log_path.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def log(self) -> str:
        """All that the server wrote so far."""
        return self.log_path.read_text(errors="replace")

    def wait_until_ready(self, timeout: float, on_wait: Callable[[float], None] | None = None) -> None:
        """Block until ``/health`` answers 200; `on_wait` gets the seconds waited, about twice a second.

        Raises:
            ServerFailed: the server ended, or was not ready after `timeout` seconds.
        """
        start = time.monotonic()
        while not self._is_healthy():
            waited = time.monotonic() - start
            if self.process.poll() is not None:
                raise ServerFailed(f"the server ended with status {self.process.returncode}", self.log())
            if waited > timeout:
                raise ServerFailed(f"the server was not ready after {timeout:.0f} s", self.log())
            if on_wait is not None:
                on_wait(waited)
            time.sleep(0.5)

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.base_url}/health", timeout=10) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def post(self, path: str, payload: Any, timeout: float = 600) -> Any:
        """POST `payload` as JSON and return the decoded answer.

        Raises:
            urllib.error.HTTPError: the server answered with an error status.
        """
        request = urllib.request.Request(
            self.base_url + path, json.dumps(payload).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return json.loads(response.read())

    def stop(self) -> None:
        """End the server and every process it started. Safe to call twice."""
        # SIGKILL: a graceful SGLang shutdown sleeps for seconds, and there is nothing here to save.
        self.signal(signal.SIGKILL)
        self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send it to every process that the server started; nothing happens where there is none any more."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


def _die_with_parent() -> None:
    # Runs in the child before exec: the kernel then ends the server even when its owner is killed outright.
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


_LIBC = ctypes.CDLL(None)

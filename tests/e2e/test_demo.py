"""The demo as a user runs it, less the set-up of the environment."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.demo

RUNNER = (sys.executable, "-m", "sglang_ddtree.demo.runner")


@contextmanager
def demo(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The demo in the background, its output lines in one pipe; ended at the latest with the block."""
    process = subprocess.Popen(
        [*RUNNER, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield process
    finally:
        children = _descendants(process)
        for one in [*children, process]:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                one.kill()
        process.wait()


def _descendants(process: subprocess.Popen[str]) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(process.pid).children(recursive=True)
    return []


def _read_until(process: subprocess.Popen[str], words: str) -> str:
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if words in line:
            return seen
    raise AssertionError(f"the demo ended without {words!r}:\n{seen}")


def _all_gone(processes: list[psutil.Process], within: float = 20) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=within)
    return not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.usefixtures("demo_target")
def test_three_ways_of_decoding_give_the_same_tokens(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    result = subprocess.run(
        [
            *RUNNER,
            "--budget",
            "16",
            "--prompt",
            "Name the seven days of the week.",
            "--json",
            path,
        ],
        text=True,
        capture_output=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "Wednesday" in result.stdout  # streamed
    figures = json.loads(path.read_text())
    assert [one["identical"] for one in figures.values()] == [True, True, True]
    plain, dflash, ddtree = figures["plain"], figures["dflash"], figures["ddtree"]
    assert plain["tokens"] == plain["target_forwards"] == dflash["tokens"] == ddtree["tokens"]
    # Fewer forwards than the chain: the tree was really used.
    assert ddtree["target_forwards"] < dflash["target_forwards"] < plain["target_forwards"]
    for label in ("plain", "DFLASH (chain)", "DDTREE"):
        assert f"\n{label} " in result.stdout


@pytest.mark.usefixtures("demo_target")
def test_a_serving_demo_answers_and_ends_with_ctrl_c() -> None:
    with demo("--serve", "--prompt", "Hi") as process:
        shown = _read_until(process, "curl ")
        command = shown[shown.rindex("curl ") :].strip()
        answer = subprocess.run(command, shell=True, text=True, capture_output=True, check=True).stdout
        assert json.loads(answer)["choices"][0]["message"]["content"]
        started = _descendants(process)
        assert len(started) >= 3  # the server and the processes of its own
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
        assert _all_gone(started)


@pytest.mark.usefixtures("demo_target")
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_no_server_outlives_a_demo_that_is_ended_while_starting(number: signal.Signals, status: int) -> None:
    with demo("--prompt", "Hi") as process:
        _read_until(process, "Starting the DDTREE server")
        deadline = time.monotonic() + 30
        while not (started := _descendants(process)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert started
        process.send_signal(number)
        assert process.wait(timeout=30) == status
        assert _all_gone(started)

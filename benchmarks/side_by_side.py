"""Engines that start at the same time and measure in turns, so that none is timed while another works.

An arm is a process of the calling script, started with `--run NAME`: it builds its engine, calls `wait_for_turn()`
before everything that is timed, and prints its result with `report()`. Turns go round: an arm that measures a part in
each of its turns does so under the same weather as the others. An arm that waits is stopped with all its processes,
since an idle engine's scheduler polls and takes a core from the one that is timed. Several scripts do so together when
SIDE_BY_SIDE=FOLDER:N is set in their environment, N being their number: none measures before all engines of all of
them stand.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def wait_for_turn(so_far: dict[str, Any] | None = None) -> None:
    """In an arm: the engine stands and is idle. `so_far` is its result if there will be no more."""
    print("READY" if so_far is None else f"READY {json.dumps(so_far)}", flush=True)
    sys.stdin.readline()


def report(result: dict[str, Any]) -> None:
    print("RESULT " + json.dumps(result), flush=True)


def run_arms(
    script: str,
    names: Sequence[str],
    out: Path,
    *,
    shown: Callable[[dict[str, Any]], dict[str, Any]],
    stagger: float = 2.0,
) -> dict[str, Any]:
    """Run every arm; `out` is rewritten after each turn, `shown` is what to print of a result.

    An arm that fails has `{"error": ...}` for a result; its log lies beside `out`. Ctrl-C or SIGTERM ends the turns,
    and what the arms have told so far are the results.
    """
    # `timeout` ends a script so: the arms, some of them stopped, must not outlive it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    processes = {}
    for name in names:
        log = out.with_name(f"log-{'-'.join(name.replace(',', '').split())}.txt").open("w")
        command = [sys.executable, script, *sys.argv[1:], "--run", name]
        processes[name] = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        time.sleep(stagger)
    results: dict[str, Any] = {}
    try:
        waiting = {}
        for name, process in processes.items():
            is_ready = _wait_for(process, "READY") is not None
            print(name, "ready" if is_ready else "failed to start", flush=True)
            if is_ready:
                _signal(process, signal.SIGSTOP)
                waiting[name] = process
            else:
                results[name] = {"error": "did not start; see its log"}
        with _turn():
            _measure(waiting, out, shown, results)
    except KeyboardInterrupt:
        print("stopped early", flush=True)
    finally:
        for process in processes.values():
            _signal(process, signal.SIGKILL)
    return results


def _signal(process: subprocess.Popen[str], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


@contextmanager
def _turn() -> Iterator[None]:
    folder, _, scripts = os.environ.get("SIDE_BY_SIDE", "").rpartition(":")
    if not folder:
        yield
        return
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    (path / f"{os.getpid()}.ready").touch()
    while len(list(path.glob("*.ready"))) < int(scripts):
        time.sleep(0.2)
    with (path / "turn").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _measure(
    waiting: dict[str, subprocess.Popen[str]],
    out: Path,
    shown: Callable[[dict[str, Any]], dict[str, Any]],
    results: dict[str, Any],
) -> None:
    while waiting:
        for name, process in list(waiting.items()):
            start, text = _let_run(process) or ("", "")
            if text or start != "READY":
                results[name] = json.loads(text) if text else {"error": "stopped; see its log"}
                out.write_text(json.dumps(results, indent=1) + "\n")
            if start == "READY":
                _signal(process, signal.SIGSTOP)
                continue
            del waiting[name]
            print(name, json.dumps(shown(results[name])), flush=True)
            process.wait()


def _let_run(process: subprocess.Popen[str]) -> tuple[str, str] | None:
    """One turn, up to the arm's next READY or RESULT; None where it ended without."""
    assert process.stdin is not None
    _signal(process, signal.SIGCONT)
    try:
        process.stdin.write("go\n")
        process.stdin.flush()
    except BrokenPipeError:
        return None
    return _wait_for(process, "READY", "RESULT")


def _wait_for(process: subprocess.Popen[str], *starts: str) -> tuple[str, str] | None:
    """The process's next line that begins with one of `starts`, in two; None where its output ended."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("ddtree_probe"):
            print(line.strip(), flush=True)
        for start in starts:
            if line.startswith(start):
                return start, line[len(start) :].strip()
    return None

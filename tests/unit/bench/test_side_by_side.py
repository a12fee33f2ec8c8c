"""The runner of the benchmarks' arms: turns go round, one arm works at a time, a lost arm does not stop the others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
SCRIPT = """
import argparse, sys, time
from pathlib import Path
sys.path.insert(0, {benchmarks!r})
import side_by_side

parser = argparse.ArgumentParser()
parser.add_argument("--run")
arguments = parser.parse_args()
folder = Path({folder!r})
if arguments.run:
    if arguments.run == "broken":
        sys.exit(3)
    seen = []
    for turn in range(3):
        side_by_side.wait_for_turn({{"turns": seen}})
        if arguments.run == "lost" and turn == 1:
            sys.exit(4)
        with (folder / "order").open("a") as order:
            order.write(f"{{arguments.run}} begins {{turn}}\\n")
            order.flush()
            time.sleep(0.1)
            order.write(f"{{arguments.run}} ends {{turn}}\\n")
        seen.append(turn)
    side_by_side.report({{"turns": seen}})
else:
    side_by_side.run_arms(
        __file__, ["one", "broken", "lost", "two"], folder / "out.json", shown=lambda row: row, stagger=0.0
    )
"""


def test_turns_go_round_and_a_lost_arm_does_not_stop_the_others(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(benchmarks=str(BENCHMARKS), folder=str(tmp_path)))
    subprocess.run([sys.executable, str(script)], check=True, timeout=60, stdout=subprocess.DEVNULL)

    turns = [("one", 0), ("lost", 0), ("two", 0), ("one", 1), ("two", 1), ("one", 2), ("two", 2)]
    expected = [f"{arm} {what} {turn}" for arm, turn in turns for what in ("begins", "ends")]
    assert (tmp_path / "order").read_text().splitlines() == expected
    assert json.loads((tmp_path / "out.json").read_text()) == {
        "one": {"turns": [0, 1, 2]},
        "broken": {"error": "did not start; see its log"},
        "lost": {"error": "stopped; see its log"},
        "two": {"turns": [0, 1, 2]},
    }


def test_a_script_that_is_ended_takes_its_stopped_arms_along(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    text = SCRIPT.format(benchmarks=str(BENCHMARKS), folder=str(tmp_path)).replace("sleep(0.1)", "sleep(600)")
    script.write_text(text)
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.DEVNULL)
    try:
        _wait(lambda: (tmp_path / "order").exists())
        arms = _arms(script)
        assert len(arms) == 3, "the broken one has ended"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        _wait(lambda: not _arms(script))
    finally:
        for arm in [process.pid, *_arms(script)]:
            with suppress(ProcessLookupError):
                os.kill(arm, signal.SIGKILL)


def _arms(script: Path) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (entry / "cmdline").read_text().split("\0")
            if str(script) in words and "--run" in words:
                found.append(int(entry.name))
    return found


def _wait(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)

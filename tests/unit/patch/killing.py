"""Kills `apply` or `revert` at every step: ``python killing.py ACTION TREE OUT``.

A step is a line of the code that writes about to run, or an access to the file system about to happen. OUT gets a
copy of TREE for every state in which a kill leaves the disk; the count of steps is printed.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from sglang_ddtree.patch import operations, transaction

TRACED = transaction.__file__  # the rest of the package only reads


def run_killed(action: str, root: Path, step: int) -> None:
    """In a child: run `action` and end by SIGKILL before the step number `step`."""
    left = step

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, args: tuple[Any, ...]) -> None:
        is_read = event == "open" and args[1] in ("r", "rb")
        if event.startswith(("open", "os.", "shutil.")) and str(root) in str(args[:2]) and not is_read:
            count()

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_filename != TRACED:
            return None
        if event == "line":
            count()
        return trace

    sys.addaudithook(audit)
    sys.settrace(trace)
    getattr(operations, action)(root)
    sys.settrace(None)


def main(action: str, tree: Path, out: Path) -> None:
    seen: set[tuple[Any, ...]] = set()
    for step in itertools.count(1):
        root = out / f"step-{step}" / "sglang"
        shutil.copytree(tree, root)
        child = os.fork()
        if child == 0:
            run_killed(action, root, step)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        paths = [path for path in sorted(root.rglob("*")) if path.suffix != ".pyc"]
        state = tuple((str(path.relative_to(root)), path.is_file() and path.read_bytes()) for path in paths)
        if state in seen:
            shutil.rmtree(root.parent)
        seen.add(state)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            print(step - 1)
            return
        assert os.WTERMSIG(status) == signal.SIGKILL


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))

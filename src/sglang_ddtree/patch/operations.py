"""Apply and revert: every check before the first write, then one transaction."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .. import __version__
from . import series
from .installation import CHANGED, INTERRUPTED, ORIGINAL, PATCHED, UNSUPPORTED, Installation, inspect
from .transaction import Texts, replace


@dataclass(frozen=True)
class Problem:
    """Why nothing was changed: what of the target, what was found, what was expected, what to do."""

    file: str
    found: str
    expected: str
    fix: str

    def __str__(self) -> str:
        return f"{self.file}: found {self.found}, expected {self.expected}. {self.fix}"


class Refused(RuntimeError):
    """Nothing was changed; `problems` say why."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


def apply(root: Path) -> str:
    """Patch the SGLang in the package folder `root`, or finish an interrupted change; says what was done.

    Raises:
        Refused: the version or a file is not what the patches are for, it is patched already, or it is read-only.
        Failed: an error on the way; its message says what is left.
    """
    return _change(root, PATCHED)


def revert(root: Path) -> str:
    """Give the SGLang in `root` its original files back, or undo an interrupted change; errors as `apply`."""
    return _change(root, ORIGINAL)


def _change(root: Path, goal: str) -> str:
    with _alone(root):
        installation = inspect(root)
        problems = list(_problems(installation, goal))
        if problems:
            raise Refused(*problems)
        resume = installation.state == INTERRUPTED
        note = {"sglang": installation.version, "sglang_ddtree": __version__}
        replace(root, goal, _texts(installation), note, resume=resume)
    done = f"{len(installation.files)} files are {goal}"
    return f"repaired an interrupted change: {done}" if resume else done


def _problems(installation: Installation, goal: str) -> Iterator[Problem]:
    if installation.state == UNSUPPORTED:
        supported = series.versions()
        fix = f"pip install sglang=={supported[-1]}, or an sglang-ddtree with patches for this SGLang."
        if installation.version == "unknown":
            fix = "A checkout that was never built has no such file: pip install --no-deps -e it first."
        yield Problem("_version.py", f"SGLang {installation.version}", " or ".join(supported), fix)
        return
    for file in installation.files:
        if file.state == CHANGED:
            yield Problem(
                file.patch.file,
                file.found,
                f"{file.patch.original} (original) or {file.patch.patched} (patched)",
                f"Put SGLang {installation.version}'s own file there: "
                f"pip install --force-reinstall --no-deps sglang=={installation.version}.",
            )
    if installation.state == goal:
        way = "revert it first" if goal == PATCHED else "there is nothing to revert"
        for file in installation.files:
            fix = f"It is {goal} already: {way}."
            wanted = file.patch.original if goal == PATCHED else file.patch.patched
            yield Problem(file.patch.file, file.found, wanted, fix)
    folders = {installation.root, *((installation.root / f.patch.file).parent for f in installation.files)}
    for folder in sorted(folders):
        if not os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            fix = "Run this as the owner of the installation, or patch a copy of it (--target)."
            yield Problem(str(folder), "a folder that cannot be written", "a writable one", fix)


def _texts(installation: Installation) -> list[Texts]:
    texts = []
    for file in installation.files:
        now = (installation.root / file.patch.file).read_bytes()
        if file.state == ORIGINAL:
            texts.append(Texts(file.patch.file, now, file.patch.apply(now)))
        else:
            texts.append(Texts(file.patch.file, file.patch.undo(now), now))
    return texts


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    # The kernel lets go of the lock when its holder is killed; the folder itself needs no lock file.
    handle = os.open(root, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fix = "Wait until it has finished."
            problem = Problem(str(root), "another sglang-ddtree patch at work", "none", fix)
            raise Refused(problem) from None
        except OSError:  # file systems without locks
            pass
        yield
    finally:
        os.close(handle)

"""What state an SGLang is in, by the hashes of its files; nothing is imported, nothing is written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ..host.source_tree import SourceTree
from . import series
from .series import Patch, sha256

ORIGINAL, PATCHED, INTERRUPTED, CHANGED, UNSUPPORTED = (
    "original",
    "patched",
    "interrupted",
    "changed",
    "unsupported",
)

JOURNAL = ".sglang_ddtree_patch.journal"
"""There from before the first byte of a change is written until after the last one."""


@dataclass(frozen=True)
class FileState:
    """`found` is the file's SHA-256, or why it has none."""

    patch: Patch
    found: str

    @property
    def state(self) -> str:
        known = {self.patch.original: ORIGINAL, self.patch.patched: PATCHED}
        return known.get(self.found, CHANGED)


@dataclass(frozen=True)
class Installation:
    """The SGLang whose package folder (the one that holds `srt/`) is `root`.

    `journal` is the goal of a change that did not finish, "unknown" where that was lost too, else None.
    """

    root: Path
    version: str
    files: tuple[FileState, ...]
    journal: str | None

    @property
    def state(self) -> str:
        """original, patched, interrupted (between the two), changed (by others) or unsupported (version)."""
        states = {file.state for file in self.files}
        if not states:
            return UNSUPPORTED
        if CHANGED in states:
            return CHANGED
        if self.journal is not None or len(states) > 1:
            return INTERRUPTED
        return states.pop()

    @property
    def loads_package(self) -> bool:
        """Whether this SGLang calls the package itself."""
        return any(file.patch.file == series.LOADER and file.state == PATCHED for file in self.files)

    def describe(self) -> str:
        """The state in one sentence, with what to do about it."""
        if self.state == ORIGINAL:
            return "not patched: the files are SGLang's own"
        if self.state == PATCHED:
            return "patched: SGLang loads sglang_ddtree itself"
        if self.state == UNSUPPORTED:
            return f"no patches for SGLang {self.version}, only for {', '.join(series.versions())}"
        if self.state == CHANGED:
            changed = ", ".join(file.patch.file for file in self.files if file.state == CHANGED)
            return f"neither SGLang's own files nor the patched ones: {changed}"
        done = sum(file.state == PATCHED for file in self.files)
        return (
            f"a change was interrupted, {done} of {len(self.files)} files are patched: "
            "`sglang-ddtree patch apply` finishes it, `sglang-ddtree patch revert` takes it back"
        )


def inspect(root: Path) -> Installation:
    """Read the state of the SGLang in `root`; raises `OSError` for a file that cannot be read."""
    version = SourceTree(root).version()
    files = tuple(FileState(patch, _found(root, patch.file)) for patch in series.load(version))
    return Installation(root, version, files, _journal(root))


def _found(root: Path, file: str) -> str:
    path = root / file
    if not path.is_file():
        return "missing"
    if path.resolve() != root.resolve() / file:
        # Replacing it would change, or part from, a file of some other tree.
        return f"a link to {path.resolve()}"
    return sha256(path.read_bytes())


def _journal(root: Path) -> str | None:
    try:
        return str(json.loads((root / JOURNAL).read_bytes())["goal"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):  # killed while it was written
        return "unknown"

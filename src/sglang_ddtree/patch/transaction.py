"""Replaces several files so that a kill at any point leaves a state that can be told and repaired.

The journal comes first and goes last. In between whole files, prepared beforehand, are moved into place one by one.
Any mixture can be brought to either side afterwards: each file is known by its hash.
"""

from __future__ import annotations

import contextlib
import json
import os
import py_compile
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from glob import escape
from importlib.util import cache_from_source
from pathlib import Path

from .installation import JOURNAL, ORIGINAL, PATCHED

STORE = ".sglang_ddtree_patch"
"""Folder in the SGLang package folder: `original/` stays as long as the patch does."""


class Failed(RuntimeError):
    """A change could not be made; the message says what state is left."""


@dataclass(frozen=True)
class Texts:
    """A file, relative to the package folder, with its content on both sides."""

    file: str
    original: bytes
    patched: bytes

    def side(self, name: str) -> bytes:
        return self.original if name == ORIGINAL else self.patched


def replace(root: Path, goal: str, texts: list[Texts], note: dict[str, str], *, resume: bool) -> None:
    """Give every file its text of the side `goal`, `ORIGINAL` or `PATCHED`, and compile it.

    With `resume` the files may be on either side, else all are on the other one. Raises `Failed` after an error;
    the files are then as before, or the journal still stands and a later call repairs.
    """
    other = PATCHED if goal == ORIGINAL else ORIGINAL
    try:
        _write(root / JOURNAL, json.dumps({"goal": goal, **note}).encode())
        _sync(root)
        _prepare(root, texts)
        _move(root, goal, texts)
    except BaseException as error:
        left = "the change is still interrupted" if resume else _put_back(root, other, texts)
        if isinstance(error, Exception):
            raise Failed(f"{type(error).__name__}: {error}; {left}") from error
        raise
    try:
        _finish(root, goal)
    except OSError as error:
        raise Failed(f"{error}; the files are {goal}, run it again to clean up") from error


def _prepare(root: Path, texts: list[Texts]) -> None:
    for text in texts:
        for side in (ORIGINAL, PATCHED):
            _keep(root / STORE / side / text.file, text.side(side), root / text.file)


def _keep(path: Path, content: bytes, current: Path) -> None:
    is_current = current.read_bytes() == content
    if not is_current and path.is_file() and path.read_bytes() == content:
        return  # kept when the file was on this side, its times with it
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    _write(path, content)
    (shutil.copystat if is_current else shutil.copymode)(current, path)
    status = current.stat()
    with contextlib.suppress(PermissionError):
        os.chown(path, status.st_uid, status.st_gid)
    _sync(path.parent)


def _move(root: Path, side: str, texts: Iterable[Texts]) -> None:
    for text in texts:
        path = root / text.file
        _clear_bytecode(path)
        if not _is_on(side, path, text):
            # A move, not a write: a package manager may share the file with its cache by a hard link.
            (root / STORE / side / text.file).replace(path)
            _sync(path.parent)
    for text in texts:
        py_compile.compile(str(root / text.file), doraise=True)
        _is_on(side, root / text.file, text)


def _is_on(side: str, path: Path, text: Texts) -> bool:
    content = path.read_bytes()
    if content not in (text.original, text.patched):
        raise OSError(f"{path} was changed by someone else meanwhile")
    return content == text.side(side)


def _put_back(root: Path, side: str, texts: list[Texts]) -> str:
    try:
        for text in texts:
            path = root / text.file
            if _is_on(side, path, text):
                continue
            (root / STORE / side / text.file).replace(path)
            _sync(path.parent)
            with contextlib.suppress(OSError, py_compile.PyCompileError):
                _clear_bytecode(path)
                py_compile.compile(str(path), doraise=True)
        _finish(root, side)
    except OSError as error:
        return f"putting the files back failed too ({error}): `sglang-ddtree patch status` tells what is left"
    return f"nothing was changed, the files are {side}"


def _finish(root: Path, side: str) -> None:
    leftover = root / STORE if side == ORIGINAL else root / STORE / PATCHED
    if leftover.is_dir():
        shutil.rmtree(leftover)
    (root / JOURNAL).unlink(missing_ok=True)
    _sync(root)


def _clear_bytecode(path: Path) -> None:
    # By name, for every interpreter and optimisation: bytecode may be marked as not to be checked.
    for stale in path.parent.joinpath("__pycache__").glob(f"{escape(path.stem)}.*.pyc"):
        stale.unlink(missing_ok=True)
    Path(cache_from_source(str(path))).unlink(missing_ok=True)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""Source trees of SGLang to check against: the installed one, another release, doctored copies."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from sglang_ddtree.host.source_tree import installed_root


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sglang_ddtree_tests"


def release(version: str) -> Path:
    """The `sglang` folder of a published wheel, downloaded once and kept in the user's cache.

    Fails the test when there is neither a cached copy nor a way to download one.
    """
    folder = cache_folder() / f"sglang-{version}"
    if not (folder / "sglang").is_dir():
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(partial)]
        try:
            subprocess.run([*command, f"sglang=={version}"], check=True, capture_output=True, timeout=300)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            reason = error.stderr.decode() if error.stderr else error
            pytest.fail(f"no sglang {version} in {folder}, and downloading it failed: {reason}")
        wheel = next(partial.glob("*.whl"))
        zipfile.ZipFile(wheel).extractall(partial)
        wheel.unlink()
        partial.rename(folder)
    return folder / "sglang"


def doctored(folder: Path, edits: dict[str, tuple[str, str]]) -> Path:
    """A copy of the installed `sglang`, by links, with `old` replaced by `new` in the files of `edits`.

    The copy can be imported with `folder` on the path.
    """
    root = linked(folder, edits)
    for name, (old, new) in edits.items():
        text = (root / name).read_text()
        assert text.count(old) >= 1, f"{old!r} is not in {name}"
        (root / name).write_text(text.replace(old, new))
    return root


def linked(folder: Path, own: Iterable[str]) -> Path:
    """A copy of the installed `sglang`, by links, in which only the files `own` and their folders are its own.

    The copy can be imported with `folder` on the path.
    """
    original = installed_root()
    assert original is not None
    root = folder / "sglang"
    _link_children(original, root)
    for name in own:
        _make_own(original, root, Path(name))
        shutil.copy2(original / name, root / name)
    return root


def _link_children(original: Path, copy: Path) -> None:
    copy.mkdir(parents=True)
    for child in original.iterdir():
        if child.name != "__pycache__":
            (copy / child.name).symlink_to(child)


def _make_own(original: Path, root: Path, name: Path) -> None:
    for parent in reversed(name.parents[:-1]):
        if (root / parent).is_symlink():
            (root / parent).unlink()
            _link_children(original / parent, root / parent)
    if (root / name).is_symlink():
        (root / name).unlink()

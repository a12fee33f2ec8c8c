"""Apply and revert change everything or nothing, and refuse what they were not made for."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib.util
import marshal
import os
import py_compile
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sglang_ddtree.patch import operations
from sglang_ddtree.patch.installation import CHANGED, INTERRUPTED, ORIGINAL, PATCHED, UNSUPPORTED, inspect
from sglang_ddtree.patch.operations import Refused
from sglang_ddtree.patch.transaction import Failed
from unit.patch import trees

LOADER, SPEC_INFO = trees.FILES


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return trees.minimal(tmp_path)


@contextlib.contextmanager
def refused(root: Path) -> Iterator[list[operations.Problem]]:
    """The block must be refused and leave every file as it is; the problems are in the list afterwards."""
    before = trees.snapshot(root)
    problems: list[operations.Problem] = []
    with pytest.raises(Refused) as caught:
        yield problems
    problems += caught.value.problems
    assert trees.snapshot(root) == before
    assert all(problem.fix for problem in problems)


def test_apply_then_revert_gives_every_byte_back(root: Path) -> None:
    before, times = trees.snapshot(root), {f: (root / f).stat().st_mtime_ns for f in trees.FILES}
    operations.apply(root)
    assert inspect(root).state == PATCHED
    assert trees.hashes(root) == trees.PATCHED
    kept = {
        name.rpartition("original/")[2]: text
        for name, text in trees.snapshot(root).items()
        if "original/" in name
    }
    assert {file: kept[file] for file in trees.FILES} == {file: before[file] for file in trees.FILES}
    operations.revert(root)
    assert inspect(root).state == ORIGINAL
    assert trees.snapshot(root) == before
    assert {f: (root / f).stat().st_mtime_ns for f in trees.FILES} == times


@pytest.mark.parametrize("kept", ["there", "lost", "damaged"])
def test_revert_needs_neither_times_nor_the_kept_originals(root: Path, kept: str) -> None:
    before = trees.snapshot(root)
    operations.apply(root)
    (store,) = root.glob(".*")
    if kept == "lost":
        shutil.rmtree(store)
    if kept == "damaged":
        (store / "original" / LOADER).write_bytes(b"something else")
    for path in root.rglob("*.py"):
        os.utime(path, (1, 1))
    operations.revert(root)
    assert trees.snapshot(root) == before


def test_file_patched_by_other_means_is_completed_and_reverted(root: Path) -> None:
    before = trees.snapshot(root)
    patch = inspect(root).files[0].patch
    (root / LOADER).write_bytes(patch.apply(before[LOADER]))
    assert inspect(root).state == INTERRUPTED
    assert "1 of 2 files are patched" in inspect(root).describe()
    assert "repaired" in operations.apply(root)
    assert trees.hashes(root) == trees.PATCHED
    operations.revert(root)
    assert trees.snapshot(root) == before


def test_mode_is_kept_and_a_hard_link_is_parted(root: Path, tmp_path: Path) -> None:
    # uv links the files of an environment to its cache: a write in place would patch every environment.
    (root / LOADER).chmod(0o640)
    os.link(root / LOADER, tmp_path / "cached.py")
    operations.apply(root)
    assert stat.S_IMODE((root / LOADER).stat().st_mode) == 0o640
    assert (tmp_path / "cached.py").read_bytes() != (root / LOADER).read_bytes()
    operations.revert(root)
    assert stat.S_IMODE((root / LOADER).stat().st_mode) == 0o640
    assert (tmp_path / "cached.py").read_bytes() == (root / LOADER).read_bytes()


def names(bytecode: Path) -> set[str]:
    code = marshal.loads(bytecode.read_bytes()[16:])
    inner = [constant for constant in code.co_consts if hasattr(constant, "co_names")]
    return {name for one in (code, *inner) for name in one.co_names}


def test_no_stale_bytecode_is_left(root: Path) -> None:
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH  # Python would run it whatever the source says
    bytecode = Path(importlib.util.cache_from_source(str(root / LOADER)))
    py_compile.compile(str(root / LOADER), invalidation_mode=mode)
    other = bytecode.with_name("__init__.cpython-399.opt-2.pyc")
    neighbour = bytecode.with_name("hook_registry.cpython-311.pyc")
    for path in (other, neighbour):
        shutil.copy(bytecode, path)
    assert "load_from_patch" not in names(bytecode)
    operations.apply(root)
    assert "load_from_patch" in names(bytecode)
    assert not other.exists()
    assert neighbour.exists()
    py_compile.compile(str(root / LOADER), invalidation_mode=mode)
    operations.revert(root)
    assert "load_from_patch" not in names(bytecode)


def test_second_apply_and_second_revert_are_refused(root: Path) -> None:
    with refused(root) as problems:
        operations.revert(root)
    assert [(p.file, p.found) for p in problems] == list(trees.ORIGINAL.items())
    operations.apply(root)
    with refused(root) as problems:
        operations.apply(root)
    assert [(p.file, p.found, p.expected) for p in problems] == [
        (file, trees.PATCHED[file], trees.ORIGINAL[file]) for file in trees.FILES
    ]
    assert "revert it first" in problems[0].fix


@pytest.mark.parametrize("action", [operations.apply, operations.revert])
@pytest.mark.parametrize("file", trees.FILES)
def test_changed_file_is_refused_and_named(root: Path, file: str, action: Callable[[Path], str]) -> None:
    if action is operations.revert:
        operations.apply(root)
    with (root / file).open("a") as text:
        text.write("# mine\n")
    assert inspect(root).state == CHANGED
    with refused(root) as problems:
        action(root)
    (problem,) = problems
    assert (problem.file, problem.found) == (file, trees.hashes(root)[file])
    assert trees.ORIGINAL[file] in problem.expected
    assert trees.PATCHED[file] in problem.expected
    assert "pip install --force-reinstall --no-deps sglang==0.5.23" in problem.fix


def test_missing_and_linked_files_are_refused(root: Path, tmp_path: Path) -> None:
    (root / LOADER).unlink()
    elsewhere = trees.minimal(tmp_path / "elsewhere")
    shutil.rmtree(root / "srt" / "speculative")
    (root / "srt" / "speculative").symlink_to(elsewhere / "srt" / "speculative")
    with refused(root) as problems:
        operations.apply(root)
    assert [problem.found for problem in problems] == ["missing", f"a link to {elsewhere / SPEC_INFO}"]
    assert trees.hashes(elsewhere) == trees.ORIGINAL


@pytest.mark.parametrize("version", ["0.5.22", "0.5.23.post1", None])
def test_other_version_is_refused_whatever_its_files(root: Path, version: str | None) -> None:
    if version is None:
        (root / "_version.py").unlink()
    else:
        (root / "_version.py").write_text(f"__version__ = {version!r}\n")
    assert inspect(root).state == UNSUPPORTED
    with refused(root) as problems:
        operations.apply(root)
    (problem,) = problems
    assert (problem.found, problem.expected) == (f"SGLang {version or 'unknown'}", "0.5.23")


@pytest.mark.parametrize("folder", [".", "srt/plugins", "srt/speculative"])
def test_read_only_target_is_refused(root: Path, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:  # whom no mode keeps from writing: answer as for the owner

        def access(path: Path, mode: int, **options: object) -> bool:
            return bool(Path(path).stat().st_mode & stat.S_IWUSR)

        monkeypatch.setattr(os, "access", access)
    (root / folder).chmod(0o555)
    try:
        with refused(root) as problems:
            operations.apply(root)
    finally:
        (root / folder).chmod(0o755)
    assert [problem.file for problem in problems] == [str(root / folder)]


def test_second_command_at_the_same_time_is_refused(root: Path) -> None:
    handle = os.open(root, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with refused(root) as problems:
        operations.apply(root)
    assert problems[0].found == "another sglang-ddtree patch at work"
    os.close(handle)
    operations.apply(root)


class FullDisk:
    """`Path.replace` fails from the call number `first` on, `count` times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, first: int, count: int) -> None:
        self.calls = 0
        original = Path.replace

        def replace(path: Path, target: Path) -> Path:
            self.calls += 1
            if first <= self.calls < first + count:
                raise OSError(errno.ENOSPC, "No space left on device")
            return original(path, target)

        monkeypatch.setattr(Path, "replace", replace)


@pytest.mark.parametrize("action", ["apply", "revert"])
@pytest.mark.parametrize("first", [1, 2])
def test_error_on_the_way_leaves_the_state_before(
    root: Path, monkeypatch: pytest.MonkeyPatch, action: str, first: int
) -> None:
    original = trees.snapshot(root)
    if action == "revert":
        operations.apply(root)
    before = trees.hashes(root)
    with monkeypatch.context() as patched:
        FullDisk(patched, first, 1)
        with pytest.raises(Failed, match=r"No space left on device.*nothing was changed"):
            getattr(operations, action)(root)
    assert trees.hashes(root) == before
    assert inspect(root).state == (ORIGINAL if action == "apply" else PATCHED)
    if action == "revert":
        operations.revert(root)
    assert trees.snapshot(root) == original


@pytest.mark.parametrize("action", ["apply", "revert"])
def test_error_that_also_keeps_the_files_from_being_put_back_is_repaired_later(
    root: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    original = trees.snapshot(root)
    if action == "revert":
        operations.apply(root)
    with monkeypatch.context() as patched:
        FullDisk(patched, 2, 99)
        with pytest.raises(Failed, match="putting the files back failed too"):
            getattr(operations, action)(root)
    assert inspect(root).state == INTERRUPTED
    operations.apply(root)
    assert trees.hashes(root) == trees.PATCHED
    operations.revert(root)
    assert trees.snapshot(root) == original


def test_file_that_someone_changes_meanwhile_is_left_alone(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_file = py_compile.compile

    def edit_then_compile(file: str, **options: object) -> str | None:
        with Path(file).open("a") as text:
            text.write("# mine\n")
        return compile_file(file, doraise=True)

    with monkeypatch.context() as patched:
        patched.setattr(py_compile, "compile", edit_then_compile)
        with pytest.raises(Failed, match="changed by someone else meanwhile"):
            operations.apply(root)
    assert inspect(root).state == CHANGED
    assert (root / LOADER).read_bytes().endswith(b"# mine\n")

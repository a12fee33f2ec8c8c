"""A kill at any step leaves a state that `status` names and the next `apply` or `revert` makes whole."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_ddtree.patch import operations
from sglang_ddtree.patch.installation import INTERRUPTED, JOURNAL, ORIGINAL, PATCHED, inspect
from sglang_ddtree.patch.operations import Refused
from unit.patch import killing, trees


def killed_at_every_step(action: str, tree: Path, out: Path) -> list[Path]:
    """The package folders that the kills left, one of each kind."""
    command = [sys.executable, killing.__file__, action, str(tree), str(out)]
    path = {"PYTHONPATH": ":".join(sys.path)}
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=path)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 100
    return [folder / "sglang" for folder in sorted(out.iterdir())]


def assert_can_be_made_whole(root: Path, original: dict[str, bytes], scratch: Path) -> None:
    hashes = trees.hashes(root)
    assert all(hashes[file] in (trees.ORIGINAL[file], trees.PATCHED[file]) for file in trees.FILES)
    state = inspect(root).state
    if state != INTERRUPTED:
        assert hashes == {ORIGINAL: trees.ORIGINAL, PATCHED: trees.PATCHED}[state]
    for way in ("apply", "revert"):
        copy = scratch / way
        shutil.copytree(root, copy)
        if {"apply": PATCHED, "revert": ORIGINAL}[way] == state:
            with pytest.raises(Refused):
                getattr(operations, way)(copy)
        else:
            getattr(operations, way)(copy)
        if way == "apply":
            assert trees.hashes(copy) == trees.PATCHED
            assert inspect(copy).state == PATCHED
            operations.revert(copy)
        assert inspect(copy).state == ORIGINAL
        assert trees.snapshot(copy) == original  # nothing is left over either
        shutil.rmtree(copy)


@pytest.fixture(scope="module")
def killed_applies(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("apply")
    return killed_at_every_step("apply", trees.minimal(folder), folder / "killed")


@pytest.fixture(scope="module")
def killed_reverts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("revert")
    tree = trees.minimal(folder)
    operations.apply(tree)
    return killed_at_every_step("revert", tree, folder / "killed")


@pytest.mark.parametrize("killed", ["killed_applies", "killed_reverts"])
def test_kill_at_every_step(tmp_path: Path, killed: str, request: pytest.FixtureRequest) -> None:
    original = trees.snapshot(trees.minimal(tmp_path))
    roots = request.getfixturevalue(killed)
    for root in roots:
        assert_can_be_made_whole(root, original, tmp_path)
    # The kills hit what they should: before, after and between the two files.
    assert {inspect(root).state for root in roots} == {ORIGINAL, PATCHED, INTERRUPTED}
    assert any(half_patched(root) for root in roots)


@pytest.mark.parametrize("action", ["apply", "revert"])
def test_kill_at_every_step_of_a_repair(tmp_path: Path, action: str, killed_applies: list[Path]) -> None:
    original = trees.snapshot(trees.minimal(tmp_path))
    half = next(root for root in killed_applies if half_patched(root))
    for root in killed_at_every_step(action, half, tmp_path / "killed"):
        assert_can_be_made_whole(root, original, tmp_path)


def half_patched(root: Path) -> bool:
    return trees.hashes(root) not in (trees.ORIGINAL, trees.PATCHED)


def test_kill_before_the_journal_was_written_out_is_an_interruption(tmp_path: Path) -> None:
    root = trees.minimal(tmp_path)
    original = trees.snapshot(root)
    for torn in (b"", b'{"goal"', b"[]"):
        (root / JOURNAL).write_bytes(torn)
        found = inspect(root)
        assert (found.state, found.journal) == (INTERRUPTED, "unknown")
        operations.revert(root)
        assert trees.snapshot(root) == original

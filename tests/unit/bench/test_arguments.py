from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from sglang_ddtree import cli
from sglang_ddtree.bench import arguments as usage
from sglang_ddtree.bench import command
from sglang_ddtree.bench.arms import Arm, parse_arm
from sglang_ddtree.usage import BUDGET, join_server_args


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    usage.add_arguments(parser)
    return parser.parse_args(join_server_args(words))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--arm", "EAGLE"],
            '--arm must be AR, DFLASH or "DDTREE N" with a budget N from 1 to 1024 or auto, got "EAGLE"',
        ),
        (["--arm", "DDTREE"], 'got "DDTREE"'),
        (["--arm", "AR auto"], 'got "AR auto"'),
        (["--arm", "DDTREE automatic"], 'got "DDTREE automatic"'),
        (["--arm", "DFLASH 3"], 'got "DFLASH 3"'),
        (["--arm", f"DDTREE {BUDGET.high + 1}"], f"from 1 to {BUDGET.high} or auto, got {BUDGET.high + 1}"),
        (["--arm", "DDTREE 0"], "got 0"),
        (["--arm", "AR", "--arm", "ar"], 'arm "AR" is given 2 times'),
        (["--prompts", "x.jsonl", "--set", "math"], "exclude each other"),
        (["--prompts", "absent.jsonl"], "absent.jsonl"),
        (["--runs", "0"], "--runs must be a whole number from 1, got 0"),
        (["--concurrency", "1", "-3"], "--concurrency must be a whole number from 1, got -3"),
        (["--concurrency", "2", "2"], "--concurrency has a value twice"),
        (["--max-new-tokens", "0"], "--max-new-tokens"),
        (["--limit", "0"], "--limit"),
        (["--temperature", "-1"], "--temperature must be a number from 0, got -1"),
        (["--temperature", "nan"], "--temperature must be a number from 0, got nan"),
        (["--start-timeout", "0"], "--start-timeout"),
        (["--server-arg", "--port 3"], "must not set --port"),
        (["--server-arg", "--speculative-ddtree-budget=4"], "choose with --arm"),
        (["--server-arg", "--page-size '16"], "No closing quotation"),
        (["--out", "file"], "--out file: File exists"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    monkeypatch.setattr(command, "encode", lambda *_: pytest.fail("started"))
    assert cli.main(["bench", "--model", "some/m", "--draft", "some/d", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_speculative_arms_need_a_drafter() -> None:
    with pytest.raises(usage.UsageError, match="give --draft"):
        usage.arms(parse("--model", "m"))
    assert usage.arms(parse("--model", "m", "--arm", "AR")) == [Arm("AR")]


def test_defaults_are_the_budgets_of_the_paper_and_auto_both_temperatures_and_all_sets() -> None:
    found = parse("--model", "m", "--draft", "d")
    budgets = [arm.budget for arm in usage.arms(found)]
    assert budgets == [None, None, 16, 32, 64, 128, 256, 512, 1024, "auto"]
    assert [arm.name for arm in usage.arms(found)][:3] == ["AR", "DFLASH", "DDTREE 16"]
    assert found.temperature == [0, 1]
    assert len(usage.prompts(found)) == 96
    assert found.runs == 5


def test_limit_takes_the_first_prompts_of_each_set() -> None:
    found = usage.prompts(parse("--model", "m", "--set", "math", "--set", "code", "--limit", "2"))
    assert [prompt.name for prompt in found] == ["math-01", "math-02", "code-01", "code-02"]


def test_server_args_reach_every_arm_the_same() -> None:
    found = parse("--model", "m", "--server-arg", "--page-size 16", "--server-arg", "--disable-radix-cache")
    words = usage.server_words(found)
    assert words == ["--page-size", "16", "--disable-radix-cache"]
    plain = parse_arm("AR").server_arguments("m", "d", words)
    assert plain == ["--model-path", "m", *words, "--enable-metrics"]
    tree = parse_arm("ddtree  16").server_arguments("m", "d", words)
    assert tree[: len(plain)] == plain
    assert tree[len(plain) :] == [
        *("--speculative-algorithm", "DDTREE", "--speculative-draft-model-path", "d"),
        *("--speculative-ddtree-budget", "16"),
    ]


def test_every_arm_has_metrics_once() -> None:
    words = usage.server_words(parse("--model", "m", "--server-arg", "--enable-metrics --page-size 16"))
    for name in ("AR", "DFLASH", "DDTREE 16", "DDTREE auto"):
        assert parse_arm(name).server_arguments("m", "d", words).count("--enable-metrics") == 1
        assert parse_arm(name).server_arguments("m", "d", []).count("--enable-metrics") == 1


def test_the_budget_auto_is_an_arm_of_its_own() -> None:
    arm = parse_arm("DDTree  Auto")
    assert arm.name == "DDTREE auto"
    assert arm.server_arguments("m", "d", [])[-2:] == ["--speculative-ddtree-budget", "auto"]


@pytest.mark.parametrize("flag", ["--model", "--draft"])
@pytest.mark.parametrize("path", ["nowhere", "./nowhere", "/no/where", "~/nowhere", "a/b/c"])
def test_a_folder_that_is_not_there_is_named_before_the_hub_is_asked(
    flag: str,
    path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "encode", lambda *_: pytest.fail("asked"))
    given = {"--model": "some/model", "--draft": "some/drafter", flag: path}
    assert cli.main(["bench", *(word for pair in given.items() for word in pair)]) == 2
    assert f"sglang-ddtree bench: error: {flag} {path}: no such folder.\n" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_folders_and_hub_ids_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    usage.check_checkpoints(parse("--model", "owner/name", "--draft", "here"))
    usage.check_checkpoints(parse("--model", str(tmp_path / "here")))

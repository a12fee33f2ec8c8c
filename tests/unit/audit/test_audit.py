"""The command against servers that follow a script."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sglang_ddtree import cli
from sglang_ddtree.audit import command
from unit.audit.fakes import Refusal, Script, serve

Audit = Callable[..., int]


@pytest.fixture
def start() -> Iterator[Callable[[Script], str]]:
    with ExitStack() as servers:
        yield lambda script: servers.enter_context(serve(script))


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "P", "id": "first"}\n{"prompt": "Q", "id": "second"}\n')
    return path


@pytest.fixture
def audit(start: Callable[[Script], str], prompts: Path) -> Audit:
    """Exit code of the command for a plain script, the audited one and, perhaps, a chain."""

    def run(plain: Script, other: Script, *words: str, chain: Script | None = None) -> int:
        command = ["audit", "--base-url", start(other), "--against", start(plain), "--prompts", str(prompts)]
        command += ["--chain", start(chain)] if chain is not None else []
        return cli.main([*command, *words])

    return run


# At position 2 of the first text plain decoding's "c" is 0.2 nats above "X" and 0.6 above "Y".
TIE = {("P", 2): {"c": -1.0, "X": -1.2, "Y": -1.6}}


def plain(**changes: Any) -> Script:
    return Script({"P": "abcd", "Q": "efgh"}, logprobs=TIE, **changes)


def tree(first: str = "abcd", second: str = "efgh") -> Script:
    return Script({"P": first, "Q": second}, algorithm="DDTREE")


def test_identical_texts_are_exit_code_0(audit: Audit, capsys: pytest.CaptureFixture[str]) -> None:
    reference, other = plain(), tree()
    assert audit(reference, other, "--max-tokens", "4") == 0
    row = capsys.readouterr().out.splitlines()[2]
    assert row.split() == ["--base-url", "(DDTREE)", "2", "2", "0", "0", "8", "0.00"]
    # Greedy, in the chat template; only the plain server is asked for log-probabilities.
    assert [body["input_ids"] for body in other.requests] == [
        [ord(one) for one in "<user>P"],
        [ord(one) for one in "<user>Q"],
    ]
    assert all(
        body["sampling_params"] == {"temperature": 0, "max_new_tokens": 4}
        for body in reference.requests + other.requests
    )
    assert [body.get("return_logprob") for body in other.requests] == [None, None]


def test_a_near_tie_is_shown_and_is_exit_code_0(audit: Audit, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(plain(), tree("abXz")) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[:4] == [
        "NEAR TIE: --base-url (DDTREE), prompt first, token 2",
        "  behind      '<user>Pab'",
        "  --against   'c' (99)",
        "  --base-url  'X' (88), 0.2000 nats below (bound 0.5)",
    ]
    (row,) = (line for line in out.splitlines() if line.startswith("--base-url (DDTREE)"))
    # Three tokens of the first text, four of the second.
    assert row.split()[2:] == ["2", "1", "1", "0", "7", f"{1000 / 7:.2f}"]


@pytest.mark.parametrize(
    ("words", "code"), [([], 1), (["--bound", "0.61"], 0), (["--bound", "0.59"], 1), (["--bound", "0"], 1)]
)
def test_a_third_token_is_a_fault_beyond_the_bound(
    audit: Audit, words: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit(plain(), tree("abYz"), *words) == code
    out = capsys.readouterr().out
    assert out.startswith(("NEAR TIE", "FAULT")[code])
    assert "'Y' (89), 0.6000 nats below" in out
    assert "second      'X' (88), 0.2000 nats below" in out


def test_float32_has_a_bound_of_its_own(audit: Audit) -> None:
    assert audit(plain(dtype="float32"), tree("abXz")) == 1


def test_a_text_that_ends_early_is_a_fault(audit: Audit, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(plain(), tree("ab"), "--bound", "100") == 1
    assert "  --base-url  (the text had ended)" in capsys.readouterr().out


def test_a_chain_is_told_beside_and_does_not_decide(
    audit: Audit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chain = Script({"P": "Zbcd", "Q": "efgh"}, algorithm="DFLASH")
    assert audit(plain(), tree("abXz"), "--json", str(tmp_path / "out.json"), chain=chain) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["bound_nats"] == 0.5
    tested, beside = found["servers"]
    assert [(one["role"], one["algorithm"]) for one in found["servers"]] == [
        ("--base-url", "DDTREE"),
        ("--chain", "DFLASH"),
    ]
    assert (tested["near_ties"], tested["faults"], tested["tokens"]) == (1, 0, 7)
    assert (beside["near_ties"], beside["faults"], beside["tokens"]) == (0, 1, 5)
    assert beside["differences_per_1000_tokens"] == pytest.approx(200)
    (difference,) = tested["differences"]
    assert difference.pop("gap") == pytest.approx(0.2)
    assert difference.pop("top_gap") == pytest.approx(0.2)
    assert difference == {
        "prompt": "first",
        "verdict": "near tie",
        "position": 2,
        "plain": ord("c"),
        "other": ord("X"),
        "second": ord("X"),
        "is_near_tie": True,
        "context": "<user>Pab",
        "token_texts": {"99": "c", "88": "X"},
    }
    out = capsys.readouterr().out
    assert "FAULT: --chain (DFLASH), prompt first, token 0" in out
    # The two rates stand below each other.
    rates = [line.split()[-1] for line in out.splitlines() if line.startswith("--") and line[-1].isdigit()]
    assert rates[:2] == [f"{1000 / 7:.2f}", "200.00"]


def test_limit_and_concurrency(audit: Audit) -> None:
    other = tree(second="wrong")
    assert audit(plain(), other, "--limit", "1") == 0
    assert len(other.requests) == 1
    assert audit(plain(), tree(second="wrong"), "--concurrency", "2") == 1


def test_a_model_without_a_chat_template_gets_the_plain_text(audit: Audit) -> None:
    other = tree()
    assert audit(plain(has_template=False), other) == 0
    assert [body["input_ids"] for body in other.requests] == [[ord("P")], [ord("Q")]]


class Broken(Script):
    """Answers every ``/generate`` with `reply`."""

    reply: Any = None

    def answer(self, path: str, body: Any) -> Any:
        return self.reply if path == "/generate" else super().answer(path, body)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"<html>", "the answer is not JSON"),
        ({"text": "a"}, "not the answer expected: KeyError: 'meta_info'"),
        (
            {"output_ids": [], "meta_info": {"finish_reason": {"type": "abort", "message": "no room"}}},
            "aborted: no room",
        ),
    ],
)
def test_an_answer_that_cannot_be_used_is_exit_code_2(
    audit: Audit, reply: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Broken({}, algorithm="DDTREE")
    other.reply = reply
    assert audit(plain(), other) == 2
    error = capsys.readouterr().err
    assert "sglang-ddtree audit: error: prompt first: http://127.0.0.1:" in error
    assert message in error


def test_log_probabilities_of_other_tokens_are_exit_code_2(
    audit: Audit, capsys: pytest.CaptureFixture[str]
) -> None:
    class Shifted(Script):
        def answer(self, path: str, body: Any) -> Any:
            found = super().answer(path, body)
            if path == "/generate":
                found["output_ids"][0] += 1
            return found

    assert audit(Shifted({"P": "abcd", "Q": "efgh"}), tree()) == 2
    assert "its log-probabilities are not those of its tokens" in capsys.readouterr().err


def test_a_refused_prompt_is_exit_code_2_and_named(audit: Audit, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(plain(), Script({"P": "abcd"}, algorithm="DDTREE")) == 2
    error = capsys.readouterr().err
    assert "prompt second: " in error
    assert "status 400" in error
    assert "prompt too long" in error


@pytest.mark.parametrize("role", ["--base-url", "--against", "--chain"])
def test_an_unreachable_server_is_exit_code_2(
    start: Callable[[Script], str], prompts: Path, role: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve(plain()) as gone:
        pass
    urls = {"--base-url": start(tree()), "--against": start(plain()), "--chain": start(tree()), role: gone}
    assert (
        cli.main(["audit", "--prompts", str(prompts), *(word for pair in urls.items() for word in pair)]) == 2
    )
    error = capsys.readouterr().err
    assert f"{gone}/server_info" in error
    assert "Connection refused" in error


def test_a_speculative_reference_is_refused(audit: Audit, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(tree(), tree()) == 2
    assert "--against must decode plainly" in capsys.readouterr().err


def test_a_server_that_is_not_sglang_is_exit_code_2(audit: Audit, capsys: pytest.CaptureFixture[str]) -> None:
    class Other(Script):
        def answer(self, path: str, body: Any) -> Any:
            return ["hello"]

    class Refusing(Script):
        def answer(self, path: str, body: Any) -> Any:
            raise Refusal("no such page")

    assert audit(Other({}), tree()) == 2
    assert "is it a SGLang server?" in capsys.readouterr().err
    assert audit(Refusing({}), tree()) == 2
    assert "no such page" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--base-url", "127.0.0.1:30000"], "--base-url must be like http://127.0.0.1:30000"),
        (["--against", "http://"], "--against must be like"),
        (["--chain", "ftp://host"], "--chain must be like"),
        (["--limit", "0"], "--limit must be a whole number from 1, got 0"),
        (["--max-tokens", "-1"], "--max-tokens must be a whole number from 1, got -1"),
        (["--concurrency", "0"], "--concurrency"),
        (["--bound", "-0.1"], "--bound must be a number of nats from 0, got -0.1"),
        (["--bound", "nan"], "--bound must be"),
        (["--prompts", "absent.jsonl"], "absent.jsonl"),
        (["--json", "absent/out.json"], "--json absent/out.json: there is no folder"),
    ],
)
def test_bad_usage_is_exit_code_2_before_any_request(
    words: list[str],
    message: str,
    tmp_path: Path,
    prompts: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    base = ["--base-url", "http://127.0.0.1:1", "--against", "http://127.0.0.1:2", "--prompts", str(prompts)]
    assert cli.main(["audit", *base, *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "server_info" not in error


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--limit", "0"], "--limit must be a whole number from 1"), ([], "Connection refused")],
)
def test_a_report_that_cannot_be_made_leaves_the_reason_in_the_file(
    words: list[str], message: str, tmp_path: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve(plain()) as gone:
        pass
    out = tmp_path / "out.json"
    out.write_text('{"servers": ["of an earlier audit"]}')
    base = ["--base-url", gone, "--against", gone, "--prompts", str(prompts), "--json", str(out)]
    assert cli.main(["audit", *base, *words]) == 2
    report = json.loads(out.read_text())
    assert set(report) == {"format", "error"}
    assert message in report["error"]
    assert report["error"] in capsys.readouterr().err


def test_ctrl_c_leaves_the_reason_in_the_file(
    audit: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "audit", stop)
    assert audit(plain(), tree(), "--json", str(tmp_path / "out.json")) == 130
    assert "stopped" in json.loads((tmp_path / "out.json").read_text())["error"]


def test_missing_flags_are_exit_code_2() -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["audit", "--base-url", "http://127.0.0.1:1"])
    assert caught.value.code == 2

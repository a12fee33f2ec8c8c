"""The command against servers that follow a script: each check passing, and failing alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import sglang_ddtree
from sglang_ddtree import cli
from sglang_ddtree.smoke.client import SmokeClient
from unit.audit.fakes import Refusal, Script, serve
from unit.smoke.smoke_fakes import TEXT, SmokeScript

Start = Callable[[Script], str]

# The first prompt of each set, read from the files and not through the package.
PROMPTS = [
    json.loads(path.read_text().splitlines()[0])["prompt"]
    for path in sorted((Path(sglang_ddtree.__file__).parent / "bench" / "prompts").glob("*.jsonl"))
]
GREEDY = dict.fromkeys(PROMPTS, "abcd")
ALL = ["health", "models", "algorithm", "chat", "completion", "streaming", "acceptance"]


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as servers:
        yield lambda script: servers.enter_context(serve(script))


def tree(**changes: Any) -> SmokeScript:
    return SmokeScript(**{"texts": GREEDY, "algorithm": "DDTREE", **changes})


def statuses(out: str) -> dict[str, str]:
    """Check -> status, from the lines of the report."""
    return {line.split()[1]: line.split()[0] for line in out.splitlines()}


def test_a_sound_server_passes_every_check(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["smoke", "--base-url", start(tree())]) == 0
    out = capsys.readouterr().out
    assert statuses(out) == dict.fromkeys(ALL, "ok")
    assert list(statuses(out)) == ALL
    assert f"5 tokens, finish reason 'stop': {TEXT!r}" in out
    assert "3 chunks" in out
    # Three answers, each of 4 trees that keep 6 drafts: 1 + 18 / 12.
    assert "2.50 tokens per target forward, 12 forwards" in out
    assert "the-model" in out


class Sick(SmokeScript):
    def answer(self, path: str, body: Any) -> Any:
        if path == "/health":
            raise Refusal("still loading")
        raise AssertionError("a sick server is asked nothing else")


class Cut(SmokeScript):
    def _stream(self) -> bytes:
        return b'data: {"error": {"message": "aborted"}}\n\n'


class Strange(SmokeScript):
    def answer(self, path: str, body: Any) -> Any:
        return {"data": [{}]} if path == "/v1/models" else super().answer(path, body)


@pytest.mark.parametrize(
    ("script", "check", "message"),
    [
        (tree(algorithm="DFLASH"), "algorithm", "the server runs DFLASH, not DDTREE"),
        (tree(algorithm=None), "algorithm", "the server runs plain, not DDTREE"),
        (tree(chat_refusal="repetition_penalty: it depends"), "chat", "status 400: "),
        (tree(steps=0), "acceptance", "no step verified a draft"),
        (tree(correct=0), "acceptance", "1.00 tokens per target forward in 12: no draft token was accepted"),
        (tree(finish={"type": "abort", "message": "no room"}), "acceptance", "aborted: no room"),
        (
            tree(chunks=("Monday, ",)),
            "streaming",
            "the streamed text is 'Monday, ', the other 'Monday, Tuesday'",
        ),
        (
            tree(chunks=("Mon", "Mon", "day, Tuesday")),
            "streaming",
            "the streamed text is 'MonMonday, Tuesday'",
        ),
        (tree(chunks=(TEXT,)), "streaming", "1 chunk: the text did not come in parts"),
        (tree(ends_stream=False), "streaming", "the stream ended without [DONE]"),
        (Cut(GREEDY, algorithm="DDTREE"), "streaming", "the stream reports an error"),
    ],
)
def test_a_fault_fails_its_check_alone(
    start: Start, script: Script, check: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["smoke", "--base-url", start(script)]) == 1
    out = capsys.readouterr().out
    assert statuses(out) == dict.fromkeys(ALL, "ok") | {check: "FAIL"}
    (line,) = (line for line in out.splitlines() if line.startswith("FAIL"))
    assert message in line


@pytest.mark.parametrize(
    ("script", "checks", "message"),
    [
        (tree(tokens=0), ["chat", "completion"], "0 tokens, finish reason 'stop'"),
        (tree(reason="abort"), ["chat", "completion"], "finish reason 'abort'"),
        (
            Strange(GREEDY, algorithm="DDTREE"),
            ["models", "chat", "completion", "streaming"],
            "KeyError: 'id'",
        ),
        (tree(texts_whole=(7,)), ["completion", "streaming"], "TypeError: its text is 7"),
    ],
)
def test_a_fault_that_several_checks_see(
    start: Start, script: Script, checks: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["smoke", "--base-url", start(script)]) == 1
    out = capsys.readouterr().out
    assert [check for check, status in statuses(out).items() if status == "FAIL"] == checks
    assert all(message in line for line in out.splitlines() if line.startswith("FAIL"))


def test_a_near_tie_between_two_runs_is_not_a_fault_of_the_stream(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    # The first whole text is the completion's own; the stream's second attempt agrees.
    assert cli.main(["smoke", "--base-url", start(tree(texts_whole=(TEXT, "Moon", TEXT)))]) == 0
    assert statuses(capsys.readouterr().out)["streaming"] == "ok"


def test_a_model_without_chat_template_is_not_at_fault(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    message = "Cannot use chat template functions because tokenizer.chat_template is not set"
    assert cli.main(["smoke", "--base-url", start(tree(chat_refusal=message))]) == 0
    assert statuses(capsys.readouterr().out)["chat"] == "skipped"


def test_a_sick_server_is_asked_nothing_else(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["smoke", "--base-url", start(Sick({}))]) == 1
    out = capsys.readouterr().out
    assert statuses(out) == {"health": "FAIL", **dict.fromkeys(ALL[1:], "skipped")}
    assert "still loading" in out


# Plain decoding's second token is 0.2 nats above "X".
TIE = {(PROMPTS[1], 1): {"b": -1.0, "X": -1.2}}


@pytest.mark.parametrize(
    ("other", "dtype", "code", "detail"),
    [
        ("abcd", "bfloat16", 0, "3 of 3 greedy texts are plain decoding's"),
        ("aXcd", "bfloat16", 0, "2 of 3 greedy texts are plain decoding's, 1 left it at a near tie"),
        ("aXcd", "float32", 1, "token 1: 88 instead of 98, 0.2000 nats below (bound 0.001)"),
        ("aYcd", "bfloat16", 1, "token 1: 89 instead of 98, 8.0000 nats below (bound 0.5)"),
        ("ab", "bfloat16", 1, "token 2: None instead of 99, where one text ends"),
    ],
)
def test_greedy_identity_is_the_audit_s(
    start: Start, other: str, dtype: str, code: int, detail: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = Script(GREEDY, logprobs=TIE, dtype=dtype)
    tested = tree(texts=GREEDY | {PROMPTS[1]: other})
    words = ["smoke", "--base-url", start(tested), "--against", start(plain), "--json"]
    assert cli.main(words) == code
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] is (code == 0)
    assert [one["check"] for one in report["checks"]] == [*ALL, "identity"]
    assert report["checks"][-1]["status"] == ("FAIL" if code else "ok")
    assert detail in report["checks"][-1]["detail"]
    assert {one["status"] for one in report["checks"][:-1]} == {"ok"}


def test_a_reference_that_refuses_fails_identity_alone(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["smoke", "--base-url", start(tree()), "--against", start(Script({}))]) == 1
    found = statuses(capsys.readouterr().out)
    assert [check for check, status in found.items() if status == "FAIL"] == ["identity"]


@pytest.mark.parametrize("role", ["--base-url", "--against"])
def test_nobody_at_an_address_is_exit_code_2(
    start: Start, role: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve(tree()) as gone:
        pass
    urls = {"--base-url": start(tree()), "--against": start(Script(GREEDY)), role: gone}
    assert cli.main(["smoke", *(word for pair in urls.items() for word in pair)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"sglang-ddtree smoke: error: {gone}/" in printed.err
    assert "Connection refused" in printed.err
    assert printed.err.endswith(f"; is the server up yet, and is {role} right?\n")


@pytest.mark.parametrize(("role", "failed"), [("--base-url", "health"), ("--against", "identity")])
def test_nobody_at_an_address_is_a_report_with_the_failed_check(
    start: Start, role: str, failed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve(tree()) as gone:
        pass
    urls = {"--base-url": start(tree()), "--against": start(Script(GREEDY)), role: gone}
    assert cli.main(["smoke", "--json", *(word for pair in urls.items() for word in pair)]) == 2
    report = json.loads(capsys.readouterr().out)
    assert (report["format"], report["passed"]) == (1, False)
    assert (report["base_url"], report["against"]) == (urls["--base-url"], urls["--against"])
    assert report["error"].startswith(f"{gone}/")
    assert "Connection refused" in report["error"]
    assert report["error"].endswith(f"; is the server up yet, and is {role} right?")
    assert [one["check"] for one in report["checks"]] == [*ALL, "identity"]
    by_name = {one["check"]: one for one in report["checks"]}
    assert by_name.pop(failed) == {"check": failed, "status": "FAIL", "detail": report["error"]}
    assert {one["status"] for one in by_name.values()} == {"skipped"}


def test_without_a_plain_server_its_check_is_not_in_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    with serve(tree()) as gone:
        pass
    assert cli.main(["smoke", "--json", "--base-url", gone]) == 2
    assert [one["check"] for one in json.loads(capsys.readouterr().out)["checks"]] == ALL


def test_json_of_a_report_without_error(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["smoke", "--json", "--base-url", start(tree())]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["passed"], report["error"]) == (True, None)


def test_ctrl_c_is_a_report_of_the_checks_made(
    start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SmokeClient, "chat", stop)
    assert cli.main(["smoke", "--json", "--base-url", start(tree())]) == 130
    report = json.loads(capsys.readouterr().out)
    assert (report["passed"], report["error"]) == (False, "stopped before all checks were made")
    assert [one["check"] for one in report["checks"]] == ["health", "models", "algorithm"]


def test_wrong_usage_is_a_report_too(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["smoke", "--json", "--base-url", "127.0.0.1:30000"]) == 2
    report = json.loads(capsys.readouterr().out)
    assert report["error"].startswith("--base-url must be like http://127.0.0.1:30000")
    assert report["checks"] == []


def test_wrong_usage_is_exit_code_2(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["smoke", "--base-url", "127.0.0.1:30000"]) == 2
    assert "--base-url must be like http://127.0.0.1:30000" in capsys.readouterr().err
    url = start(tree())
    assert cli.main(["smoke", "--base-url", url, "--against", url]) == 2
    assert "--against must decode plainly" in capsys.readouterr().err

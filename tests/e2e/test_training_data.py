"""Training data from a running server: `scripts/train_drafter.py prompts` and `generate` with --base-url."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.checkpoints import EOS_ID
from e2e.conftest import Launch
from e2e.hf import GreedyOracle
from e2e.serving import Server

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from drafter_training import command
from drafter_training.data import Answers

PROMPTS = [f"What is {number} and {number}?" for number in range(40)]


@pytest.fixture(scope="module")
def server(launch: Launch, tiny_target: Path) -> Iterator[Server]:
    with launch(tiny_target, max_running_requests=32) as server:
        yield server


@pytest.fixture(autouse=True)
def _no_target_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any) -> None:
        raise AssertionError("the target was loaded here")

    monkeypatch.setattr(command, "_load", load)


def run(*words: object) -> int:
    return command.main([str(word) for word in words])


def test_answers_are_the_target_s_own(
    server: Server, tiny_target: Path, oracle: GreedyOracle, tmp_path: Path
) -> None:
    (tmp_path / "prompts").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    common = ["--model", tiny_target, "--base-url", server.base_url, "--prompts", tmp_path / "prompts"]
    shape = ["--new-tokens", 24, "--max-length", 80, "--batch-size", 20, "--temperature", 0, 1]
    assert run("generate", *common, "--out", tmp_path / "answers", *shape) == 0
    answers = Answers.load([tmp_path / "answers"], 512)
    assert len(answers) == len(PROMPTS)
    greedy, ended = 0, 0
    for tokens, begin in zip(
        answers.tokens.split(answers.lengths.tolist()), answers.prompt_lengths.tolist(), strict=True
    ):
        prompt, text = tokens[:begin].tolist(), tokens[begin:].tolist()
        assert EOS_ID not in text[:-1]
        assert text[-1] == EOS_ID or len(text) == 24 or len(tokens) == 80
        greedy += oracle.chooses(prompt, text)
        ended += text[-1] == EOS_ID
    # Half of them; a sampled text of one or two tokens may be the greedy one.
    assert 20 <= greedy < 30


def test_messages_end_with_the_stop_token(server: Server, tiny_target: Path, tmp_path: Path) -> None:
    made = ["--model", tiny_target, "--base-url", server.base_url, "--out", tmp_path / "made"]
    assert run("prompts", *made, "--count", 3, "--temperature", 3.0, "--new-tokens", 60) == 0
    texts = [json.loads(line)["prompt"] for line in (tmp_path / "made").read_text().splitlines()]
    assert 1 <= len(set(texts)) == len(texts) <= 3


def test_servers_that_cannot_answer_are_named(
    server: Server, tiny_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_target, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"vocab_size": 7}))
    given = ["generate", "--out", tmp_path / "out", "--prompts", "chat", "--max-length", 4000]
    assert run(*given, "--model", other, "--base-url", server.base_url) == 2
    assert "it serves another model than --model" in capsys.readouterr().err
    given += ["--model", tiny_target, "--base-url"]
    assert run(*given, "http://127.0.0.1:9") == 2
    assert "http://127.0.0.1:9/server_info: " in capsys.readouterr().err
    assert run(*given, server.base_url, "--device", "cpu") == 2
    assert "--device cpu: with --base-url" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

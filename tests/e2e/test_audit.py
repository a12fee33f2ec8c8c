"""The audit and the smoke test between real servers, on the CPU platform."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from e2e import checkpoints
from e2e.conftest import Launch
from e2e.hf import GreedyOracle
from e2e.serving import Server
from sglang_ddtree import cli

PROMPTS = ("Count to ten.", "What is 2 + 3?", "Hello!")
NEW_TOKENS = 24


@pytest.fixture(scope="module")
def tree(launch: Launch, tiny_target: Path, tiny_drafter: Path) -> Iterator[Server]:
    with launch(
        tiny_target,
        speculative_algorithm="DDTREE",
        speculative_draft_model_path=tiny_drafter,
        speculative_ddtree_budget=16,
    ) as server:
        yield server


@pytest.fixture
def ids(tiny_target: Path) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(tiny_target)
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False
        )
        for prompt in PROMPTS
    ]


def audit(tree: Server, plain: Server, folder: Path) -> tuple[int, dict[str, Any]]:
    """The exit code, and what the report says of the audited server."""
    prompts, out = folder / "prompts.jsonl", folder / "audit.json"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    words = ["audit", "--base-url", tree.base_url, "--against", plain.base_url, "--prompts", str(prompts)]
    code = cli.main([*words, "--max-tokens", str(NEW_TOKENS), "--json", str(out)])
    report = json.loads(out.read_text())
    assert report["plain"]["algorithm"] == "plain"
    (server,) = report["servers"]
    assert server["algorithm"] == "DDTREE"
    return code, server


def smoke(tree: Server, plain: Server, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, str]]:
    """The exit code, and the status of each check."""
    capsys.readouterr()
    code = cli.main(["smoke", "--base-url", tree.base_url, "--against", plain.base_url, "--json"])
    report = json.loads(capsys.readouterr().out)
    return code, {one["check"]: one["status"] for one in report["checks"]}


SMOKE = dict.fromkeys(
    ("health", "models", "algorithm", "chat", "completion", "streaming", "acceptance", "identity"), "ok"
)


def test_ddtree_is_identical_to_plain_decoding_in_float32(
    tree: Server,
    launch: Launch,
    tiny_target: Path,
    oracle: GreedyOracle,
    ids: list[list[int]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with launch(tiny_target) as plain:
        code, server = audit(tree, plain, tmp_path)
        assert smoke(tree, plain, capsys) == (0, SMOKE)
    assert code == 0
    assert (server["identical"], server["near_ties"], server["faults"]) == (len(PROMPTS), 0, 0)
    texts = [oracle.generate(one, NEW_TOKENS, stop=checkpoints.EOS_ID) for one in ids]
    assert server["tokens"] == sum(map(len, texts))


def test_another_checkpoint_s_texts_are_faults_with_hugging_face_s_gaps(
    tree: Server,
    launch: Launch,
    oracle: GreedyOracle,
    ids: list[list[int]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = checkpoints.make_target(tmp_path / "other", seed=7)
    with launch(target) as plain:
        code, server = audit(tree, plain, tmp_path)
        assert smoke(tree, plain, capsys) == (1, SMOKE | {"identity": "FAIL"})
    assert code == 1
    assert server["faults"] == len(PROMPTS)
    other = GreedyOracle(target)
    for prompt, found in zip(ids, server["differences"], strict=True):
        plainly = other.generate(prompt, NEW_TOKENS)
        audited = oracle.generate(prompt, NEW_TOKENS)
        position = next(
            at for at, pair in enumerate(zip(plainly, audited, strict=True)) if len(set(pair)) == 2
        )
        assert (found["position"], found["plain"], found["other"]) == (
            position,
            plainly[position],
            audited[position],
        )
        logprobs = other.next_token_probabilities([*prompt, *plainly[:position]]).log()
        best, second = logprobs.topk(2).values.tolist()
        assert found["top_gap"] == pytest.approx(best - second, abs=1e-3)
        assert found["gap"] == pytest.approx(best - float(logprobs[audited[position]]), abs=1e-3)

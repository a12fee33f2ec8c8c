"""Two ranks of one server: the text of plain decoding, the same trees and the same widths on both. Two replicas."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from e2e import checkpoints, probing
from e2e.conftest import Launch
from e2e.hf import GreedyOracle
from e2e.hybrid_checkpoints import EXACT, STATES
from e2e.prompts import mixed_prompts

PROMPTS = mixed_prompts(16, longest=60, seed=17)
NEW_TOKENS = 48
# Each half of the vocabulary, which is a rank's part of the output head, has two of the tokens that texts are made of.
HOT_TOKENS = (40, 41, 300, 301)
HALF = checkpoints.VOCABULARY // 2


def two_processes(drafter: Path, budget: int | str, **options: Any) -> dict[str, Any]:
    """Options of a DDTREE server with two scheduler processes; SGLang wants to be told a core for each on a CPU."""
    cores = sorted(os.sched_getaffinity(0))
    binding = {"SGLANG_CPU_OMP_THREADS_BIND": f"{cores[0]}|{cores[-1]}"}
    return {
        "max_running_requests": 16,
        "speculative_algorithm": "DDTREE",
        "speculative_draft_model_path": drafter,
        "speculative_ddtree_budget": budget,
        **options,
        "environment": binding | options.get("environment", {}),
    }


def two_ranks(drafter: Path, budget: int | str, **options: Any) -> dict[str, Any]:
    return two_processes(drafter, budget, tp_size=2, **options)


@pytest.fixture(scope="module")
def target(checkpoint_root: Path) -> Path:
    return checkpoints.make_target(checkpoint_root / "target-halves", hot_tokens=HOT_TOKENS)


@pytest.fixture(scope="module")
def halves_oracle(target: Path) -> GreedyOracle:
    return GreedyOracle(target)


@pytest.fixture(scope="module")
def texts(halves_oracle: GreedyOracle) -> list[list[int]]:
    return [halves_oracle.generate(prompt, NEW_TOKENS) for prompt in PROMPTS]


def both_traces(trace: Path) -> tuple[list[str], list[str]]:
    return trace.read_text().splitlines(), Path(f"{trace}.1").read_text().splitlines()


def test_ranks_verify_the_same_trees_and_follow_the_first_one(
    launch: Launch, target: Path, tiny_drafter: Path, texts: list[list[int]], tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    with launch(
        target,
        **two_ranks(
            tiny_drafter,
            32,
            # The second rank chooses wrong tokens at every node, which must not matter.
            environment=probing.environment(trace=trace, stray=True),
            page_size=4,
        ),
    ) as server:
        assert server.greedy(PROMPTS, NEW_TOKENS) == texts
        greedy_steps = len(trace.read_text().splitlines())
        warm = {"temperature": 1.0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True, "n": 8}
        answers = server.post("/generate", {"input_ids": PROMPTS[0], "sampling_params": warm})
        assert len({tuple(answer["output_ids"]) for answer in answers}) > 4
        assert server.settled_tokens() == 0
    first, second = both_traces(trace)
    assert first == second
    assert len(first) > greedy_steps
    steps = [json.loads(line) for line in first]
    accepted = Counter(
        step["tokens"][slot] < HALF for step in steps[:greedy_steps] for slot in step["path"][1:]
    )
    assert min(accepted[True], accepted[False]) > 10, "drafts of both ranks' vocabularies are accepted"
    for step in steps:
        assert len(step["tokens"]) == 33
    assert any(step["path"] != list(range(step["accept_len"])) for step in steps), "no path leaves the chain"
    # 16 requests of 48 tokens would take 752 steps of one token each.
    assert greedy_steps < 700


def test_ranks_with_their_own_clocks_take_the_same_widths(
    launch: Launch, target: Path, tiny_drafter: Path, texts: list[list[int]], tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    with launch(
        target,
        **two_ranks(
            tiny_drafter,
            "auto",
            # The second rank's clock says that wide trees take ten times as long.
            environment=probing.environment(trace=trace, stray=True),
        ),
    ) as server:
        for count in (1, 2, 3, 16):
            assert server.greedy(PROMPTS[:count], NEW_TOKENS) == texts[:count]
        (state,) = server.server_info()["internal_states"]
    first, second = both_traces(trace)
    assert first == second
    assert len({json.loads(line)["width"] for line in first}) > 1
    assert sum(state["ddtree_widths"]["steps"].values()) > 50


def test_recurrent_layers_share_their_heads(
    launch: Launch, hybrid_target: Path, tiny_drafter: Path, hybrid_oracle: GreedyOracle, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    with launch(
        hybrid_target,
        **two_ranks(
            tiny_drafter,
            16,
            environment=EXACT | probing.environment(trace=trace),
            max_mamba_cache_size=STATES,
        ),
    ) as server:
        for prompt, text in zip(PROMPTS, server.greedy(PROMPTS, NEW_TOKENS), strict=True):
            assert hybrid_oracle.chooses(prompt, text)
    first, second = both_traces(trace)
    assert first == second
    assert any(step["path"] != list(range(step["accept_len"])) for step in map(json.loads, first))


def test_replicas_decode_on_their_own(
    launch: Launch, target: Path, tiny_drafter: Path, texts: list[list[int]]
) -> None:
    with launch(
        target,
        **two_processes(
            tiny_drafter,
            "auto",
            dp_size=2,
            enable_metrics=True,
        ),
    ) as server:
        assert server.greedy(PROMPTS, NEW_TOKENS) == texts
        status, message = server.refusal({"text": "Once", "sampling_params": {"frequency_penalty": 1.0}})
        assert (status, "frequency_penalty" in message) == (400, True)
        states = server.server_info()["internal_states"]
        assert [sum(state["ddtree_widths"]["steps"].values()) > 20 for state in states] == [True, True]
        steps = [sample for sample in server.metrics() if sample.name == "sglang:ddtree_steps_total"]
        assert {sample.labels["dp_rank"] for sample in steps if sample.value} == {"0", "1"}

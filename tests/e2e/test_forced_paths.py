"""Accepted paths of every awkward shape, scripted: the draft is replaced, everything after it is the real step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import probing
from e2e.conftest import Launch
from e2e.hf import GreedyOracle
from e2e.prompts import mixed_prompts
from e2e.staging import NEW_TOKENS, Stage, open_stage, payload

BLOCK = 16
BUDGET = 64


@pytest.fixture(scope="module")
def stage(
    launch: Launch, tiny_target: Path, tiny_drafter: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    with open_stage(
        launch, tmp_path_factory.mktemp("stage"), tiny_target, tiny_drafter, speculative_ddtree_budget=BUDGET
    ) as stage:
        yield stage


@pytest.fixture(scope="module")
def prompts() -> dict[str, list[int]]:
    return {f"request-{i}": prompt for i, prompt in enumerate(mixed_prompts(7, seed=3, shortest=5))}


@pytest.fixture(scope="module")
def texts(oracle: GreedyOracle, prompts: dict[str, list[int]]) -> dict[str, list[int]]:
    return {rid: oracle.generate(prompt, NEW_TOKENS + BLOCK) for rid, prompt in prompts.items()}


@pytest.mark.parametrize(
    "ranks",
    [[1] + [0] * 14, [0, 0, 1] + [0] * 12],
    ids=["second child of the root", "second child at depth 3"],
)
def test_accepted_path_need_not_be_a_prefix_of_the_node_order(
    stage: Stage,
    prompts: dict[str, list[int]],
    texts: dict[str, list[int]],
    ranks: list[int],
) -> None:
    stage.play(texts, accept=[4], ranks=ranks)
    answers = stage.server.generate([payload(rid, prompt) for rid, prompt in prompts.items()])
    assert [answer["output_ids"] for answer in answers] == [texts[rid][:NEW_TOKENS] for rid in prompts]
    for steps in stage.steps().values():
        full = [step for step in steps if step["accept_len"] == 4]
        assert len(full) >= NEW_TOKENS // 4 - 1
        assert all(step["path"] != [0, 1, 2, 3] for step in full)
        # Positions are the device's lengths and the depth, at every step.
        done = steps[0]["prefix"]
        for step in steps:
            assert step["prefix"] == done
            assert [step["positions"][node] - done for node in step["path"]] == list(
                range(step["accept_len"])
            )
            done += step["accept_len"]


def test_every_request_of_a_batch_may_accept_a_different_length(
    stage: Stage,
    prompts: dict[str, list[int]],
    texts: dict[str, list[int]],
) -> None:
    lengths = [1, 2, 3, 5, 8, 12, 16]
    stage.play(texts, accept=lengths)
    answers = stage.server.generate([payload(rid, prompt) for rid, prompt in prompts.items()])
    assert [answer["output_ids"] for answer in answers] == [texts[rid][:NEW_TOKENS] for rid in prompts]
    trace = stage.steps()
    for rid, length in zip(prompts, lengths, strict=True):
        assert [step["accept_len"] for step in trace[rid]][:2] == [length, length]
    # They arrive one by one and the long paths are soon done: not all seven need meet.
    assert max(step["batch"] for steps in trace.values() for step in steps) >= 4


def test_a_tree_may_have_fewer_nodes_than_the_width(
    stage: Stage,
    prompts: dict[str, list[int]],
    texts: dict[str, list[int]],
) -> None:
    stage.play(texts, accept=[9], nodes=5)
    answers = stage.server.generate([payload(rid, prompt) for rid, prompt in prompts.items()])
    assert [answer["output_ids"] for answer in answers] == [texts[rid][:NEW_TOKENS] for rid in prompts]
    steps = [step for request in stage.steps().values() for step in request]
    assert {(len(step["tokens"]), step["width"]) for step in steps} == {(6, BUDGET + 1)}
    assert max(step["accept_len"] for step in steps) > 1


def test_generation_may_end_in_the_middle_of_an_accepted_path(
    stage: Stage,
    prompts: dict[str, list[int]],
    texts: dict[str, list[int]],
) -> None:
    stops: dict[str, int] = {}
    for rid, text in texts.items():
        # A stop token whose first occurrence is inside the second accepted path (tokens 17 to 32 of the text).
        inside = [token for at, token in enumerate(text[20:28], start=20) if token not in text[:at]]
        if inside:
            stops[rid] = inside[0]
    stage.play(texts, accept=[16])
    for count in (1, 2, 19, 23):
        short = stage.server.generate(
            [payload(rid, prompt, max_new_tokens=count) for rid, prompt in prompts.items()]
        )
        assert [answer["output_ids"] for answer in short] == [texts[rid][:count] for rid in prompts]
        assert {answer["meta_info"]["finish_reason"]["type"] for answer in short} == {"length"}
    for rid in prompts:
        stop = stops.get(rid, texts[rid][18])
        end = texts[rid].index(stop) + 1
        stopped = stage.server.generate(
            [payload(rid, prompts[rid], stop_token_ids=[stop], ignore_eos=False)]
        )[0]
        assert stopped["output_ids"] == texts[rid][:end]
        assert stopped["meta_info"]["finish_reason"]["type"] == "stop"
    assert max(step["accept_len"] for steps in stage.steps().values() for step in steps) == 16


def test_a_request_at_the_context_end_leaves_its_neighbours_alone(
    launch: Launch, tiny_target: Path, tiny_drafter: Path, tmp_path: Path, oracle: GreedyOracle
) -> None:
    context = 128  # SGLang keeps two positions for itself
    prompts = mixed_prompts(6, shortest=104, longest=112, seed=5)
    short = mixed_prompts(2, shortest=8, longest=16, seed=6)
    counts = [context - len(prompt) - 2 for prompt in prompts] + [64, 64]
    expected = [oracle.generate(prompt, count) for prompt, count in zip(prompts + short, counts, strict=True)]
    with launch(
        tiny_target,
        environment=probing.environment(trace=tmp_path / "trace"),
        speculative_algorithm="DDTREE",
        speculative_draft_model_path=tiny_drafter,
        speculative_ddtree_budget=255,
        context_length=context,
        max_total_tokens=16384,
    ) as server:
        together = server.generate(
            [
                payload(f"context-{i}", prompt, max_new_tokens=count)
                for i, (prompt, count) in enumerate(zip(prompts + short, counts, strict=True))
            ]
        )
    assert [answer["output_ids"] for answer in together] == expected
    steps = [step for request in probing.read_trace(tmp_path / "trace").values() for step in request]
    # The scheduler reserves twice the window behind the committed text: the row must hold all of it.
    assert {step["row"] >= context + 2 * 256 for step in steps} == {True}
    assert max(step["prefix"] for step in steps) > context - 8

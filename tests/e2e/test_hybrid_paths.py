"""Forced accepted paths on a hybrid target, and the refusal of a record that does not fit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from e2e import probing
from e2e.conftest import Launch
from e2e.hf import GreedyOracle
from e2e.hybrid_checkpoints import EXACT, STATES
from e2e.prompts import mixed_prompts
from e2e.staging import NEW_TOKENS, Stage, open_stage, payload
from sglang_ddtree.demo.server import ServerFailed

BLOCK = 16

# -- forced paths

RIDS = [f"request-{number}" for number in range(5)]


@pytest.fixture(scope="module")
def scripted() -> dict[str, list[int]]:
    return dict(zip(RIDS, mixed_prompts(5, seed=23, shortest=5), strict=True))


@pytest.fixture(scope="module")
def known(hybrid_oracle: GreedyOracle, scripted: dict[str, list[int]]) -> dict[str, list[int]]:
    return {rid: hybrid_oracle.generate(prompt, NEW_TOKENS + BLOCK) for rid, prompt in scripted.items()}


@pytest.fixture(scope="module")
def stage(
    launch: Launch, hybrid_target: Path, tiny_drafter: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    environment = EXACT | probing.environment(logits=True)
    with open_stage(
        launch,
        tmp_path_factory.mktemp("hybrid-stage"),
        hybrid_target,
        tiny_drafter,
        environment=environment,
        max_mamba_cache_size=STATES,
        speculative_ddtree_budget=64,
    ) as stage:
        yield stage


def play(
    stage: Stage, scripted: dict[str, list[int]], known: dict[str, list[int]], **script: Any
) -> list[Any]:
    stage.play(known, **script)
    answers = stage.server.generate([payload(rid, prompt) for rid, prompt in scripted.items()])
    return [answer["output_ids"] for answer in answers]


def worst_logit_error(
    oracle: GreedyOracle, prompt: list[int], text: list[int], steps: list[dict[str, Any]]
) -> float:
    """How far the logits of traced depth-2 nodes are from a forward over text and ancestors alone."""
    errors = []
    for step in steps:
        if "deep_slot" not in step:
            continue
        slot, path = step["deep_slot"], []
        while slot > 0:
            path.insert(0, step["tokens"][slot])
            slot = step["parents"][slot]
        context = [*prompt, *text][: step["prefix"] + 1]
        assert context[-1] == step["tokens"][0]
        with torch.inference_mode():
            wanted = oracle.model(torch.tensor([[*context, *path]])).logits[0, -1]
        errors.append(float((torch.tensor(step["deep_logits"]) - wanted).abs().max()))
    assert errors
    return max(errors)


SECOND_CHILD = {"accept": [4], "ranks": [1] + [0] * 14}


def test_state_follows_the_second_child_of_the_root(
    stage: Stage,
    scripted: dict[str, list[int]],
    known: dict[str, list[int]],
    hybrid_oracle: GreedyOracle,
) -> None:
    answers = play(stage, scripted, known, **SECOND_CHILD)
    assert answers == [known[rid][:NEW_TOKENS] for rid in scripted]
    for rid, steps in stage.steps().items():
        full = [step for step in steps if step["accept_len"] == 4]
        assert len(full) >= 5  # twenty tokens and more behind the first of them
        assert all(step["path"] != [0, 1, 2, 3] for step in full)
        assert worst_logit_error(hybrid_oracle, scripted[rid], known[rid], steps) < 1e-3


def test_control_convolutions_that_ignore_the_branch_are_seen(
    launch: Launch,
    hybrid_target: Path,
    tiny_drafter: Path,
    scripted: dict[str, list[int]],
    known: dict[str, list[int]],
    hybrid_oracle: GreedyOracle,
    tmp_path: Path,
) -> None:
    """With one window for all siblings both checks of the test above fail."""
    environment = EXACT | probing.environment(logits=True, chain=True)
    with open_stage(
        launch,
        tmp_path,
        hybrid_target,
        tiny_drafter,
        environment=environment,
        max_mamba_cache_size=STATES,
        speculative_ddtree_budget=64,
    ) as stage:
        answers = play(stage, scripted, known, **SECOND_CHILD)
        assert answers != [known[rid][:NEW_TOKENS] for rid in scripted]
        rid = RIDS[0]
        first = stage.steps()[rid][:1]
        assert worst_logit_error(hybrid_oracle, scripted[rid], known[rid], first) > 1e-2


def test_every_request_of_a_batch_may_accept_a_different_length(
    stage: Stage, scripted: dict[str, list[int]], known: dict[str, list[int]]
) -> None:
    lengths = [1, 3, 5, 12, 16]
    answers = play(stage, scripted, known, accept=lengths, ranks=[0, 1, 0])
    assert answers == [known[rid][:NEW_TOKENS] for rid in scripted]


def test_the_first_step_after_prefill_may_accept_the_whole_depth(
    stage: Stage, scripted: dict[str, list[int]], known: dict[str, list[int]]
) -> None:
    answers = play(stage, scripted, known, accept=[16])
    assert answers == [known[rid][:NEW_TOKENS] for rid in scripted]
    assert all(steps[0]["accept_len"] == 16 for steps in stage.steps().values())


def test_a_tree_may_have_fewer_nodes_than_the_width(
    stage: Stage, scripted: dict[str, list[int]], known: dict[str, list[int]]
) -> None:
    answers = play(stage, scripted, known, accept=[9], nodes=5)
    assert answers == [known[rid][:NEW_TOKENS] for rid in scripted]
    assert {len(step["tokens"]) for steps in stage.steps().values() for step in steps} == {6}


def test_unproven_family_runs_at_the_users_risk_and_loudly(
    launch: Launch,
    hybrid_target: Path,
    tiny_drafter: Path,
    hybrid_oracle: GreedyOracle,
) -> None:
    """On SGLang's state per node, here with a GDN target that is taken for another family."""
    prompts = mixed_prompts(8, seed=29)
    with launch(
        hybrid_target,
        environment=EXACT | probing.environment(unproven=True),
        max_mamba_cache_size=STATES,
        speculative_algorithm="DDTREE",
        speculative_draft_model_path=tiny_drafter,
        speculative_ddtree_budget=16,
        speculative_ddtree_allow_hybrid_unsafe=True,
    ) as server:
        assert server.server_info()["speculative_ddtree_allow_hybrid_unsafe"] is True
        for prompt, text in zip(prompts, server.greedy(prompts, 60), strict=True):
            assert hybrid_oracle.chooses(prompt, text)
        log = server.log()
    assert "DDTREE serves a target with unproven Gated DeltaNet (GDN) layers at the user's risk" in log
    assert "DDTREE records the inputs of GDN layers" not in log


def test_record_that_does_not_fit_is_refused_with_numbers_that_do(
    launch: Launch, hybrid_target: Path, tiny_drafter: Path
) -> None:
    with (
        pytest.raises(ServerFailed) as caught,
        launch(
            hybrid_target,
            environment=EXACT,
            speculative_algorithm="DDTREE",
            speculative_draft_model_path=tiny_drafter,
            speculative_ddtree_budget=64,
            max_running_requests=4_000_000,
        ),
    ):
        pass
    found = re.search(
        r"DDTREE cannot start: the recurrent layers need [\d.]+ GiB for 4000000 running requests .*"
        r"What would fit: .*--max-running-requests (\d+) at budget 64",
        str(caught.value),
    )
    assert found is not None, str(caught.value)[-2000:]
    assert 0 < int(found[1]) < 4_000_000

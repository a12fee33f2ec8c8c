"""DDTREE on targets with Gated DeltaNet layers: the recurrent state follows the accepted node."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from e2e import probing
from e2e.conftest import Launch
from e2e.hf import GreedyOracle
from e2e.hybrid_checkpoints import EXACT, STATES, make_hybrid_target
from e2e.prompts import mixed_prompts
from e2e.serving import Server
from e2e.staging import NEW_TOKENS, Stage, open_stage, payload
from sglang_ddtree.demo.server import ServerFailed

BLOCK = 16
PROMPTS = mixed_prompts(40, seed=21)
LONG = 300


@pytest.fixture(scope="module")
def target(checkpoint_root: Path) -> Path:
    return make_hybrid_target(checkpoint_root / "hybrid", "qwen3_5")


@pytest.fixture(scope="module")
def hybrid_oracle(target: Path) -> GreedyOracle:
    return GreedyOracle(target)


@pytest.fixture(scope="module")
def texts(hybrid_oracle: GreedyOracle) -> list[list[int]]:
    """The first of them in full, by another implementation; `assert_greedy` checks the others."""
    return [hybrid_oracle.generate(prompt, 60) for prompt in PROMPTS[:4]]


def assert_greedy(oracle: GreedyOracle, server: Server, prompts: list[list[int]], count: int) -> list[Any]:
    params = {"temperature": 0, "max_new_tokens": count, "ignore_eos": True}
    answers = server.generate([{"input_ids": prompt, "sampling_params": params} for prompt in prompts])
    for prompt, answer in zip(prompts, answers, strict=True):
        assert len(answer["output_ids"]) == count
        assert oracle.chooses(prompt, answer["output_ids"])
    return answers


# -- identity

BUDGETS = [(1, 6), (7, 6), (8, 6), (9, 6), (16, 40), (33, 6), (64, 6)]


@pytest.mark.parametrize(("budget", "prompts"), BUDGETS)
def test_ddtree_equals_plain_decoding(
    launch: Launch,
    target: Path,
    tiny_drafter: Path,
    hybrid_oracle: GreedyOracle,
    texts: list[list[int]],
    budget: int,
    prompts: int,
) -> None:
    identity(launch, target, tiny_drafter, hybrid_oracle, texts, budget, PROMPTS[:prompts])


@pytest.mark.slow
@pytest.mark.parametrize("budget", [budget for budget, prompts in BUDGETS if prompts < 40])
def test_ddtree_equals_plain_decoding_on_all_prompts(
    launch: Launch,
    target: Path,
    tiny_drafter: Path,
    hybrid_oracle: GreedyOracle,
    texts: list[list[int]],
    budget: int,
) -> None:
    identity(launch, target, tiny_drafter, hybrid_oracle, texts, budget, PROMPTS)


def identity(
    launch: Launch,
    target: Path,
    drafter: Path,
    oracle: GreedyOracle,
    texts: list[list[int]],
    budget: int,
    prompts: list[list[int]],
) -> None:
    with launch(
        target,
        environment=EXACT,
        max_mamba_cache_size=STATES,
        speculative_algorithm="DDTREE",
        speculative_draft_model_path=drafter,
        speculative_ddtree_budget=budget,
        max_total_tokens=16384,
        chunked_prefill_size=64,
    ) as server:
        answers = assert_greedy(oracle, server, prompts, LONG)
        log = server.log()
    for text, answer in zip(texts, answers, strict=False):
        assert answer["output_ids"][: len(text)] == text
    # Every step has rejected a draft unless its path is as deep as a path can be.
    metas = [answer["meta_info"] for answer in answers]
    rejections = [
        meta["spec_verify_ct"] - meta["spec_num_correct_drafts"] // min(budget, BLOCK - 1) for meta in metas
    ]
    # With a single node many drafts are the whole tree.
    assert min(rejections) > (100 if budget > 1 else 50)
    assert len({answer["meta_info"]["spec_verify_ct"] for answer in answers}) > 1
    assert sum(answer["meta_info"]["spec_num_correct_drafts"] for answer in answers) > LONG / 10
    assert "DDTREE records the inputs of GDN layers" in log


def test_qwen3_next_without_a_checkpoint_buffer(
    launch: Launch, checkpoint_root: Path, tiny_drafter: Path
) -> None:
    target = make_hybrid_target(checkpoint_root / "next", "qwen3_next")
    with launch(
        target,
        environment=EXACT,
        max_mamba_cache_size=STATES,
        speculative_algorithm="DDTREE",
        speculative_draft_model_path=tiny_drafter,
        speculative_ddtree_budget=16,
        mamba_radix_cache_strategy="no_buffer",
        disable_overlap_schedule=True,
    ) as server:
        info = server.server_info()
        assert (info["mamba_radix_cache_strategy"], info["disable_overlap_schedule"]) == ("no_buffer", True)
        assert_greedy(GreedyOracle(target), server, PROMPTS[:8], 100)


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
    launch: Launch, target: Path, tiny_drafter: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    environment = EXACT | probing.environment(logits=True)
    with open_stage(
        launch,
        tmp_path_factory.mktemp("hybrid-stage"),
        target,
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
    target: Path,
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
        target,
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


# -- refusals at startup; those of families and sizes are unit tests

FLAGS = {"speculative_algorithm": "DDTREE", "environment": EXACT, "max_mamba_cache_size": STATES}


def refusal(launch: Launch, target: Path, drafter: Path, **options: Any) -> str:
    with (
        pytest.raises(ServerFailed) as caught,
        launch(target, speculative_draft_model_path=drafter, **FLAGS, **options),
    ):
        pass
    return str(caught.value)


def test_record_that_does_not_fit_is_refused_with_numbers_that_do(
    launch: Launch, target: Path, tiny_drafter: Path
) -> None:
    text = refusal(
        launch,
        target,
        tiny_drafter,
        speculative_ddtree_budget=64,
        max_running_requests=4_000_000,
    )
    found = re.search(
        r"DDTREE cannot start: the recurrent layers need [\d.]+ GiB for 4000000 running requests .*"
        r"What would fit: .*--max-running-requests (\d+) at budget 64",
        text,
    )
    assert found is not None, text[-2000:]
    assert 0 < int(found[1]) < 4_000_000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"mamba_track_interval": 16, "speculative_ddtree_budget": 16},
            "--mamba-track-interval 16: it must be at least the verify width, 17",
        ),
        (
            {"speculative_ddtree_budget": 129},
            "--speculative-ddtree-budget 129: a target with GDN layers is verified up to 129 tokens wide",
        ),
        ({"linear_attn_verify_backend": "triton"}, "--linear-attn-verify-backend triton: GDN layers are"),
    ],
)
def test_limits_are_refused_by_name(
    launch: Launch, target: Path, tiny_drafter: Path, changes: dict[str, Any], message: str
) -> None:
    assert message in refusal(launch, target, tiny_drafter, **changes)


def test_unproven_family_is_refused_by_name(
    launch: Launch, tiny_target: Path, tiny_drafter: Path, tmp_path: Path
) -> None:
    config = json.loads((tiny_target / "config.json").read_text())
    config |= {"architectures": ["FalconH1ForCausalLM"], "model_type": "falcon_h1"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    text = refusal(launch, tmp_path, tiny_drafter, skip_tokenizer_init=True)
    assert "with Mamba (FalconH1Config) layers: it is not proven" in text
    assert "--speculative-ddtree-allow-hybrid-unsafe" in text

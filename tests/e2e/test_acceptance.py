"""The demo pair accepts what it was measured to accept, and the server's steps are the oracle's steps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from e2e import probing
from e2e.conftest import Launch
from e2e.hf import GreedyOracle
from e2e.oracle import Drafter, Step, greedy_steps

DATA = Path(__file__).parents[1] / "data"
NEW_TOKENS = 128
STOP = 2  # <|im_end|>
CAP = 16
ORACLE_PROMPTS = (0, 5, 11, 17, 22, 28, 34, 40)
# Paths whose score is this close to the worst one kept may differ: the sum is float32 here, float64 there.
TIE = 1e-3

pytestmark = pytest.mark.demo


@pytest.fixture(scope="module")
def prompts(demo_target: Path) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(demo_target)
    rows = [json.loads(line) for line in (DATA / "eval_prompts.jsonl").read_text().splitlines()]
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": row["prompt"]}], add_generation_prompt=True, return_dict=False
        )
        for row in rows
    ]


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    """Tokens per target forward of an independent implementation in float32."""
    return json.loads((DATA / "acceptance.json").read_text())["float32_H200"]


@pytest.fixture(scope="module")
def greedy_oracle(demo_target: Path) -> GreedyOracle:
    return GreedyOracle(demo_target)


def options(drafter: Path, **changes: Any) -> dict[str, Any]:
    return {
        "speculative_draft_model_path": drafter,
        "max_running_requests": 16,
        "max_total_tokens": 16384,
        "threads": 2,
        **changes,
    }


def ask(server: Any, prompts: list[list[int]], **sampling: Any) -> list[dict[str, Any]]:
    params = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "stop_token_ids": [STOP], **sampling}
    requests = [
        {"rid": f"prompt-{index}-{params['temperature']}", "input_ids": prompt, "sampling_params": params}
        for index, prompt in enumerate(prompts)
    ]
    # In batches that a slow machine answers within the client's timeout.
    answers = []
    for first in range(0, len(requests), 16):
        answers += server.generate(requests[first : first + 16])
    return answers


def tokens_per_forward(answers: list[dict[str, Any]]) -> float:
    meta = [answer["meta_info"] for answer in answers]
    return 1 + sum(m["spec_num_correct_drafts"] for m in meta) / sum(m["spec_verify_ct"] for m in meta)


@pytest.fixture(scope="module")
def ddtree(
    request: pytest.FixtureRequest,
    launch: Launch,
    demo_target: Path,
    demo_drafter: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[int, Any, Path]]:
    trace = tmp_path_factory.mktemp("trace") / "trace"
    with launch(
        demo_target,
        environment=probing.environment(trace=trace),
        speculative_algorithm="DDTREE",
        speculative_ddtree_budget=request.param,
        **options(demo_drafter),
    ) as server:
        yield request.param, server, trace


@pytest.mark.parametrize("ddtree", [8, pytest.param(32, marks=pytest.mark.slow), 64], indirect=True)
def test_steps_equal_the_oracles(
    ddtree: tuple[int, Any, Path], prompts: list[list[int]], greedy_oracle: GreedyOracle, demo_drafter: Path
) -> None:
    budget, server, trace = ddtree
    answers = ask(server, [prompts[index] for index in ORACLE_PROMPTS])
    steps = probing.read_trace(trace)
    for number, index in enumerate(ORACLE_PROMPTS):
        text = answers[number]["output_ids"]
        assert greedy_oracle.chooses(prompts[index], text)
        oracle = greedy_steps(
            greedy_oracle.model, Drafter(demo_drafter), prompts[index], text, budget=budget, cap=CAP
        )
        assert_same_steps(oracle, steps[f"prompt-{number}-0"], len(text))


@pytest.mark.slow
@pytest.mark.parametrize("budget", [16, 32, 64])
def test_acceptance_equals_the_measured(
    launch: Launch,
    demo_target: Path,
    demo_drafter: Path,
    prompts: list[list[int]],
    measured: dict[str, Any],
    budget: int,
) -> None:
    with launch(
        demo_target,
        speculative_algorithm="DDTREE",
        speculative_ddtree_budget=budget,
        **options(demo_drafter),
    ) as server:
        greedy = tokens_per_forward(ask(server, prompts))
        name = f"tree{budget}_T0" if budget == CAP else f"tree{budget}_cap{CAP}_T0"
        assert greedy == pytest.approx(measured[name]["all"]["mean"], rel=0.01)
        if budget == 32:
            sampled = tokens_per_forward(ask(server, prompts, temperature=1.0))
            assert sampled == pytest.approx(measured["tree32_T1"]["all"]["mean"], rel=0.05)


def assert_same_steps(oracle: list[Step], served: list[dict[str, Any]], length: int) -> None:
    assert sum(step.accept_len for step in oracle) > length - 2 - CAP
    assert [step.accept_len for step in oracle] == [step["accept_len"] for step in served[: len(oracle)]]
    for expected, found in zip(oracle, served, strict=False):
        scores = dict(zip(expected.paths, expected.scores, strict=True))
        different = set(expected.paths) ^ set(probing.node_paths(found))
        worst = expected.scores[-1]
        assert all(abs(scores.get(path, worst) - worst) < TIE for path in different)
        assert len(different) <= 4


@pytest.mark.slow
def test_dflash_acceptance_equals_the_measured(
    launch: Launch, demo_target: Path, demo_drafter: Path, prompts: list[list[int]], measured: dict[str, Any]
) -> None:
    with launch(demo_target, speculative_algorithm="DFLASH", **options(demo_drafter)) as server:
        answers = ask(server, prompts)
    assert tokens_per_forward(answers) == pytest.approx(measured["chain_T0"]["all"]["mean"], rel=0.01)


def test_a_prefix_hit_also_hits_the_draft(
    launch: Launch, demo_target: Path, demo_drafter: Path, prompts: list[list[int]]
) -> None:
    long_prompt = prompts[0] + prompts[20] + prompts[33]
    with launch(demo_target, speculative_algorithm="DDTREE", **options(demo_drafter)) as server:
        first = ask(server, [long_prompt])
        second = ask(server, [long_prompt])
    assert first[0]["meta_info"]["cached_tokens"] == 0
    assert second[0]["meta_info"]["cached_tokens"] >= len(long_prompt) - 1
    assert second[0]["output_ids"] == first[0]["output_ids"]
    assert tokens_per_forward(first) > 1.5
    assert tokens_per_forward(second) == pytest.approx(tokens_per_forward(first), rel=0.05)

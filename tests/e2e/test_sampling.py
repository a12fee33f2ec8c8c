"""Temperature above 0: what is emitted is distributed as plain decoding's, whatever the tree."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from e2e import checkpoints, probing
from e2e.conftest import Launch
from e2e.hf import GreedyOracle

VOCABULARY = 8
SAMPLES = 10_000
PROMPT = [4, 5, 6, 7, 4, 6]
P_VALUE = 0.001

Triple = tuple[int, int, int]


@pytest.fixture(scope="module")
def target(checkpoint_root: Path) -> Path:
    return checkpoints.make_target(
        checkpoint_root / "small-vocabulary", vocabulary=VOCABULARY, hot_tokens=(4, 5, 6, 7), hot_scale=0.1
    )


@pytest.fixture(scope="module")
def drafter(checkpoint_root: Path) -> Path:
    return checkpoints.make_drafter(
        checkpoint_root / "small-vocabulary-drafter", block_size=8, vocabulary=VOCABULARY
    )


@pytest.fixture(scope="module")
def exact(target: Path) -> dict[Triple, float]:
    """The joint distribution of the first three tokens, from Hugging Face's softmax."""
    return joint_distribution(GreedyOracle(target))


@torch.inference_mode()
def joint_distribution(oracle: GreedyOracle) -> dict[Triple, float]:
    tokens = range(VOCABULARY)
    rows = torch.tensor([[*PROMPT, a, b] for a in tokens for b in tokens])
    probs = oracle.model(rows).logits[:, len(PROMPT) - 1 :].double().softmax(-1)
    joint: dict[Triple, float] = {}
    for row, (a, b) in zip(probs, ((a, b) for a in tokens for b in tokens), strict=True):
        for c in tokens:
            joint[a, b, c] = float(row[0, a] * row[1, b] * row[2, c])
    return joint


def sample(
    launch: Launch, target: Path, drafter: Path, budget: int | None, count: int = SAMPLES, **environment: str
) -> tuple[list[Triple], int]:
    """`count` samples, and how many drafted tokens they accepted."""
    speculative: dict[str, Any] = {}
    if budget is not None:
        speculative = {
            "speculative_algorithm": "DDTREE",
            "speculative_draft_model_path": drafter,
            "speculative_ddtree_budget": budget,
        }
    with launch(
        target,
        environment=environment,
        skip_tokenizer_init=True,
        max_running_requests=64,
        max_total_tokens=20_000,
        **speculative,
    ) as server:
        params = {"temperature": 1.0, "max_new_tokens": 3, "ignore_eos": True}
        answers = server.post("/generate", {"input_ids": [PROMPT] * count, "sampling_params": params}, 900)
    accepted = sum(answer["meta_info"].get("spec_num_correct_drafts", 0) for answer in answers)
    return [tuple(answer["output_ids"]) for answer in answers], accepted


def chi_square_p(samples: Sequence[Triple], expected: dict[Triple, float]) -> float:
    """P-value of Pearson's test; cells with fewer than five expected samples are merged into one."""
    counts = Counter(samples)
    statistic, cells, rest_seen, rest_expected = 0.0, 0, 0, 0.0
    for cell, probability in expected.items():
        mean = len(samples) * probability
        if mean < 5:
            rest_seen, rest_expected = rest_seen + counts[cell], rest_expected + mean
        else:
            statistic, cells = statistic + (counts[cell] - mean) ** 2 / mean, cells + 1
    if rest_expected > 0:
        statistic, cells = statistic + (rest_seen - rest_expected) ** 2 / rest_expected, cells + 1
    half_freedom, half_statistic = (
        torch.tensor((cells - 1) / 2.0).double(),
        torch.tensor(statistic / 2).double(),
    )
    return float(torch.special.gammaincc(half_freedom, half_statistic))


def test_the_p_value_is_the_chi_square_distributions() -> None:
    # Two cells, one degree of freedom: the upper tail is erfc(sqrt(x / 2)).
    share = SAMPLES // 2 + 100
    samples = [(0, 0, 0)] * share + [(0, 0, 1)] * (SAMPLES - share)
    expected = {(0, 0, 0): 0.5, (0, 0, 1): 0.5}
    statistic = 2 * 100**2 / (SAMPLES / 2)
    assert chi_square_p(samples, expected) == pytest.approx(math.erfc(math.sqrt(statistic / 2)))


def test_plain_sampling_passes_the_test_itself(
    launch: Launch, target: Path, drafter: Path, exact: dict[Triple, float]
) -> None:
    samples, _ = sample(launch, target, drafter, None)
    assert len(samples) == SAMPLES
    assert chi_square_p(samples, exact) > P_VALUE


@pytest.mark.parametrize("budget", [1, 24])
def test_the_first_three_tokens_are_distributed_as_plain_decodings(
    launch: Launch, target: Path, drafter: Path, exact: dict[Triple, float], budget: int
) -> None:
    samples, accepted = sample(launch, target, drafter, budget)
    assert len(samples) == SAMPLES
    assert chi_square_p(samples, exact) > P_VALUE
    # The tree was at work: steps that emit more than one token.
    assert accepted > SAMPLES / 50


def test_argmax_acceptance_would_fail_the_same_test(
    launch: Launch, target: Path, drafter: Path, exact: dict[Triple, float]
) -> None:
    samples, _ = sample(launch, target, drafter, 8, SAMPLES // 10, **probing.environment(argmax=True))
    assert chi_square_p(samples, exact) < 1e-6

"""Exact sampling distributions of a small vocabulary, and whether draws follow them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch

VOCAB = 12
NO_TOP_K = 1 << 30


@dataclass(frozen=True)
class Request:
    temperature: float = 1.0
    top_k: int = NO_TOP_K
    top_p: float = 1.0
    min_p: float = 0.0


LOGITS = [1.3, -0.4, 0.9, 2.1, -1.2, 0.2, 0.0, 1.7, -2.0, 0.6, -0.7, 1.1]
COMBINATIONS = [
    Request(),
    Request(temperature=0.6),
    Request(temperature=1.7),
    Request(top_k=4),
    Request(top_p=0.7),
    Request(min_p=0.3),
    Request(temperature=0.8, top_k=6, top_p=0.8),
    Request(temperature=1.3, top_k=8, top_p=0.9, min_p=0.15),
    Request(top_p=0.55, min_p=0.1),
]


def parameters_of(requests: Sequence[Request]) -> tuple[torch.Tensor, ...]:
    """temperatures [B, 1], top_ks, top_ps and min_ps [B]."""
    return (
        torch.tensor([[r.temperature] for r in requests]),
        torch.tensor([r.top_k for r in requests], dtype=torch.int32),
        torch.tensor([r.top_p for r in requests]),
        torch.tensor([r.min_p for r in requests]),
    )


def distribution(logits: list[float], request: Request) -> list[float]:
    """The exact distribution, token by token in float64."""
    scaled = [value / request.temperature for value in logits]
    top = max(scaled)
    weights = [math.exp(value - top) for value in scaled]
    total = math.fsum(weights)
    probs = [weight / total for weight in weights]
    order = sorted(range(len(probs)), key=lambda token: -probs[token])
    kept = [0.0] * len(probs)
    mass_before = 0.0
    for rank, token in enumerate(order):
        if (
            rank < request.top_k
            and mass_before <= request.top_p
            and probs[token] >= request.min_p * probs[order[0]]
        ):
            kept[token] = probs[token]
        mass_before += probs[token]
    total = math.fsum(kept)
    return [value / total for value in kept]


def p_value(counts: list[int], probs: list[float]) -> float:
    """Chi-square p-value by the Wilson-Hilferty approximation; 0 where an impossible token was drawn."""
    draws = sum(counts)
    if any(count and not prob for count, prob in zip(counts, probs, strict=True)):
        return 0.0
    cells = [(count, prob * draws) for count, prob in zip(counts, probs, strict=True) if prob]
    freedom = len(cells) - 1
    if freedom == 0:
        return 1.0
    statistic = sum((count - expected) ** 2 / expected for count, expected in cells)
    spread = 2 / (9 * freedom)
    deviation = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return 1 - statistics.NormalDist().cdf(deviation)


def assert_follows(tokens: torch.Tensor, request: Request, case: object, least: float = 0.001) -> None:
    """Draws of `request` over LOGITS follow its distribution, and not that of a temperature 1.25 times as high."""
    counts = torch.bincount(tokens, minlength=VOCAB).tolist()
    assert p_value(counts, distribution(LOGITS, request)) > least, (case, counts)
    other = Request(request.temperature * 1.25, request.top_k, request.top_p, request.min_p)
    assert p_value(counts, distribution(LOGITS, other)) < 0.001, (case, counts)

"""Where a text leaves plain decoding's, and whether rounding can explain it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..bench.checks import first_difference
from .client import PlainAnswer

# Nats. A gap between two log-probabilities is one between two logits. Logits between 16 and 32 are 2**-3 apart in
# bfloat16 and 2**-6 in float16; the roundings of all layers may move each of the two by two such steps (up to three in
# all were seen in 64 texts, benchmarks/results/2026-11-30-h200-attention). Float32 sums differ by about 1e-5, so that a
# gap above 1e-3 is none of theirs.
BOUNDS = {"bfloat16": 0.5, "float16": 0.0625, "float32": 0.001}
_SHORT_NAMES = {"half": "float16", "float": "float32"}


@dataclass(frozen=True)
class Divergence:
    """The first output position (0 is the first token) at which a text differs from plain decoding's.

    A token is None where that text had ended. `gap` is how far the other's token is below plain decoding's,
    `top_gap` how far the second best token is, both in nats under the plain server's distribution; None where plain
    decoding or the other had ended.
    """

    position: int
    plain: int | None
    other: int | None
    second: int | None
    gap: float | None
    top_gap: float | None
    is_near_tie: bool


def default_bound(dtype: str) -> float:
    """The largest gap of a near tie, in nats, for a server's ``dtype``; bfloat16's for "auto" and unknown ones."""
    return BOUNDS.get(_SHORT_NAMES.get(dtype, dtype), BOUNDS["bfloat16"])


def compare(
    plain: PlainAnswer, other: Sequence[int], bound: float, gap_of: Callable[[int, int], float]
) -> Divergence | None:
    """The first difference of `other`, classified; None where there is none.

    It is a near tie when the other's token is at most `bound` nats below plain decoding's, else a fault.
    ``gap_of(position, token)`` is asked where that token is not one of the two most probable.
    """
    position = first_difference(other, plain.output_ids)
    if position is None:
        return None
    mine = plain.chosen[position] if position < len(plain.chosen) else None
    theirs = other[position] if position < len(other) else None
    if mine is None or theirs is None:
        token = None if mine is None else mine.token
        return Divergence(position, token, theirs, None, None, None, is_near_tie=False)
    # Of two equally probable tokens either may be listed first.
    second = next(one for one in plain.top_two[position] if one.token != mine.token)
    top_gap = mine.logprob - second.logprob
    gap = top_gap if theirs == second.token else gap_of(position, theirs)
    return Divergence(position, mine.token, theirs, second.token, gap, top_gap, is_near_tie=gap <= bound)

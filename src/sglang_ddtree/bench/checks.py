"""Whether the texts that were timed are worth comparing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

REPETITION_LIMIT = 32

Ids = Sequence[int]


@dataclass(frozen=True)
class Identity:
    """Greedy answers against plain decoding's to the same prompts.

    `differences` maps the index of a prompt to the first output position that differs (0 is the first token).
    """

    compared: int
    differences: dict[int, int]

    @property
    def identical(self) -> int:
        return self.compared - len(self.differences)

    @property
    def earliest(self) -> int | None:
        return min(self.differences.values(), default=None)


def identity(answers: Sequence[Ids], plain: Sequence[Ids]) -> Identity:
    """Compare the output ids of one arm with plain decoding's, prompt by prompt."""
    found = {}
    for index, (one, other) in enumerate(zip(answers, plain, strict=True)):
        position = first_difference(one, other)
        if position is not None:
            found[index] = position
    return Identity(len(answers), found)


def first_difference(one: Ids, other: Ids) -> int | None:
    """The first position at which two sequences differ, the shorter one's length where it is a prefix."""
    for position, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return position
    return None if len(one) == len(other) else min(len(one), len(other))


def longest_run(ids: Ids) -> int:
    """The length of the longest run of one token: a text stuck on it is drafted too easily to be a measure."""
    return max((sum(1 for _ in group) for _, group in groupby(ids)), default=0)

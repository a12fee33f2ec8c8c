"""Totals of a server's steps, from what its host knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

PHASES = ("window", "draft", "layout", "verify", "accept", "commit")
"""Of a step, in its order. The draft builds the tree: on CUDA both are one graph."""


@dataclass
class AcceptedDrafts:
    """Verified trees since the start, by the draft tokens kept; one tree is one request in one step.

    `histogram` counts at index n the trees of which n draft tokens were kept.
    """

    steps: int = 0
    trees: int = 0
    histogram: list[int] = field(default_factory=list)

    def add(self, kept: Sequence[int]) -> None:
        """One step; `kept` has the draft tokens kept per request."""
        self.steps += 1
        self.trees += len(kept)
        for number in kept:
            if number >= len(self.histogram):
                self.histogram += [0] * (number + 1 - len(self.histogram))
            self.histogram[number] += 1

    def by_depth(self) -> list[int]:
        """Trees whose path reached depth 1, 2, ...: the draft tokens accepted at each depth."""
        found, reached = [], 0
        for count in reversed(self.histogram[1:]):
            reached += count
            found.append(reached)
        return found[::-1]


@dataclass(frozen=True)
class Totals:
    """Everything that is told; all but `expected_tokens` only grow.

    Attributes:
        steps: verify width -> steps launched.
        switches: changes of the width that a batch size runs, trials not counted.
        expected_tokens: verify width -> tokens per request and step; empty where the width is fixed.
        trees: trees verified.
        accepted: draft tokens accepted at depth 1, 2, ...
        refused: field of a request -> requests refused for it.
        timed_steps: steps of which the time is known.
        phase_seconds: phase -> its seconds in the timed steps.
    """

    steps: Mapping[int, int]
    switches: int
    expected_tokens: Mapping[int, float]
    trees: int
    accepted: Sequence[int]
    refused: Mapping[str, int]
    timed_steps: int
    phase_seconds: Mapping[str, float]


def describe_widths(before: Mapping[int, int], now: Mapping[int, int]) -> str:
    """ "verify width: 8 x 31, 64 x 9": the steps of each width between two totals; "" where there was none."""
    taken = {width: count - before.get(width, 0) for width, count in sorted(now.items())}
    ran = ", ".join(f"{width} x {count}" for width, count in taken.items() if count > 0)
    return f"verify width: {ran}" if ran else ""

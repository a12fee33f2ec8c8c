"""A synthetic server: seeded acceptance and times, and what every fixed width would have done on the same steps.

It shares nothing with the code under test: acceptance is drawn as paths of slots, and the oracle counts the tokens
and milliseconds of each width step by step.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from sglang_ddtree.width import WidthPolicy

WIDTHS = (8, 16, 32, 64)
SIZES = (1, 2, 4, 8, 16, 32, 64)
MAX_DEPTH = 15
Table = dict[tuple[int, int], float]


def table(rows: dict[int, Sequence[float]]) -> Table:
    return {(size, width): ms for size, row in rows.items() for width, ms in zip(WIDTHS, row, strict=True)}


# An 8B model on an H200: batches 1, 4 and 8 from width 16 on as measured, the rest drawn on from them.
LARGE_MODEL = table(
    {
        1: (7.4, 7.5, 7.7, 8.2),
        2: (7.45, 7.6, 8.2, 9.3),
        4: (7.6, 7.9, 8.9, 10.9),
        8: (8.3, 9.5, 12.0, 17.6),
        16: (10.2, 12.9, 18.6, 30.5),
        32: (13.5, 19.0, 30.5, 54.0),
        64: (20.5, 32.0, 55.0, 101.0),
    }
)
# The same, as a server captures it: draft and verify graphs at startup and 0.4 ms + 0.11 ms per request around them; no
# graph where a cell is missing (benchmarks/results/2026-11-30-h200-attention, batch 1 to 64).
MEASURED_GRAPHS: Table = {
    **dict(zip([(1, width) for width in WIDTHS], (5.90, 5.73, 5.95, 6.05), strict=True)),
    **dict(zip([(2, width) for width in WIDTHS], (5.82, 5.95, 6.10, 6.56), strict=True)),
    **dict(zip([(4, width) for width in WIDTHS], (6.01, 6.14, 6.61, 7.82), strict=True)),
    **dict(zip([(8, width) for width in WIDTHS], (6.31, 6.75, 7.95, 12.14), strict=True)),
    **dict(zip([(16, width) for width in WIDTHS[:3]], (7.14, 8.34, 12.54), strict=True)),
    **dict(zip([(32, width) for width in WIDTHS[:2]], (9.86, 13.97), strict=True)),
    **dict(zip([(64, width) for width in WIDTHS[:2]], (17.19, 27.73), strict=True)),
}
MEASURED = {(size, width): 0.4 + 0.11 * size + ms for (size, width), ms in MEASURED_GRAPHS.items()}
CHAIN_MS = {1: 6.98, 2: 7.19, 4: 7.34, 8: 8.72, 16: 11.93, 32: 20.29, 64: 39.04}
"""DFLASH's steps in the same run."""
CHAIN_TOKENS = 2.48
"""Tokens of the chain per step on the text of which `REAL` is a model."""
# A small model: what its GPU takes, which is all its priors know, and the host's 4 ms that no step undercuts.
SMALL_GPU = {(size, width): 0.9 + 0.006 * size * width + 0.002 * width for size in SIZES for width in WIDTHS}
SMALL_MODEL = {key: max(4.0, ms) for key, ms in SMALL_GPU.items()}


# The demo pair's graphs as a server measured them (same folder), and steps that the host makes 4 ms long.
DEMO_GRAPHS = table(
    {
        1: (1.04, 1.06, 1.10, 1.09),
        4: (1.09, 1.12, 1.17, 1.23),
        16: (1.29, 1.34, 1.45, 1.70),
        64: (1.90, 2.19, 2.79, 4.12),
    }
)
DEMO_MODEL = {key: max(4.0, 0.2 + ms) for key, ms in DEMO_GRAPHS.items()}


def scaled(ms: Table, factor: float) -> Table:
    return {key: factor * value for key, value in ms.items()}


@dataclass(frozen=True)
class Text:
    """How acceptance falls on the slots: accepted nodes per doubling of the slot, below slot 8 and from it on.

    With one rate everywhere tokens grow linearly in log2(width). A step's own luck, of mean 1, multiplies the
    rates, so that what the widths emit goes together as it does on real text.
    """

    below_8: float
    from_8: float

    def path(self, draw: random.Random) -> list[int]:
        """Slots of the accepted nodes, ascending; the root's is left out."""
        luck = draw.gammavariate(2.0, 0.5)
        slots: list[int] = []
        position = 0.0
        for _ in range(MAX_DEPTH):
            position = self._forward(position, draw.expovariate(luck))
            if position > 10:
                break
            slots.append(max(int(2**position), slots[-1] + 1 if slots else 1))
        return slots

    def _forward(self, position: float, nodes: float) -> float:
        """The log2 slot up to which `nodes` more nodes are expected, from `position` on."""
        knee = max(0.0, 3.0 - position) * self.below_8
        if nodes < knee:
            return position + nodes / self.below_8
        return max(position, 3.0) + (nodes - knee) / self.from_8


REAL = Text(below_8=0.64, from_8=0.27)
"""Tokens 2.86, 3.14, 3.41, 3.67 at the widths, as measured."""
FLAT = Text(below_8=0.64, from_8=0.02)
"""A drafter that a wide tree does not help."""
STEEP = Text(below_8=1.6, from_8=0.5)
"""A drafter whose chains fill a narrow tree: 4.9 tokens at width 8, 6.2 at 16."""


@dataclass(frozen=True)
class Step:
    """One decode step as every width would have run it."""

    batch_size: int
    totals: tuple[int, ...]
    times: tuple[float, ...]


@lru_cache(maxsize=64)
def emitted(text: Text, batch_size: int, count: int, seed: int) -> list[tuple[int, ...]]:
    """Tokens of all requests at each width, for `count` steps."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        paths = [text.path(draw) for _ in range(batch_size)]
        made.append(tuple(sum(1 + sum(slot < width for slot in path) for path in paths) for width in WIDTHS))
    return made


def steps(
    ms: Table, batch_size: int, *, seed: int, count: int = 2000, text: Text = REAL, noise: float = 0.03
) -> list[Step]:
    """`noise` is the spread of a step's time; besides, one step in fifty takes up to thrice as long."""
    draw = random.Random(seed + 1)
    size = min(size for size, _ in ms if size >= batch_size)
    made = []
    for totals in emitted(text, batch_size, count, seed):
        factor = draw.lognormvariate(0.0, noise) * (draw.uniform(1, 3) if draw.random() < 0.02 else 1)
        made.append(
            Step(batch_size, totals, tuple(ms.get((size, width), math.inf) * factor for width in WIDTHS))
        )
    return made


def uneven(run: Sequence[Step], seed: int, spread: float = 0.2, period: int = 60) -> list[Step]:
    """The same steps on a host whose pace changes every `period` steps or so, whatever the width."""
    draw = random.Random(seed)
    made, left, pace = [], 0, 1.0
    for step in run:
        if left == 0:
            left, pace = draw.randint(period // 2, 2 * period), draw.lognormvariate(0.0, spread)
        left -= 1
        made.append(Step(step.batch_size, step.totals, tuple(pace * ms for ms in step.times)))
    return made


def fixed_rate(run: Sequence[Step], width: int) -> float:
    """Tokens per ms of a server that always runs `width`."""
    at = WIDTHS.index(width)
    return sum(step.totals[at] for step in run) / sum(step.times[at] for step in run)


def best_fixed_rate(run: Sequence[Step], widths: Sequence[int] = WIDTHS) -> float:
    return max(fixed_rate(run, width) for width in widths)


@dataclass
class Outcome:
    """What a policy did on a run."""

    chosen: list[int] = field(default_factory=list)
    current: list[int] = field(default_factory=list)
    """The width that a trial leaves and comes back to; the chosen one on all other steps."""
    tokens: int = 0
    ms: float = 0.0

    @property
    def rate(self) -> float:
        return self.tokens / self.ms

    def usual(self) -> int:
        """The width that most steps of the second half ran."""
        return Counter(self.chosen[len(self.chosen) // 2 :]).most_common(1)[0][0]


def serve(policy: WidthPolicy, run: Sequence[Step], *, timed: bool = True, tally: int = 1) -> Outcome:
    """Run the policy. As under overlap scheduling, a step's results arrive after the next step was chosen.

    With `tally` above 1 totals are summed over so many steps, and told so many steps later.
    """
    outcome = Outcome()
    ran: list[tuple[Step, int]] = []
    for step in run:
        width = policy.choose(step.batch_size)
        if ran and timed:
            last, last_width = ran[-1]
            policy.costs.observe(last.batch_size, last_width, last.times[WIDTHS.index(last_width)])
        if len(ran) % tally == 0:
            end = len(ran) if tally == 1 else max(0, len(ran) - tally)
            tell_totals(policy, ran[max(0, end - tally) : end])
        ran.append((step, width))
        at = WIDTHS.index(width)
        size = policy.costs.captured_batch(step.batch_size)
        outcome.chosen.append(width)
        outcome.current.append(policy.snapshot()["width_per_batch"][size])
        outcome.tokens += step.totals[at]
        outcome.ms += step.times[at]
    return outcome


def tell_totals(policy: WidthPolicy, steps_run: Sequence[tuple[Step, int]]) -> None:
    """What steps gave, summed per width that ran; what wider widths would have given is hidden."""
    for width in WIDTHS:
        own = [step for step, ran in steps_run if ran == width]
        if own:
            seen = [
                sum(step.totals[at] for step in own) if other <= width else -1
                for at, other in enumerate(WIDTHS)
            ]
            policy.gains.observe(width, seen, sum(step.batch_size for step in own))

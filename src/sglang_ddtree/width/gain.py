"""Tokens that a request is expected to emit per step, for every verify width."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from .widths import checked_widths, index_of

HALF_LIFE = 512.0
"""Request-steps after which an observation counts half."""
PRIOR_TOKENS = 2.0
PRIOR_TOKENS_PER_DOUBLING = 0.28
"""The neutral prior: 2 + 0.28 log2(width) tokens, within 3 % of 2.86, 3.14, 3.41, 3.67, 3.89, 4.12 as measured at
widths 8 to 256. Only its growth matters for a choice: a tree's gain over a chain is much the same factor on easy
and hard text, greedy and sampled."""
DAMPING = 0.95
"""A doubling adds this much of what the doubling before it added; measured from 8 to 256: 0.28 to 0.23."""
PRIOR_WEIGHT = 16.0
"""Request-steps that the extrapolation counts for against observed ones."""
OPTIMISM = 2.0
"""Growth that nobody has seen might be this many times what is extrapolated: a drafter whose chains are accepted
whole grows faster from one width to the next than the prior's does."""


class GainEstimator:
    """Expected tokens per request and step at each width, from what the steps emitted.

    Nodes are in best-first order, so the tree of a narrower width is the first slots of a wider one, and the
    slots of an accepted path ascend: a step run at one width tells what every narrower one would have emitted.
    So the growth from each width to the next is estimated on its own, from the steps that saw both, where the
    luck of those steps cancels. A width that no step reached lately follows from the growth below it.

    Args:
        widths: verify widths, ascending, from 2.
        half_life: request-steps after which an observation counts half.

    Raises:
        ValueError: bad widths, a half-life that is not positive.
    """

    def __init__(self, widths: Sequence[int], *, half_life: float = HALF_LIFE) -> None:
        self.widths = checked_widths(widths)
        if not 0 < half_life < math.inf:
            raise ValueError(f"half_life must be a positive number of request-steps, got {half_life}")
        self._half_life = half_life
        self._doublings = [math.log2(wider / narrower) for narrower, wider in pairwise(self.widths)]
        count = len(self.widths)
        # Over the request-steps that reached a width, older ones forgotten: their number, the tokens of the next
        # narrower width (none below the narrowest), and what the width itself added to them.
        self._weights = [0.0] * count
        self._lower = [0.0] * count
        self._gained = [0.0] * count
        self._expected = [0.0] * count
        self._optimistic = [0.0] * count
        self._update()

    def observe(self, width: int, totals: Sequence[float], requests: int) -> None:
        """Note a step that ran at `width`.

        Args:
            width: tokens per request that the step verified.
            totals: [len(widths)], tokens that all requests together would have emitted at each width, the bonus
                tokens included. Entries of widths above `width` are not read.
            requests: requests of the step, padding not counted.

        Raises:
            ValueError: an unknown width, totals of another length, negative or descending ones, no request.
        """
        reached = index_of(width, self.widths) + 1
        if len(totals) != len(self.widths):
            raise ValueError(f"totals has {len(totals)} entries, expected {len(self.widths)}, one per width")
        if requests < 1:
            raise ValueError(f"requests must be at least 1, got {requests}")
        below = 0.0
        for at in range(reached):
            if not below <= totals[at] < math.inf:
                raise ValueError(
                    f"totals must be finite, from 0 and not descending up to width {width}, "
                    f"got {list(totals[:reached])} for widths {list(self.widths[:reached])}"
                )
            below = totals[at]
        kept = 0.5 ** (requests / self._half_life)
        below = 0.0
        for at in range(len(self.widths)):
            self._weights[at] *= kept
            self._lower[at] *= kept
            self._gained[at] *= kept
            if at < reached:
                self._weights[at] += requests
                self._lower[at] += below
                self._gained[at] += totals[at] - below
                below = totals[at]
        self._update()

    def expected(self, width: int) -> float:
        """Tokens per request and step at `width`, the bonus token included; never fewer than at a narrower one.

        Observed growth where there is some; where it is old or absent, `DAMPING` times the tokens per doubling
        of the width below, and the neutral prior's growth for the first two widths.

        Raises:
            ValueError: an unknown width.
        """
        return self._expected[index_of(width, self.widths)]

    def optimistic(self, width: int, current: int) -> float:
        """What `width` might give while steps run at `current`: tokens per request and step.

        As `expected`, with `OPTIMISM` times the extrapolated part of the growth above `current`.

        Raises:
            ValueError: an unknown width.
        """
        at, here = index_of(width, self.widths), index_of(current, self.widths)
        if at <= here:
            return self._expected[at]
        return self._expected[here] * self._optimistic[at] / self._optimistic[here]

    def is_observed(self, width: int) -> bool:
        """Whether `expected` rests on observation more than on extrapolation.

        Raises:
            ValueError: an unknown width.
        """
        return self._weights[index_of(width, self.widths)] >= PRIOR_WEIGHT

    def _update(self) -> None:
        prior = _prior_tokens(self.widths[0])
        expected = (self._gained[0] + PRIOR_WEIGHT * prior) / (self._weights[0] + PRIOR_WEIGHT)
        self._expected[0] = self._optimistic[0] = expected
        per_doubling = expected * PRIOR_TOKENS_PER_DOUBLING / prior
        for at, doublings in enumerate(self._doublings, start=1):
            # Growth as a factor of the tokens below: it outlives a change of the text's difficulty.
            lower = self._lower[at] + PRIOR_WEIGHT * expected
            extrapolated = PRIOR_WEIGHT * per_doubling * doublings / lower
            growth = self._gained[at] / lower + extrapolated
            per_doubling = DAMPING * expected * growth / doublings
            expected *= 1 + growth
            self._expected[at] = expected
            self._optimistic[at] = self._optimistic[at - 1] * (1 + growth + (OPTIMISM - 1) * extrapolated)


def _prior_tokens(width: int) -> float:
    return PRIOR_TOKENS + PRIOR_TOKENS_PER_DOUBLING * math.log2(width)

"""The verify width of the next decode step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .cost import CostTable
from .gain import GainEstimator
from .widths import checked_widths

MARGIN = 0.02
DWELL_STEPS = 8
TRIAL_STEPS = 8
TRIAL_INTERVAL = 256
EXPLORE_AFTER = 512
"""Steps of a bucket from which on the next narrower and the next wider width are tried even if nothing speaks for
them, unless they are measured: graphs may have been timed wrongly at startup."""
NEAR = 4 / 3
"""Buckets whose sizes differ by no more than this factor are like each other."""
MAX_TRIAL_LOSS = 0.005
"""Most of a bucket's tokens that trials may cost by their own estimates, so that they truly stay below 1 %: a trial
that lost much puts off the next."""


@dataclass
class _Bucket:
    """State of the batches that pad to the same captured size; steps are counted in the bucket.

    Attributes:
        width: the current width, which trials leave and come back to.
        steps_at_width: steps since it became current, trials not counted.
        trial: the width on trial, None between trials.
        trial_steps_left: steps of the trial that are still to run.
        tried: the width of the last trial, until the choice after it is made.
        next_trials: width -> step before which it is not tried again.
    """

    width: int
    steps: int = 0
    steps_at_width: int = 0
    trial: int | None = None
    trial_steps_left: int = 0
    tried: int | None = None
    next_trials: dict[int, int] = field(default_factory=dict)

    def may_try(self, width: int) -> bool:
        return self.steps >= self.next_trials.get(width, 0)


class WidthPolicy:
    """Chooses the width with the most expected tokens per millisecond, and does not flap.

    Every captured batch size is a bucket of its own: a batch that goes back and forth between two finds each
    one's width as it left it. Within a bucket the choice is made anew every `dwell_steps` steps: the current width is
    left for a known one that is better by `margin`. A width of which the time is unmeasured or doubtful, or the gain
    extrapolated, is first run on trial if it might be better: `trial_steps` steps, each width once in
    `trial_interval` steps of the bucket, and more rarely where trials would cost more than 1 % of its tokens; an
    unmeasured neighbour of the current width also if nothing speaks for it, from step `EXPLORE_AFTER` on. Where
    nothing is ever measured the priors count as known times.

    The state is a function of the calls made: equal calls, equal choices.

    Args:
        widths: verify widths, ascending; those of `costs`.
        costs: expected milliseconds; the caller tells it the measured ones.
        gains: expected tokens; the caller tells it what steps emitted. By default a new one.
        margin: by how much another width must be better, as a fraction.
        dwell_steps: steps at a width from one choice to the next, from 1.
        trial_steps: steps of a trial, from 1.
        trial_interval: least steps from the end of a width's trial to its next, from 1.

    Raises:
        ValueError: bad widths, widths that differ from those of `costs` or `gains`, a number out of range.
    """

    def __init__(
        self,
        widths: Sequence[int],
        costs: CostTable,
        *,
        gains: GainEstimator | None = None,
        margin: float = MARGIN,
        dwell_steps: int = DWELL_STEPS,
        trial_steps: int = TRIAL_STEPS,
        trial_interval: int = TRIAL_INTERVAL,
    ) -> None:
        self.widths = checked_widths(widths)
        self.costs = costs
        self.gains = GainEstimator(self.widths) if gains is None else gains
        for name, other in (("costs", self.costs.widths), ("gains", self.gains.widths)):
            if other != self.widths:
                raise ValueError(f"widths are {list(self.widths)}, those of {name} are {list(other)}")
        if not 0 <= margin < math.inf:
            raise ValueError(f"margin must be a fraction from 0, got {margin}")
        for name, steps in (
            ("dwell_steps", dwell_steps),
            ("trial_steps", trial_steps),
            ("trial_interval", trial_interval),
        ):
            if steps < 1:
                raise ValueError(f"{name} must be at least 1, got {steps}")
        self._margin = margin
        self._dwell_steps = dwell_steps
        self._trial_steps = trial_steps
        self._trial_interval = trial_interval
        self._buckets: dict[int, _Bucket] = {}
        self._steps = dict.fromkeys(self.widths, 0)
        self._switches = 0
        self._trials = 0

    def choose(self, batch_size: int) -> int:
        """The width of the next step; call once per decode step.

        Args:
            batch_size: running requests, padding not counted.

        Returns:
            One of `costs.candidates(batch_size)`.

        Raises:
            ValueError: a batch below 1.
        """
        width = self._next_width(self.costs.captured_batch(batch_size))
        self._steps[width] += 1
        return width

    def snapshot(self) -> dict[str, Any]:
        """Counters for logs and metrics, a copy.

        Returns:
            `width_per_batch`: captured batch size -> current width, sizes that ran only; `expected_tokens`: width
            -> tokens per request and step; `steps`: width -> steps, trials included; `switches`: changes of a
            current width; `trials`: trials begun.
        """
        return {
            "width_per_batch": {size: self._buckets[size].width for size in sorted(self._buckets)},
            "expected_tokens": {width: self.gains.expected(width) for width in self.widths},
            "steps": dict(self._steps),
            "switches": self._switches,
            "trials": self._trials,
        }

    def _next_width(self, size: int | None) -> int:
        if size is None:
            return self.widths[0]
        bucket = self._buckets.get(size)
        if bucket is None:
            bucket = self._buckets[size] = _Bucket(self._start(size))
        bucket.steps += 1
        if bucket.trial is not None:
            if bucket.trial_steps_left:
                bucket.trial_steps_left -= 1
                return bucket.trial
            bucket.tried, bucket.trial = bucket.trial, None
        # Not at every step: it takes a hundredth of a small model's. After a trial not before some steps at the
        # current width, whose times those of the trial are held against.
        elif bucket.steps_at_width and bucket.steps_at_width % self._dwell_steps == 0:
            tried, bucket.tried = bucket.tried, None
            if tried is not None:
                self._put_off(size, bucket, tried)
            self._reconsider(size, bucket, tried)
        if bucket.trial is not None:
            bucket.trial_steps_left -= 1
            return bucket.trial
        bucket.steps_at_width += 1
        return bucket.width

    def _score(self, size: int, width: int) -> float:
        """Tokens per request and millisecond."""
        return self.gains.expected(width) / self.costs.estimate(size, width)

    def _start(self, size: int) -> int:
        """The width of a bucket's first step: its nearest neighbour's, which has been measured, or by the priors."""
        near = [other for other in self._buckets if max(size, other) <= NEAR * min(size, other)]
        if near:
            width = self._buckets[min(near, key=lambda other: abs(other - size))].width
            if width in self.costs.candidates(size):
                return width
        return self._best(size)

    def _best(self, size: int) -> int:
        return max(self.costs.candidates(size), key=lambda width: self._score(size, width))

    def _reconsider(self, size: int, bucket: _Bucket, tried: int | None) -> None:
        here = self._score(size, bucket.width)
        best, best_score = bucket.width, here * (1 + self._margin)
        trial, best_hope = None, here
        for width in self.costs.candidates(size):
            if width == bucket.width:
                continue
            score = self._score(size, width)
            # A trial's steps say little about a small batch's gain. If they mislead, the steps that follow correct it.
            known = self._has_known_time(size, width, bucket.width) and (
                width == tried or self._has_known_gain(width, bucket.width)
            )
            if known and score > best_score:
                best, best_score = width, score
            hope = self.gains.optimistic(width, bucket.width) / self.costs.optimistic(size, width)
            # What is known roughly is tried again if that might still make it the choice.
            least = here * (1 + self._margin) if known else here
            if hope > max(least, best_hope) and bucket.may_try(width):
                trial, best_hope = width, hope
        if best != bucket.width:
            self._switch(bucket, best)
            return
        if trial is None and bucket.steps >= EXPLORE_AFTER:
            trial = self._unmeasured_neighbour(size, bucket)
        if trial is not None:
            self._trials += 1
            bucket.trial, bucket.trial_steps_left = trial, self._trial_steps

    def _unmeasured_neighbour(self, size: int, bucket: _Bucket) -> int | None:
        widths = self.costs.candidates(size)
        if not self.costs.is_measured(size, bucket.width):
            return None
        at = widths.index(bucket.width)
        for width in widths[max(0, at - 1) : at + 2]:
            if not self.costs.is_measured(size, width) and bucket.may_try(width):
                return width
        return None

    def _has_known_time(self, size: int, width: int, current: int) -> bool:
        # Priors compare with priors: a bound against a measurement is what a trial has to settle.
        return self.costs.is_measured(size, width) or not self.costs.is_measured(size, current)

    def _has_known_gain(self, width: int, current: int) -> bool:
        # The current width's steps tell about every narrower one; running that would tell nothing more.
        return width < current or self.gains.is_observed(width)

    def _put_off(self, size: int, bucket: _Bucket, tried: int) -> None:
        """When `tried` may be run on trial again."""
        current = bucket.width
        expected = self.gains.expected
        taken = self.costs.pessimistic(size, tried) / self.costs.estimate(size, current)
        # In steps at the current width: the tokens that its rate would have emitted in the trial's time, less those
        # that the trial emitted.
        lost = self._trial_steps * (taken - expected(tried) / expected(current))
        paid_off = math.ceil(lost * (len(self.widths) - 1) / MAX_TRIAL_LOSS)
        bucket.next_trials[tried] = bucket.steps + max(self._trial_interval, paid_off)

    def _switch(self, bucket: _Bucket, width: int) -> None:
        self._switches += 1
        bucket.width = width
        bucket.steps_at_width = 0

"""The times of one captured batch size: what each width takes, told apart from what slows all of them down."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median

SAMPLES = 31
"""Times of the current graph whose median is what its steps take now. With 9 a hiccup moved it."""
BEFORE = 16
"""Times of the current graph before a trial..."""
AFTER = 6
"""...and after it that the trial's are compared with."""
TRIALS = 16
"""Trials of a graph that are remembered."""
ENOUGH_SAMPLES = 4
"""Times from which on a graph counts as measured. A trial of 8 steps gives them, the late ones left out."""
STAY = 16
"""Steps on end from which on a graph is the current one: more than a trial has."""
STALE_AFTER = 2048
"""Times seen at a captured batch size after which one of its graphs that gave none of them is unmeasured again:
contexts grow and clocks change, and a measurement that a hiccup spoilt must not last."""
GROWTH = 2.0
"""How much more than their priors two widths' times may well differ: on an H200 64 tokens took 2.5 times as many
milliseconds more than 16 at a context of 8,000 as at 256 with 4 requests, 2 times with one."""
SPREAD = 0.02
"""By how much of a step two widths may well differ, whatever their priors say."""
LEAST = 0.1
"""No width is hoped to take less than this part of another's step."""
DOUBT = 2.0
"""Standard errors by which a measured time may be wrong before a trial is not worth while any more."""
LEVEL_DOUBT = 0.1
"""Standard error of a trial after which no step was seen at the width that it left."""


def _center(values: Sequence[float]) -> tuple[float, float]:
    """Median, and its standard error as a fraction: that of a median of normal values."""
    middle = median(values)
    spread = 1.4826 * median(abs(one - middle) for one in values)
    return middle, 1.2533 * spread / math.sqrt(len(values)) / middle


class Graph:
    """What is known of one captured graph.

    Attributes:
        width: its verify width.
        prior: milliseconds told at construction.
        trials: its time in units of what its captured size's level was then, and that value's standard error, by trial.
        share: their median; it stands still while the graph is the current one.
        doubt: standard error of `share` against that of the current graph, as a fraction.
        seen: how many times counted towards its being measured.
        last_seen: the size's clock at the last one.
    """

    __slots__ = ("doubt", "last_seen", "prior", "seen", "share", "trials", "width")

    def __init__(self, width: int, prior: float) -> None:
        self.width = width
        self.prior = prior
        self.trials: deque[tuple[float, float]] = deque(maxlen=TRIALS)
        self.share = prior
        self.doubt = 0.0
        self.seen = 0
        self.last_seen = 0

    def forget(self) -> None:
        self.trials.clear()
        self.seen, self.doubt = 0, 0.0

    def compare_with(self, current: Graph) -> None:
        """Another graph is the current one from now on: what it is wrong by, this one is."""
        self.doubt = math.hypot(self.doubt, current.doubt)
        # Old shares, which are wrong by something else, must not outvote those to come.
        if self.seen:
            self.trials = deque([(self.share, self.doubt)], maxlen=TRIALS)

    def add(self, share: float, doubt: float) -> None:
        """One more trial's. Its own doubt may be too small, so the trials' spread counts as well."""
        self.trials.append((share, doubt))
        self.share, spread = _center([share for share, _ in self.trials])
        self.doubt = max(spread, math.hypot(*(one for _, one in self.trials)) / len(self.trials))


class Pace:
    """The graphs of one captured batch size by ascending width, and the pace of its steps.

    Whatever slows down every width alike (contexts that grow, another process on the host) moves the level, so that
    widths tried at different times compare.

    Attributes:
        clock: times seen.
        current: the graph that steps have been running; its share stands still, its times make the level.
        is_told: the priors tell the widths apart; in eager mode they do not.
    """

    __slots__ = (
        "_after",
        "_before",
        "_level",
        "_other",
        "_run",
        "clock",
        "current",
        "graphs",
        "is_told",
        "levels",
    )

    def __init__(self, graphs: Sequence[Graph]) -> None:
        self.graphs = graphs
        self.is_told = len({graph.prior for graph in graphs}) > 1
        self.clock = 0
        self.current: Graph | None = None
        self._level: float | None = 1.0
        self.levels: deque[float] = deque(maxlen=SAMPLES)
        # Another graph's times on end, so far, and the levels around them.
        self._other: Graph | None = None
        self._before: list[float] = []
        self._run: list[float] = []
        self._after: list[float] = []

    def observe(self, graph: Graph, ms: float) -> None:
        self.clock += 1
        if self.clock - graph.last_seen > STALE_AFTER:
            graph.forget()
        graph.last_seen = self.clock
        if self.current is None:
            self.current = graph
        if graph is self.current:
            graph.seen += 1
            self.levels.append(ms / graph.share)
            self._level = None
            if self._other is not None:
                self._after.append(self.levels[-1])
                if len(self._after) == AFTER:
                    self._end_trial()
            return
        if graph is not self._other or self._after:
            self._end_trial()
            self._other = graph
            self._before = list(self.levels)[-BEFORE:]
        self._run.append(ms)
        if len(self._run) == STAY:
            self._stay(graph)

    def _end_trial(self) -> None:
        """Hold the other graph's times against the levels around them, which a change of pace moves apart."""
        graph, run = self._other, self._run
        if graph is not None and len(run) >= ENOUGH_SAMPLES:
            before, before_doubt = _center(self._before)
            after, after_doubt = _center(self._after) if self._after else (before, LEVEL_DOUBT)
            level = (before + after) / 2
            middle, doubt = _center(run)
            moved = abs(after - before) / (2 * level)
            graph.add(middle / level, math.hypot(doubt, before_doubt / 2, after_doubt / 2, moved))
            graph.seen += len(run)
        self._other = None
        self._run, self._after = [], []

    def _stay(self, graph: Graph) -> None:
        """The other graph is the current one."""
        run = self._run
        if not graph.trials:
            self._end_trial()
        self.current, self._other = graph, None
        graph.seen = max(graph.seen, len(run))
        for one in self.graphs:
            if one is not graph:
                one.compare_with(graph)
        graph.doubt = 0.0
        self.levels.clear()
        self.levels.extend(one / graph.share for one in run)
        self._level = None
        self._run, self._after = [], []

    @property
    def level(self) -> float:
        """Milliseconds per unit of share: the median of the last times of `current`, reckoned when asked for."""
        if self._level is None:
            self._level = median(self.levels)
        return self._level

    def milliseconds(self, graph: Graph) -> float:
        return graph.share * self.level

    def doubt(self, graph: Graph) -> float:
        """Standard error of a measured graph's time, as a fraction, with what is impossible about it.

        A narrower width never takes longer than a wider one. That so many trials have said so makes it possible.
        """
        current = self.current
        if current is None or graph is current:
            return 0.0
        found, now = self.milliseconds(graph), self.milliseconds(current)
        beyond = now - found if graph.width > current.width else found - now
        return math.hypot(graph.doubt, max(0.0, beyond / found - SPREAD) / max(1, len(graph.trials)))

    def differ(self, graph: Graph) -> float:
        """By how many milliseconds more than the current graph it is expected to take, by the priors alone.

        Priors that took more than the steps do are scaled, those that order the widths wrongly say nothing.
        """
        current = self.current
        if current is None or not self.is_told:
            return 0.0
        told = (graph.prior - current.prior) * min(1.0, self.milliseconds(current) / current.prior)
        return max(0.0, told) if graph.width > current.width else min(0.0, told)

    def is_measured(self, graph: Graph) -> bool:
        """Enough times, the last of them not long ago."""
        return self.clock - graph.last_seen <= STALE_AFTER and graph.seen >= ENOUGH_SAMPLES

    def estimate(self, graph: Graph) -> float:
        """A measured graph's milliseconds, moved towards what the priors expect as far as they are in doubt.

        Steps of two widths differ by their graphs alone: by what the priors differ, less where the host bounds the
        step, more where contexts are long. Measured and expected value count by their variances, and a measurement
        moves by no more than `DOUBT` errors.
        """
        measured = self.milliseconds(graph)
        current = self.current
        if current is None or graph is current or not self.is_told:
            return measured
        now, differ = self.milliseconds(current), self.differ(graph)
        # What the graphs do not explain of a step is mostly the host's.
        expected = now + differ * min(1.0, current.prior / now)
        error = measured * self.doubt(graph)
        prior_error = max(SPREAD * now, GROWTH * abs(differ) / 2)
        moved = (expected - measured) * error**2 / (error**2 + prior_error**2)
        return measured + max(-DOUBT * error, min(DOUBT * error, moved))

    def least(self, graph: Graph) -> float:
        """What a width narrower than the running one takes at least; 0 of any other."""
        current = self.current
        if current is None or graph.width >= current.width or not self.is_told:
            return 0.0
        now = self.milliseconds(current)
        return max(LEAST * now, now + GROWTH * self.differ(graph))

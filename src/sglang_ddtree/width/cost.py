"""Milliseconds of a decode step per captured batch size and verify width."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median

from .widths import checked_widths, index_of

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


class _Graph:
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

    def compare_with(self, current: _Graph) -> None:
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


class _Size:
    """The graphs of one captured batch size, and the pace of its steps.

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

    def __init__(self, graphs: Sequence[_Graph]) -> None:
        self.graphs = graphs
        self.is_told = len({graph.prior for graph in graphs}) > 1
        self.clock = 0
        self.current: _Graph | None = None
        self._level: float | None = 1.0
        self.levels: deque[float] = deque(maxlen=SAMPLES)
        # Another graph's times on end, so far, and the levels around them.
        self._other: _Graph | None = None
        self._before: list[float] = []
        self._run: list[float] = []
        self._after: list[float] = []

    def observe(self, graph: _Graph, ms: float) -> None:
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

    def _stay(self, graph: _Graph) -> None:
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

    def milliseconds(self, graph: _Graph) -> float:
        return graph.share * self.level

    def doubt(self, graph: _Graph) -> float:
        """Standard error of a measured graph's time, as a fraction, with what is impossible about it.

        A narrower width never takes longer than a wider one. That so many trials have said so makes it possible.
        """
        current = self.current
        if current is None or graph is current:
            return 0.0
        found, now = self.milliseconds(graph), self.milliseconds(current)
        beyond = now - found if graph.width > current.width else found - now
        return math.hypot(graph.doubt, max(0.0, beyond / found - SPREAD) / max(1, len(graph.trials)))

    def differ(self, graph: _Graph) -> float:
        """By how many milliseconds more than the current graph it is expected to take, by the priors alone.

        Priors that took more than the steps do are scaled, those that order the widths wrongly say nothing.
        """
        current = self.current
        if current is None or not self.is_told:
            return 0.0
        told = (graph.prior - current.prior) * min(1.0, self.milliseconds(current) / current.prior)
        return max(0.0, told) if graph.width > current.width else min(0.0, told)


class _Row:
    """The graphs that batches between two captured sizes run, by ascending width."""

    __slots__ = ("estimates", "graphs", "is_old", "measured", "sizes", "widths")

    def __init__(self, widths: list[int], sizes: list[int], graphs: list[_Graph]) -> None:
        self.widths = tuple(widths)
        self.sizes = tuple(sizes)
        self.graphs = tuple(graphs)
        self.measured = [False] * len(graphs)
        self.estimates = [graph.prior for graph in graphs]
        # Times came since `measured` and `estimates` were reckoned.
        self.is_old = False


class CostTable:
    """Times of whole decode steps in milliseconds: priors, and what was measured since.

    A batch of n requests runs, for every width, in that width's graph of the smallest captured size that holds
    n: graphs pad. Nothing needs to be measured (ranks of a tensor-parallel group must decide alike, and their
    clocks differ): the priors then stand. Everything is a function of the calls made.

    Args:
        widths: verify widths, ascending, from 2.
        prior_ms: (captured batch size, width) -> milliseconds of a step. A width may lack sizes that others
            have; an empty mapping is the eager mode.

    Raises:
        ValueError: bad widths, a key with another width or a size below 1, a time that is not positive.
    """

    def __init__(self, widths: Sequence[int], prior_ms: Mapping[tuple[int, int], float]) -> None:
        self.widths = checked_widths(widths)
        self._graphs: dict[tuple[int, int], _Graph] = {}
        for (size, width), ms in sorted(prior_ms.items()):
            index_of(width, self.widths)
            if size < 1:
                raise ValueError(f"a captured batch size is at least 1, got {size} (width {width})")
            _require_time(ms, f"the prior of batch size {size}, width {width}")
            self._graphs[size, width] = _Graph(width, ms)
        self._sizes = sorted({size for size, _ in self._graphs})
        self._paces = {
            size: _Size([graph for (own, _), graph in self._graphs.items() if own == size])
            for size in self._sizes
        }
        self._rows = {size: self._make_row(size) for size in self._sizes}
        self._rows_of = {
            size: [row for row in self._rows.values() if size in row.sizes] for size in self._sizes
        }

    def _make_row(self, batch_size: int) -> _Row:
        widths, sizes = [], []
        for width in self.widths:
            holding = [size for size, own in self._graphs if own == width and size >= batch_size]
            if holding:
                widths.append(width)
                sizes.append(min(holding))
        keys = zip(sizes, widths, strict=True)
        return _Row(widths, sizes, [self._graphs[key] for key in keys])

    def captured_batch(self, batch_size: int) -> int | None:
        """The smallest captured size of any width that holds the batch; None where there is none.

        Two batches with the same answer run the same graphs at every width.

        Raises:
            ValueError: a batch below 1.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        at = bisect_left(self._sizes, batch_size)
        return self._sizes[at] if at < len(self._sizes) else None

    def candidates(self, batch_size: int) -> tuple[int, ...]:
        """Widths with a captured graph for the batch, ascending.

        Where none has one (a batch above all graphs, eager mode) it is the narrowest width alone: such a step
        is unpadded and has no time in the table, and the narrowest is the one that a large batch can afford.

        Raises:
            ValueError: a batch below 1.
        """
        size = self.captured_batch(batch_size)
        return self.widths[:1] if size is None else self._rows[size].widths

    def prior(self, batch_size: int, width: int) -> float | None:
        """Milliseconds told at construction; None where the width has no captured graph for the batch.

        Raises:
            ValueError: a batch below 1, an unknown width.
        """
        index_of(width, self.widths)
        size = self.captured_batch(batch_size)
        if size is None or width not in self._rows[size].widths:
            return None
        row = self._rows[size]
        return row.graphs[row.widths.index(width)].prior

    def observe(self, batch_size: int, width: int, ms: float) -> None:
        """Note that a step of `batch_size` requests at `width` took `ms` milliseconds.

        Where no graph holds the batch the fallback's times are of no use and are dropped.

        Raises:
            ValueError: a batch below 1, a width that is not a candidate, a time that is not positive.
        """
        _require_time(ms, f"the time of batch size {batch_size}, width {width}")
        candidates = self.candidates(batch_size)
        if width not in candidates:
            raise ValueError(
                f"width {width} has no captured graph for batch size {batch_size}, candidates are {list(candidates)}"
            )
        captured = self.captured_batch(batch_size)
        if captured is None:
            return
        row = self._rows[captured]
        at = row.widths.index(width)
        size = row.sizes[at]
        self._paces[size].observe(row.graphs[at], ms)
        for other in self._rows_of[size]:
            other.is_old = True

    def _refresh(self, row: _Row) -> None:
        row.is_old = False
        floor = 0.0
        for at, (size, graph) in enumerate(zip(row.sizes, row.graphs, strict=True)):
            pace = self._paces[size]
            fresh = pace.clock - graph.last_seen <= STALE_AFTER
            row.measured[at] = fresh and graph.seen >= ENOUGH_SAMPLES
            if row.measured[at]:
                row.estimates[at] = floor = self._plausible(pace, graph)
            else:
                row.estimates[at] = max(floor, graph.prior, self._least(row, at))

    def _plausible(self, pace: _Size, graph: _Graph) -> float:
        """Its measured milliseconds, moved towards what the priors expect as far as they are in doubt.

        Steps of two widths differ by their graphs alone: by what the priors differ, less where the host bounds the
        step, more where contexts are long. Measured and expected value count by their variances, and a measurement
        moves by no more than `DOUBT` errors.
        """
        measured = pace.milliseconds(graph)
        current = pace.current
        if current is None or graph is current or not pace.is_told:
            return measured
        now, differ = pace.milliseconds(current), pace.differ(graph)
        # What the graphs do not explain of a step is mostly the host's.
        expected = now + differ * min(1.0, current.prior / now)
        error = measured * pace.doubt(graph)
        prior_error = max(SPREAD * now, GROWTH * abs(differ) / 2)
        moved = (expected - measured) * error**2 / (error**2 + prior_error**2)
        return measured + max(-DOUBT * error, min(DOUBT * error, moved))

    def is_measured(self, batch_size: int, width: int) -> bool:
        """Whether `estimate` is a measurement: enough times, the last of them not long ago.

        Raises:
            ValueError: a batch below 1, a width without a captured graph for it.
        """
        row, at = self._place(batch_size, width)
        return row.measured[at]

    def estimate(self, batch_size: int, width: int) -> float:
        """Milliseconds that a step is expected to take.

        Where the width is measured, the median of its times: of the last `SAMPLES` ones if steps are running it, of
        its trials in proportion to the steps around them if not, moved towards the priors as far as those are in
        doubt. Otherwise an optimistic bound: the prior, but not
        less than what the widest narrower measured width takes, since a step bound by the host's work costs the same
        at every width.

        Raises:
            ValueError: a batch below 1, a width without a captured graph for it.
        """
        row, at = self._place(batch_size, width)
        return row.estimates[at]

    def pessimistic(self, batch_size: int, width: int) -> float:
        """Milliseconds that a step might well take: `estimate`, or the median of its times if that is more.

        Raises:
            ValueError: a batch below 1, a width without a captured graph for it.
        """
        row, at = self._place(batch_size, width)
        estimate = row.estimates[at]
        if not row.measured[at]:
            return estimate
        return max(estimate, self._paces[row.sizes[at]].milliseconds(row.graphs[at]))

    def optimistic(self, batch_size: int, width: int) -> float:
        """Milliseconds that a step might take: `estimate`, but with less trust in it.

        A measured width may be as fast as `DOUBT` standard errors allow, though not faster than the one that steps
        are running, if that is narrower. An unmeasured one narrower than the running one may save `GROWTH` times what
        their priors differ. Where the measured width next to an unmeasured one (the narrower, if there is one)
        undercuts its own prior, the unmeasured one is taken to undercut its prior as much.

        Raises:
            ValueError: a batch below 1, a width without a captured graph for it.
        """
        row, at = self._place(batch_size, width)
        if row.measured[at]:
            estimate = row.estimates[at]
            least = estimate / (1 + DOUBT * self._paces[row.sizes[at]].doubt(row.graphs[at]))
            running = self._paces[row.sizes[at]].current
            narrower = max(
                (row.estimates[one] for one in range(at) if row.graphs[one] is running), default=0.0
            )
            return min(estimate, max(least, narrower))
        nearest = next((other for other in range(at - 1, -1, -1) if row.measured[other]), None)
        floor = 0.0 if nearest is None else row.estimates[nearest]
        if nearest is None:
            nearest = next((other for other in range(at + 1, len(row.graphs)) if row.measured[other]), at)
        ratio = row.estimates[nearest] / row.graphs[nearest].prior
        return max(floor, row.graphs[at].prior * min(1.0, ratio), self._least(row, at))

    def _least(self, row: _Row, at: int) -> float:
        """What a width narrower than the running one takes at least."""
        graph, pace = row.graphs[at], self._paces[row.sizes[at]]
        current = pace.current
        if current not in row.graphs[at + 1 :] or not pace.is_told:
            return 0.0
        now = pace.milliseconds(current)
        return max(LEAST * now, now + GROWTH * pace.differ(graph))

    def _place(self, batch_size: int, width: int) -> tuple[_Row, int]:
        size = self.captured_batch(batch_size)
        row = None if size is None else self._rows[size]
        if row is None or width not in row.widths:
            captured = [] if row is None else list(row.widths)
            raise ValueError(
                f"width {width} has no captured graph for batch size {batch_size}, captured are {captured}"
            )
        if row.is_old:
            self._refresh(row)
        return row, row.widths.index(width)


def _require_time(ms: float, what: str) -> None:
    if not 0 < ms < math.inf:
        raise ValueError(f"{what} must be a positive number of milliseconds, got {ms}")

"""Milliseconds of a decode step per captured batch size and verify width."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from .pace import DOUBT, Graph, Pace
from .widths import checked_widths, index_of


class _Row:
    """The graphs that batches between two captured sizes run, by ascending width."""

    __slots__ = ("estimates", "graphs", "is_old", "measured", "sizes", "widths")

    def __init__(self, widths: list[int], sizes: list[int], graphs: list[Graph]) -> None:
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
        self._graphs: dict[tuple[int, int], Graph] = {}
        for (size, width), ms in sorted(prior_ms.items()):
            index_of(width, self.widths)
            if size < 1:
                raise ValueError(f"a captured batch size is at least 1, got {size} (width {width})")
            _require_time(ms, f"the prior of batch size {size}, width {width}")
            self._graphs[size, width] = Graph(width, ms)
        self._sizes = sorted({size for size, _ in self._graphs})
        self._paces = {
            size: Pace([graph for (own, _), graph in self._graphs.items() if own == size])
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
            row.measured[at] = pace.is_measured(graph)
            if row.measured[at]:
                row.estimates[at] = floor = pace.estimate(graph)
            else:
                row.estimates[at] = max(floor, graph.prior, pace.least(graph))

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
        doubt. Otherwise an optimistic bound: the prior, but not less than what the widest narrower measured width
        takes, since a step bound by the host's work costs the same at every width.

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
        least = self._paces[row.sizes[at]].least(row.graphs[at])
        return max(floor, row.graphs[at].prior * min(1.0, ratio), least)

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

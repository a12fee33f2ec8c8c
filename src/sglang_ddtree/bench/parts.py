"""The parts of a DDTREE step: what the counters of `/metrics` grew by over a cell's runs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..metrics.counts import PHASES

ENOUGH = 3  # timed steps; a mean of fewer is noise
LEGEND = (
    f"Parts of a DDTREE step, ms: the mean of the steps timed, every 64th; none where fewer than {ENOUGH} were. "
    "draft holds the tree's building. On CUDA they are times between marks on the device, its waits for the host "
    "included. ms per step holds what lies between two steps, too."
)
SETTLE_LIMIT, SETTLE_PAUSE = 2.0, 0.1  # seconds

_SAMPLE = re.compile(
    r"^sglang:ddtree_(timed_steps|phase_seconds)_total(?:\{(.*)\})? (\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?: \d+)?$",
    re.MULTILINE,
)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Counters:
    """Steps timed since the server's start, and their seconds by phase."""

    steps: int
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class Parts:
    """Steps timed in a cell, and their mean milliseconds by phase; None with fewer than `ENOUGH`."""

    steps: int
    ms: Mapping[str, float] | None


def counters(text: str | None) -> Counters | None:
    """What `text`, a ``/metrics`` page, says, processes added up; None where it lacks a counter or there is no page."""
    steps: float | None = None
    seconds: dict[str, float] = {}
    for name, labels, value in _SAMPLE.findall(text or ""):
        if name == "timed_steps":
            steps = (steps or 0) + float(value)
        else:
            phase = dict(_LABEL.findall(labels)).get("phase", "")
            seconds[phase] = seconds.get(phase, 0.0) + float(value)
    return Counters(int(steps), seconds) if steps is not None and seconds.keys() == set(PHASES) else None


def settled(read: Callable[[], str | None]) -> Counters | None:
    """The counters of an idle server, which brings them up to date when it becomes so.

    Reads until two pages agree, for `SETTLE_LIMIT` seconds at most; a server without them is read once.
    """
    end = time.monotonic() + SETTLE_LIMIT
    found = counters(read())
    while found is not None and time.monotonic() < end:
        time.sleep(SETTLE_PAUSE)
        before, found = found, counters(read())
        if found == before:
            break
    return found


def difference(before: Counters | None, after: Counters | None) -> Parts | None:
    """The steps timed between two readings; None where one has no counters, or they began anew in between."""
    if before is None or after is None:
        return None
    steps = after.steps - before.steps
    seconds = {phase: after.seconds[phase] - before.seconds[phase] for phase in PHASES}
    if steps < 0 or min(seconds.values()) < 0:
        return None
    ms = {phase: 1000 * spent / steps for phase, spent in seconds.items()} if steps >= ENOUGH else None
    return Parts(steps, ms)

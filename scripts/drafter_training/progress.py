"""What a command prints on its way: the share done and the time left. Errors of its user."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


class TrainingError(ValueError):
    """A command cannot do what it was asked for; the message says why and what is allowed."""


class Progress:
    """Work of `total` units, optionally cut off after `minutes`."""

    def __init__(self, total: int, unit: str, minutes: float | None = None) -> None:
        self.total, self.unit, self.done = total, unit, 0
        self._limit = None if minutes is None else 60 * minutes
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    @property
    def fraction(self) -> float:
        """Of the work or of the time, whichever is further; 1 where the work has to end."""
        by_time = 0.0 if self._limit is None else self.seconds / self._limit
        return min(1.0, max(self.done / self.total, by_time))

    def advance(self, units: int = 1) -> None:
        self.done += units

    def while_open(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, until the work or the time is done."""
        for item in items:
            if self.fraction >= 1:
                return
            yield item

    def say(self, text: str) -> None:
        print(f"[{self.where()}] {text}", flush=True)

    def where(self) -> str:
        """ "12/96 batches, about 3:20 left", the time estimated from what is done."""
        share = f"{self.done}/{self.total} {self.unit}"
        fraction = self.fraction
        if not self.done or fraction == 0:
            return share
        return f"{share}, about {minutes_of(self.seconds * (1 - fraction) / fraction)} left"


def minutes_of(seconds: float) -> str:
    """Seconds as "3:20"."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"

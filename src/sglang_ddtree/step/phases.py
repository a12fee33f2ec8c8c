"""How long a step's phases take, measured at some steps, without waiting for the device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from ..metrics.counts import PHASES

EVERY = 64
"""Steps between two that are timed."""


class Mark(Protocol):
    """A point in the device's work; a CUDA event is one."""

    def record(self) -> Any: ...

    def query(self) -> bool:
        """Whether the device has come to it."""

    def elapsed_time(self, other: Any, /) -> float:
        """Milliseconds from this one to a later one."""


class HostMark:
    """Where the host computes, its own clock."""

    def __init__(self) -> None:
        self.time = 0.0

    def record(self) -> None:
        self.time = time.perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: HostMark, /) -> float:
        return 1000 * (other.time - self.time)


def marks_of(device: torch.device) -> Callable[[], Mark]:
    """What makes the marks of this device."""
    if device.type == "cuda":
        return lambda: torch.cuda.Event(enable_timing=True)
    return HostMark


class PhaseClock:
    """Seconds by phase, added up over the timed steps.

    A timed step's marks are read at the start of a later step, once the device has passed the last of them; until
    then no other step is timed. Where they say that the step took longer than the host has seen pass since it began,
    they are wrong and the step does not count: on an H200 two events of one step once lay 4.7 s apart while the server
    answered several requests within a second.

    Args:
        make_mark: see `marks_of`.
        every: steps between two timed ones; 0 times none.
        host_clock: seconds.

    Attributes:
        seconds: phase -> seconds of all `steps`.
        steps: timed and read.
    """

    def __init__(
        self,
        make_mark: Callable[[], Mark],
        every: int = EVERY,
        host_clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.steps = 0
        self._every = every
        self._begun = 0
        self._marks = [make_mark() for _ in range(len(PHASES) + 1)] if every else []
        # Marks recorded in the running step, if it is timed.
        self._recorded: int | None = None
        self._unread = False
        self._host_clock = host_clock
        self._began = 0.0

    def begin(self) -> None:
        """A step begins."""
        if not self._every:
            return
        self._begun += 1
        if self._unread and self._marks[-1].query():
            self._read()
        # A step that failed on its way has left some.
        self._recorded = None
        if self._begun % self._every == 0 and not self._unread:
            self._recorded = 0
            self._began = self._host_clock()
            self._record()

    def done(self, phase: str) -> None:
        """The running step has launched all of `phase`; the phases come in their order."""
        if self._recorded is None:
            return
        assert PHASES[self._recorded - 1] == phase
        self._record()
        if self._recorded == len(self._marks):
            self._recorded, self._unread = None, True

    def _record(self) -> None:
        assert self._recorded is not None
        self._marks[self._recorded].record()
        self._recorded += 1

    def _read(self) -> None:
        self._unread = False
        if self._marks[0].elapsed_time(self._marks[-1]) > 1000 * (self._host_clock() - self._began):
            return
        for phase, before, after in zip(PHASES, self._marks, self._marks[1:], strict=False):
            self.seconds[phase] += before.elapsed_time(after) / 1000
        self.steps += 1

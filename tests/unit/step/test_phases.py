"""The clock of a step's phases, on a device whose time and lag the test sets."""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sglang_ddtree.metrics.counts import PHASES  # noqa: E402
from sglang_ddtree.step import phases  # noqa: E402
from sglang_ddtree.step.phases import PhaseClock  # noqa: E402


class Device:
    """Its work takes time only as the test says, and it comes to its marks only when the test says."""

    def __init__(self) -> None:
        self.now, self.reached, self.recorded = 0.0, True, 0

    def mark(self) -> DeviceMark:
        return DeviceMark(self)

    def host_clock(self) -> float:
        return self.now / 1000


class DeviceMark:
    def __init__(self, device: Device) -> None:
        self.device, self.at = device, 0.0

    def record(self) -> None:
        self.at = self.device.now
        self.device.recorded += 1

    def query(self) -> bool:
        return self.device.reached

    def elapsed_time(self, other: DeviceMark) -> float:
        assert self.device.reached, "read before the device came to it"
        return other.at - self.at

    def synchronize(self) -> None:
        raise AssertionError("nothing may wait for the device")


def step(clock: PhaseClock, device: Device, milliseconds: list[float]) -> None:
    clock.begin()
    for phase, taken in zip(PHASES, milliseconds, strict=True):
        device.now += taken
        clock.done(phase)
    device.now += 1000  # between steps


def test_the_phases_of_every_nth_step_are_added_up() -> None:
    draw, device = random.Random(2), Device()
    clock = PhaseClock(device.mark, every=8, host_clock=device.host_clock)
    taken = [[draw.uniform(1, 9) for _ in PHASES] for _ in range(81)]
    for one in taken:
        step(clock, device, one)
    timed = taken[7:80:8]
    assert (clock.steps, len(timed)) == (10, 10)
    assert list(clock.seconds.values()) == pytest.approx(
        [sum(row) / 1000 for row in zip(*timed, strict=True)]
    )
    assert tuple(clock.seconds) == PHASES


def test_other_steps_record_nothing() -> None:
    device = Device()
    clock = PhaseClock(device.mark, every=8, host_clock=device.host_clock)
    for _ in range(7):
        step(clock, device, [1.0] * len(PHASES))
    assert device.recorded == 0
    step(clock, device, [1.0] * len(PHASES))
    assert device.recorded == len(PHASES) + 1


def test_a_device_far_behind_is_not_waited_for() -> None:
    device = Device()
    clock = PhaseClock(device.mark, every=2, host_clock=device.host_clock)
    step(clock, device, [9.0] * len(PHASES))
    device.reached = False
    for _ in range(9):
        step(clock, device, [2.0] * len(PHASES))
    # The marks in flight are not recorded anew.
    assert (clock.steps, device.recorded) == (0, len(PHASES) + 1)
    device.reached = True
    clock.begin()
    assert (clock.steps, set(clock.seconds.values())) == (1, {0.002})


def test_a_step_that_failed_on_its_way_is_not_counted() -> None:
    device = Device()
    clock = PhaseClock(device.mark, every=2, host_clock=device.host_clock)
    step(clock, device, [1.0] * len(PHASES))
    clock.begin()
    clock.done("window")
    for _ in range(3):
        step(clock, device, [3.0] * len(PHASES))
    assert (clock.steps, set(clock.seconds.values())) == (1, {0.003})


def test_a_step_that_took_longer_than_the_host_saw_pass_is_not_counted() -> None:
    device = Device()
    passed = [0.0]
    clock = PhaseClock(device.mark, every=2, host_clock=lambda: passed[0])
    for milliseconds, seconds in ((2.0, 1.0), (4742.0, 0.9), (3.0, 1.0)):
        for taken in (1.0, milliseconds):
            step(clock, device, [1.0, 1.0, 1.0, 1.0, taken, 1.0])
        passed[0] += seconds
    clock.begin()
    assert clock.steps == 2
    assert clock.seconds["accept"] == pytest.approx(0.005)
    assert clock.seconds["verify"] == pytest.approx(0.002)


def test_no_clock_runs_where_nobody_reads_it() -> None:
    device = Device()
    clock = PhaseClock(device.mark, every=0, host_clock=device.host_clock)
    for _ in range(200):
        step(clock, device, [1.0] * len(PHASES))
    assert (device.recorded, clock.steps, set(clock.seconds.values())) == (0, 0, {0.0})


def test_phases_out_of_order_are_an_error() -> None:
    clock = PhaseClock(Device().mark, every=1)
    clock.begin()
    with pytest.raises(AssertionError):
        clock.done("draft")


def test_on_a_cpu_the_marks_are_the_hosts_time(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 1.25])
    monkeypatch.setattr(phases.time, "perf_counter", lambda: next(times))
    before, after = (phases.marks_of(torch.device("cpu"))() for _ in range(2))
    before.record()
    after.record()
    assert before.query()
    assert before.elapsed_time(after) == 250


def test_on_cuda_the_marks_are_events_with_times(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(torch.cuda, "Event", lambda **options: given.append(options) or "event")
    assert phases.marks_of(torch.device("cuda", 0))() == "event"
    assert given == [{"enable_timing": True}]

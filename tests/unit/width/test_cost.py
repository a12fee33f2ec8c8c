import math
import random
from collections.abc import Sequence

import pytest

from sglang_ddtree.width import CostTable
from sglang_ddtree.width.pace import AFTER, ENOUGH_SAMPLES, SAMPLES, STALE_AFTER, STAY

PRIORS = {(1, 8): 1.0, (4, 8): 2.0, (16, 8): 3.0, (1, 16): 1.5, (8, 16): 2.5, (4, 32): 4.0}


def _table() -> CostTable:
    return CostTable((8, 16, 32), PRIORS)


def _observe(costs: CostTable, batch_size: int, width: int, ms: float, times: int = ENOUGH_SAMPLES) -> None:
    for _ in range(times):
        costs.observe(batch_size, width, ms)


def _try(
    costs: CostTable, width: int, times: Sequence[float], back_at: int, level: float, batch_size: int = 1
) -> None:
    """Steps at `width`, and as many back at the width they left as a trial is held against."""
    for ms in times:
        costs.observe(batch_size, width, ms)
    _observe(costs, batch_size, back_at, level, AFTER)


@pytest.mark.parametrize(
    ("batch_size", "expected"),
    [
        (1, {8: 1.0, 16: 1.5, 32: 4.0}),
        (2, {8: 2.0, 16: 2.5, 32: 4.0}),
        (4, {8: 2.0, 16: 2.5, 32: 4.0}),
        (5, {8: 3.0, 16: 2.5}),
        (9, {8: 3.0}),
        (17, {}),
    ],
)
def test_a_batch_runs_at_the_smallest_captured_size_that_holds_it(
    batch_size: int, expected: dict[int, float]
) -> None:
    costs = _table()
    found = {width: costs.prior(batch_size, width) for width in costs.widths}
    assert {width: ms for width, ms in found.items() if ms is not None} == expected
    assert costs.candidates(batch_size) == (tuple(expected) or (8,))


@pytest.mark.parametrize(("batch_size", "size"), [(1, 1), (2, 4), (5, 8), (9, 16), (17, None)])
def test_batches_that_run_the_same_graphs_have_the_same_captured_batch(
    batch_size: int, size: int | None
) -> None:
    assert _table().captured_batch(batch_size) == size


def test_without_any_graph_only_the_narrowest_width_runs() -> None:
    costs = CostTable((8, 16), {})
    assert costs.candidates(1) == (8,)
    assert costs.prior(1, 8) is None
    costs.observe(1, 8, 3.0)
    with pytest.raises(ValueError, match="width 8 has no captured graph for batch size 1"):
        costs.estimate(1, 8)


def test_the_prior_stands_until_there_are_enough_times() -> None:
    costs = _table()
    _observe(costs, 3, 8, 9.0, ENOUGH_SAMPLES - 1)
    assert (costs.is_measured(4, 8), costs.estimate(4, 8)) == (False, 2.0)
    costs.observe(4, 8, 9.0)
    assert (costs.is_measured(2, 8), costs.estimate(2, 8)) == (True, 9.0)
    assert costs.prior(4, 8) == 2.0
    assert costs.estimate(1, 8) == 1.0, "another captured size"


def test_a_few_slow_steps_do_not_move_the_estimate() -> None:
    costs = _table()
    for step in range(SAMPLES):
        costs.observe(1, 8, 500.0 if step % 3 == 0 else 5.0)
    assert costs.estimate(1, 8) == 5.0


def test_the_estimate_follows_the_last_times() -> None:
    costs = _table()
    _observe(costs, 1, 8, 5.0, SAMPLES)
    _observe(costs, 1, 8, 7.0, SAMPLES // 2 + 1)
    assert costs.estimate(1, 8) == 7.0


def _three() -> CostTable:
    return CostTable((8, 16, 32), {(1, 8): 5.0, (1, 16): 6.0, (1, 32): 9.0})


def test_what_slows_every_width_down_moves_the_times_of_those_that_do_not_run() -> None:
    costs = _three()
    _observe(costs, 1, 8, 5.0, SAMPLES)
    _try(costs, 16, [6.0] * 8, back_at=8, level=5.0)
    _observe(costs, 1, 8, 7.5, SAMPLES)
    assert (costs.estimate(1, 8), costs.estimate(1, 16)) == (7.5, pytest.approx(9.0))
    # Tried again while everything is slow: the same share, not a slower width.
    _try(costs, 16, [9.0] * 8, back_at=8, level=7.5)
    _observe(costs, 1, 8, 5.0, SAMPLES)
    assert (costs.estimate(1, 8), costs.estimate(1, 16)) == (5.0, pytest.approx(6.0))


def test_a_trial_is_held_against_the_steps_on_both_sides_of_it() -> None:
    """The host gets slower evenly, from 5 ms before the trial to 7 behind it; the width takes 1.15 times as long."""
    costs = _three()
    _observe(costs, 1, 8, 5.0, SAMPLES)
    _try(costs, 16, [6.9] * 8, back_at=8, level=7.0)
    _observe(costs, 1, 8, 7.0, SAMPLES)
    assert costs.estimate(1, 16) == pytest.approx(1.15 * 7.0, rel=0.04), "one side alone: 1.38 or 0.99 times"
    # Had the change fallen on one end of the trial, it would be wrong by as much as the sides differ.
    assert costs.optimistic(1, 16) == pytest.approx(7.0)
    costs = _three()
    _observe(costs, 1, 8, 6.0, SAMPLES)
    _try(costs, 16, [6.9] * 8, back_at=8, level=6.0)
    assert costs.optimistic(1, 16) == costs.estimate(1, 16) == pytest.approx(6.9)


def test_a_trial_is_no_measurement_before_the_steps_behind_it() -> None:
    costs = _three()
    _observe(costs, 1, 8, 5.0, SAMPLES)
    _observe(costs, 1, 16, 6.0, 8)
    _observe(costs, 1, 8, 5.0, AFTER - 1)
    assert not costs.is_measured(1, 16)
    costs.observe(1, 8, 5.0)
    assert costs.is_measured(1, 16)


def test_a_width_that_steps_stay_at_becomes_the_measure_of_the_others() -> None:
    costs = _three()
    _observe(costs, 1, 8, 5.0, SAMPLES)
    _try(costs, 16, [6.0] * 8, back_at=8, level=5.0)
    _observe(costs, 1, 16, 6.0, STAY)
    _observe(costs, 1, 16, 12.0, SAMPLES)
    assert (costs.estimate(1, 8), costs.estimate(1, 16)) == (pytest.approx(10.0), pytest.approx(12.0))


def test_a_trial_that_hiccups_is_not_believed_against_the_graphs_times() -> None:
    """The host takes 9 ms of every step; the times of a trial scatter between 9 and 18."""
    costs = _three()
    _observe(costs, 1, 8, 9.0, SAMPLES)
    _try(costs, 16, (9.0, 18.0, 12.0, 16.0, 10.0, 17.0, 11.0, 14.0), back_at=8, level=9.0)
    # The graphs, which are 5/9 of a step, differ by 1 ms.
    assert 9.0 + 5 / 9 <= costs.estimate(1, 16) < 10.5
    assert costs.optimistic(1, 16) == pytest.approx(9.0)
    assert costs.pessimistic(1, 16) == pytest.approx(13.0)


def test_a_trial_whose_times_agree_is_believed_whatever_the_graphs_took() -> None:
    costs = _three()
    _observe(costs, 1, 8, 9.0, SAMPLES)
    _try(costs, 16, [14.0] * 8, back_at=8, level=9.0)
    assert costs.estimate(1, 16) == costs.optimistic(1, 16) == pytest.approx(14.0)


def test_a_time_that_cannot_be_is_in_doubt_however_well_it_agrees() -> None:
    """A trial of a wider width in a fast moment between two slow ones."""
    costs = _three()
    _observe(costs, 1, 8, 9.0, SAMPLES)
    _try(costs, 16, [6.0] * 8, back_at=8, level=9.0)
    assert costs.estimate(1, 16) > 8.5
    # Where the priors say nothing there is nothing to expect.
    costs = CostTable((8, 16), {(1, 8): 1.0, (1, 16): 1.0})
    _observe(costs, 1, 8, 9.0, SAMPLES)
    _try(costs, 16, [6.0] * 8, back_at=8, level=9.0)
    assert costs.estimate(1, 16) == pytest.approx(6.0)


def test_many_trials_leave_less_doubt_than_one() -> None:
    least = []
    for trials in (1, 8):
        costs = _three()
        for trial in range(trials):
            _observe(costs, 1, 8, 5.0, SAMPLES)
            scattered = [6.0 + 0.3 * ((trial + step) % 5 - 2) for step in range(8)]
            _try(costs, 16, scattered, back_at=8, level=5.0)
        assert costs.estimate(1, 16) == pytest.approx(6.0, abs=0.2)
        least.append(costs.optimistic(1, 16))
    assert 5.0 <= least[0] < least[1] < costs.estimate(1, 16)


def test_what_the_new_current_width_is_wrong_by_is_doubt_about_the_others() -> None:
    costs = _three()
    _observe(costs, 1, 8, 5.0, SAMPLES)
    assert costs.optimistic(1, 8) == costs.estimate(1, 8) == 5.0
    # Steps that scatter by a tenth: 16 may be wrong by some hundredths, and 8 is known against it.
    scattered = [6.0 * (0.9, 1.0, 1.1, 1.0)[step % 4] for step in range(STAY)]
    _try(costs, 16, scattered[:8], back_at=8, level=5.0)
    for ms in scattered:
        costs.observe(1, 16, ms)
    assert costs.estimate(1, 16) == pytest.approx(6.0)
    assert costs.optimistic(1, 16) == costs.estimate(1, 16), "the measure of the others"
    assert costs.estimate(1, 8) == pytest.approx(5.0)
    assert 4.0 < costs.optimistic(1, 8) < 4.9
    # Trials that agree with each other settle it.
    for _ in range(5):
        _observe(costs, 1, 16, 6.0, SAMPLES)
        _try(costs, 8, [4.5] * 8, back_at=16, level=6.0)
    assert costs.estimate(1, 8) == pytest.approx(4.5, abs=0.02)
    assert costs.optimistic(1, 8) > 4.4


def test_an_unmeasured_width_costs_no_less_than_a_measured_narrower_one() -> None:
    costs = CostTable((8, 16, 32), {(1, 8): 1.0, (1, 16): 1.5, (1, 32): 6.0})
    _observe(costs, 1, 8, 4.0)
    assert [costs.estimate(1, width) for width in costs.widths] == [4.0, 4.0, 6.0]
    _try(costs, 16, [5.0] * 8, back_at=8, level=4.0)
    assert [costs.estimate(1, width) for width in costs.widths] == [4.0, 5.0, 6.0]


def test_the_widest_narrower_measurement_is_the_bound_and_wider_ones_are_none() -> None:
    costs = CostTable((8, 16, 32, 64), {(1, width): 1.0 for width in (8, 16, 32, 64)})
    _observe(costs, 1, 8, 5.0)
    _try(costs, 16, [4.8] * 8, back_at=8, level=5.0)
    assert [costs.estimate(1, width) for width in costs.widths] == [5.0, 4.8, 4.8, 4.8]
    costs = CostTable((8, 16), {(1, 8): 1.0, (1, 16): 1.0})
    _observe(costs, 1, 16, 5.0)
    assert costs.estimate(1, 8) == 1.0


def test_hope_scales_a_prior_that_the_measured_neighbour_undercuts() -> None:
    costs = CostTable((8, 16, 32), {(1, 8): 4.0, (1, 16): 6.0, (1, 32): 10.0})
    assert [costs.optimistic(1, width) for width in costs.widths] == [4.0, 6.0, 10.0]
    _observe(costs, 1, 16, 3.0)
    assert [costs.optimistic(1, width) for width in costs.widths] == [2.0, 3.0, 5.0]
    assert [costs.estimate(1, width) for width in costs.widths] == [4.0, 3.0, 10.0]
    _observe(costs, 1, 16, 9.0, SAMPLES)
    assert [costs.optimistic(1, width) for width in costs.widths] == [5.0, 9.0, 10.0]


def test_a_measurement_that_nothing_renews_goes_stale() -> None:
    costs = CostTable((8, 16), {(1, 8): 1.0, (1, 16): 2.0, (4, 16): 2.0})
    _observe(costs, 1, 16, 50.0)
    _observe(costs, 1, 8, 1.0, STALE_AFTER)
    assert costs.is_measured(1, 16)
    costs.observe(1, 8, 1.0)
    assert (costs.is_measured(1, 16), costs.estimate(1, 16)) == (False, 2.0)
    _try(costs, 16, [3.0] * (ENOUGH_SAMPLES - 1), back_at=8, level=1.0)
    assert not costs.is_measured(1, 16), "old times must not count again"
    _try(costs, 16, [3.0] * ENOUGH_SAMPLES, back_at=8, level=1.0)
    assert costs.estimate(1, 16) == 3.0


def test_times_of_another_captured_size_age_nothing() -> None:
    costs = CostTable((8, 16), {(1, 16): 2.0, (4, 8): 1.0, (4, 16): 3.0})
    _observe(costs, 1, 16, 5.0)
    _observe(costs, 4, 8, 1.0, STALE_AFTER + 1)
    assert costs.is_measured(1, 16)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_observed_times_stay_times(seed: int) -> None:
    """Priors wrong by up to ten times, steps that scatter, widths that run in any order."""
    draw = random.Random(seed)
    widths = sorted(draw.sample((2, 4, 8, 16, 32, 64), 4))
    sizes = sorted(draw.sample(range(1, 65), 3))
    cells = [(size, width) for size in sizes for width in widths if draw.random() < 0.8] or [(1, widths[0])]
    priors = {cell: draw.uniform(0.5, 3) for cell in cells}
    true = {cell: ms * draw.choice((0.1, 0.5, 1, 2, 5)) for cell, ms in priors.items()}
    costs = CostTable(widths, priors)
    for _ in range(300):
        size, width = draw.choice(cells)
        for _ in range(draw.choice((1, 4, 8, 20))):
            costs.observe(size, width, true[size, width] * draw.lognormvariate(0, 0.3))
        for size in sizes:
            for width in costs.candidates(size) if costs.captured_batch(size) else ():
                optimistic, estimate = costs.optimistic(size, width), costs.estimate(size, width)
                assert 0 < optimistic <= estimate * (1 + 1e-9) < math.inf
                assert estimate <= costs.pessimistic(size, width) < math.inf


def test_the_order_of_the_priors_does_not_matter() -> None:
    reverse = CostTable((8, 16, 32), dict(reversed(PRIORS.items())))
    for batch_size in range(1, 18):
        assert reverse.candidates(batch_size) == _table().candidates(batch_size)


@pytest.mark.parametrize(
    ("widths", "priors", "message"),
    [
        ((), {}, "widths is empty"),
        ((1, 8), {}, "at least 2 .*got 1"),
        ((8, 8), {}, r"ascend strictly, got \[8, 8\]"),
        ((16, 8), {}, r"ascend strictly, got \[16, 8\]"),
        ((8,), {(1, 16): 1.0}, r"one of \[8\], got 16"),
        ((8,), {(0, 8): 1.0}, "captured batch size is at least 1, got 0"),
        ((8,), {(1, 8): 0.0}, "batch size 1, width 8 must be a positive number of milliseconds, got 0.0"),
        ((8,), {(1, 8): math.nan}, "positive number of milliseconds, got nan"),
    ],
)
def test_bad_tables_are_refused(widths: tuple, priors: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CostTable(widths, priors)


@pytest.mark.parametrize("ms", [0.0, -1.0, math.nan, math.inf])
def test_times_that_are_none_are_refused(ms: float) -> None:
    with pytest.raises(ValueError, match="positive number of milliseconds"):
        _table().observe(1, 8, ms)


def test_what_cannot_run_is_refused() -> None:
    costs = _table()
    with pytest.raises(ValueError, match=r"width 32 has no captured graph for batch size 5, .*\[8, 16\]"):
        costs.observe(5, 32, 1.0)
    with pytest.raises(ValueError, match=r"width 16 has no captured graph for batch size 17, .*\[8\]"):
        costs.observe(17, 16, 1.0)
    with pytest.raises(ValueError, match=r"captured are \[8, 16\]"):
        costs.estimate(5, 32)
    with pytest.raises(ValueError, match=r"one of \[8, 16, 32\], got 9"):
        costs.prior(1, 9)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        costs.candidates(0)

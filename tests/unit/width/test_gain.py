import math
import random

import pytest

from sglang_ddtree.width import GainEstimator
from sglang_ddtree.width.gain import DAMPING, OPTIMISM, PRIOR_WEIGHT

WIDTHS = (8, 16, 32, 64)
UNSEEN = -1.0


def _run(gains: GainEstimator, width: int, tokens: tuple[float, ...], request_steps: int = 20_000) -> None:
    """Steps of 10 requests at `width`, each request emitting `tokens` at the widths."""
    for _ in range(request_steps // 10):
        gains.observe(width, [10 * value for value in tokens], 10)


def test_the_neutral_prior_is_near_what_real_text_gave() -> None:
    gains = GainEstimator((8, 16, 32, 64, 128, 256))
    measured = (2.86, 3.14, 3.41, 3.67, 3.89, 4.12)
    for width, tokens in zip(gains.widths, measured, strict=True):
        assert gains.expected(width) == pytest.approx(tokens, rel=0.03)
        assert not gains.is_observed(width)


def test_observed_widths_are_what_the_steps_emitted() -> None:
    gains = GainEstimator(WIDTHS, half_life=1e6)
    draw = random.Random(1)
    sums = [0.0] * 4
    for _ in range(5000):
        tokens = sorted(draw.randint(3, 30) for _ in WIDTHS)
        sums = [total + value for total, value in zip(sums, tokens, strict=True)]
        gains.observe(64, tokens, 3)
    for width, total in zip(WIDTHS, sums, strict=True):
        assert gains.expected(width) == pytest.approx(total / 15_000, rel=0.01)
        assert gains.is_observed(width)


def test_wider_entries_are_not_read() -> None:
    told, hidden = GainEstimator(WIDTHS), GainEstimator(WIDTHS)
    told.observe(16, [5, 6, 7, 8], 2)
    hidden.observe(16, [5, 6, math.nan, -3], 2)
    assert [told.expected(width) for width in WIDTHS] == [hidden.expected(width) for width in WIDTHS]


def test_unseen_widths_go_on_with_the_last_growth_per_doubling_damped() -> None:
    gains = GainEstimator((8, 16, 64), half_life=1e6)
    _run(gains, 16, (3.0, 3.6, UNSEEN), request_steps=1_000_000)
    assert gains.expected(64) == pytest.approx(3.6 + 2 * DAMPING * 0.6, rel=1e-3)
    assert not gains.is_observed(64)


def test_the_second_width_grows_as_the_prior_where_only_the_narrowest_ran() -> None:
    prior, gains = GainEstimator(WIDTHS), GainEstimator(WIDTHS)
    _run(gains, 8, (6.0, UNSEEN, UNSEEN, UNSEEN))
    assert gains.expected(8) == pytest.approx(6.0, rel=0.05)
    for width in WIDTHS:
        ratio = gains.expected(width) / gains.expected(8)
        assert ratio == pytest.approx(prior.expected(width) / prior.expected(8))


def test_a_wider_tree_never_emits_less() -> None:
    gains = GainEstimator(WIDTHS)
    draw = random.Random(2)
    for _ in range(300):
        width = draw.choice(WIDTHS)
        requests = draw.randint(1, 64)
        totals = sorted(draw.uniform(requests, 9 * requests) for _ in WIDTHS)
        gains.observe(width, totals, requests)
        expected = [gains.expected(other) for other in WIDTHS]
        assert expected == sorted(expected)


def test_old_steps_count_half_after_the_half_life() -> None:
    gains = GainEstimator(WIDTHS, half_life=1000)
    _run(gains, 8, (6.0, UNSEEN, UNSEEN, UNSEEN), request_steps=100_000)
    before = gains.expected(8)
    _run(gains, 8, (2.0, UNSEEN, UNSEEN, UNSEEN), request_steps=1000)
    assert gains.expected(8) == pytest.approx((before + 2.0) / 2, rel=0.02)


def test_forgetting_goes_by_requests_not_by_steps() -> None:
    few, many = GainEstimator((8,), half_life=64), GainEstimator((8,), half_life=64)
    few.observe(8, [64 * 5.0], 64)
    for _ in range(64):
        many.observe(8, [5.0], 1)
    few.observe(8, [64 * 2.0], 64)
    for _ in range(64):
        many.observe(8, [2.0], 1)
    assert few.expected(8) == pytest.approx(many.expected(8), rel=0.1)


def test_a_width_left_long_ago_is_extrapolated_again() -> None:
    gains = GainEstimator(WIDTHS, half_life=100)
    _run(gains, 16, (3.0, 3.3, UNSEEN, UNSEEN))
    extrapolated = gains.expected(32)
    _run(gains, 32, (3.0, 3.3, 3.3, UNSEEN))
    assert gains.is_observed(32)
    assert gains.expected(32) < 3.35 < extrapolated
    _run(gains, 16, (3.0, 3.3, UNSEEN, UNSEEN), request_steps=100)
    assert gains.is_observed(32)
    assert gains.expected(32) < 3.4, "not forgotten at once"
    _run(gains, 16, (3.0, 3.3, UNSEEN, UNSEEN))
    assert not gains.is_observed(32)
    assert gains.expected(32) == pytest.approx(extrapolated, rel=1e-3)


def test_growth_outlives_a_change_of_difficulty() -> None:
    """Only the narrowest width runs on; the wider ones keep their factor over it."""
    gains = GainEstimator(WIDTHS, half_life=1000)
    _run(gains, 64, (4.0, 5.0, 6.0, 6.0))
    ratio = gains.expected(64) / gains.expected(8)
    _run(gains, 8, (2.0, UNSEEN, UNSEEN, UNSEEN), request_steps=500)
    assert gains.expected(8) < 3.6
    assert gains.expected(64) / gains.expected(8) == pytest.approx(ratio, rel=0.02)


def test_hope_doubles_unseen_growth_only() -> None:
    gains = GainEstimator(WIDTHS, half_life=1e6)
    _run(gains, 16, (3.0, 3.6, UNSEEN, UNSEEN), request_steps=1_000_000)
    growth = gains.expected(32) - gains.expected(16)
    assert gains.optimistic(32, 16) == pytest.approx(gains.expected(16) + OPTIMISM * growth)
    for width, current in ((8, 16), (16, 16), (16, 64)):
        assert gains.optimistic(width, current) == gains.expected(width)
    assert gains.optimistic(16, 8) == pytest.approx(gains.expected(16), rel=1e-3)
    _run(gains, 32, (3.0, 3.6, 3.7, UNSEEN), request_steps=1_000_000)
    assert gains.optimistic(32, 16) == pytest.approx(3.7, rel=1e-2)


def test_a_width_is_observed_when_observation_outweighs_extrapolation() -> None:
    gains = GainEstimator(WIDTHS, half_life=1e9)
    gains.observe(16, [40.0, 45.0, UNSEEN, UNSEEN], int(PRIOR_WEIGHT) - 1)
    assert not gains.is_observed(16)
    gains.observe(16, [6.0, 7.0, UNSEEN, UNSEEN], 2)
    assert gains.is_observed(16)
    assert not gains.is_observed(32)


@pytest.mark.parametrize(
    ("width", "totals", "requests", "message"),
    [
        (9, [1, 1, 1, 1], 1, r"one of \[8, 16, 32, 64\], got 9"),
        (8, [1], 1, "totals has 1 entries, expected 4"),
        (8, [1, 1, 1, 1], 0, "requests must be at least 1, got 0"),
        (16, [3, 2, 9, 9], 1, r"not descending up to width 16, got \[3, 2\]"),
        (8, [-1, 2, 2, 2], 1, r"from 0 .*got \[-1\]"),
        (8, [math.nan, 2, 2, 2], 1, "must be finite"),
        (8, [math.inf, 2, 2, 2], 1, "must be finite"),
    ],
)
def test_bad_observations_are_refused_and_change_nothing(
    width: int, totals: list[float], requests: int, message: str
) -> None:
    gains, fresh = GainEstimator(WIDTHS), GainEstimator(WIDTHS)
    with pytest.raises(ValueError, match=message):
        gains.observe(width, totals, requests)
    assert [gains.expected(other) for other in WIDTHS] == [fresh.expected(other) for other in WIDTHS]


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="widths is empty"):
        GainEstimator(())
    with pytest.raises(ValueError, match="half_life must be a positive number of request-steps, got 0"):
        GainEstimator(WIDTHS, half_life=0)
    with pytest.raises(ValueError, match="got 12"):
        GainEstimator(WIDTHS).expected(12)

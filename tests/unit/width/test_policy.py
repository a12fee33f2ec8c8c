import random
import subprocess
import sys
from itertools import pairwise

import pytest

from sglang_ddtree.width import CostTable, GainEstimator, WidthPolicy
from sglang_ddtree.width.policy import DWELL_STEPS, MARGIN, TRIAL_INTERVAL, TRIAL_STEPS

PAIR = (8, 16)


def _pair(narrow: float, wide: float, sizes: tuple[int, ...] = (1,), **options: float) -> WidthPolicy:
    """Widths 8 and 16 at the same times for every captured size."""
    priors = {(size, width): ms for size in sizes for width, ms in zip(PAIR, (narrow, wide), strict=True)}
    return WidthPolicy(PAIR, CostTable(PAIR, priors), **options)


def _known(policy: WidthPolicy, growth: float = 1.1) -> None:
    """So much seen at every width that gains are neither extrapolated nor moved by what follows."""
    for _ in range(20):
        policy.gains.observe(16, [3000.0, 3000.0 * growth], 1000)


def _measure(policy: WidthPolicy, width: int, ms: float, batch_size: int = 1) -> None:
    for _ in range(40):
        policy.costs.observe(batch_size, width, ms)


def _try(policy: WidthPolicy, width: int, ms: float, back_at: int, level: float) -> None:
    """As many times as a trial gives, and those at the width that it left."""
    for _ in range(TRIAL_STEPS):
        policy.costs.observe(1, width, ms)
    for _ in range(DWELL_STEPS):
        policy.costs.observe(1, back_at, level)


@pytest.mark.parametrize(("wide", "expected"), [(5.4, 16), (5.6, 8)])
def test_the_first_step_takes_the_most_tokens_per_ms(wide: float, expected: int) -> None:
    policy = _pair(5.0, wide)
    _known(policy, growth=1.1)
    assert policy.choose(1) == expected


@pytest.mark.parametrize(("short_of", "expected"), [(0.005, {8}), (-0.005, {8, 16})])
def test_a_better_width_must_be_better_by_the_margin(short_of: float, expected: set[int]) -> None:
    policy = _pair(5.0, 5.6)
    _known(policy, growth=1.1)
    for _ in range(50):
        assert policy.choose(1) == 8
    _measure(policy, 8, 5.0)
    _try(policy, 16, 5.0 * 1.1 / (1 + MARGIN - short_of), back_at=8, level=5.0)
    chosen = [policy.choose(1) for _ in range(50)]
    assert set(chosen[:1]) | set(chosen[-1:]) | {8} == expected
    assert policy.snapshot()["switches"] == len(expected) - 1


def test_a_width_is_kept_for_the_dwell() -> None:
    policy = _pair(5.0, 5.6)
    _known(policy)
    assert policy.choose(1) == 8
    _measure(policy, 8, 9.0)
    _try(policy, 16, 5.6, back_at=8, level=9.0)
    assert [policy.choose(1) for _ in range(DWELL_STEPS)] == [8] * (DWELL_STEPS - 1) + [16]
    _measure(policy, 16, 90.0)
    assert [policy.choose(1) for _ in range(DWELL_STEPS)] == [16] * (DWELL_STEPS - 1) + [8]


def test_a_batch_that_flips_finds_each_sizes_own_width_at_once() -> None:
    priors = {(1, 8): 5.0, (1, 16): 5.1, (4, 8): 5.0, (4, 16): 9.0}
    policy = WidthPolicy(PAIR, CostTable(PAIR, priors))
    _known(policy)
    flips = [1, 4] * 100 + [1, 2, 3, 4]
    assert [policy.choose(size) for size in flips] == [16, 8] * 100 + [16, 8, 8, 8]
    assert policy.snapshot()["switches"] == 0
    assert policy.snapshot()["width_per_batch"] == {1: 16, 4: 8}


def test_an_unmeasured_width_that_might_be_better_is_tried_and_kept_if_it_is() -> None:
    policy = _pair(1.0, 3.0)
    _known(policy)
    chosen = []
    for _ in range(40):
        width = policy.choose(1)
        policy.costs.observe(1, width, 4.0)  # the host's time, which no prior knew
        chosen.append(width)
    tried = [8] * DWELL_STEPS + [16] * TRIAL_STEPS + [8] * DWELL_STEPS
    assert chosen == tried + [16] * (40 - len(tried))
    assert (policy.snapshot()["trials"], policy.snapshot()["switches"]) == (1, 1)


def test_a_trial_that_fails_is_over_and_not_repeated() -> None:
    policy = _pair(1.0, 3.0)
    _known(policy)
    chosen = []
    for _ in range(600):
        width = policy.choose(1)
        policy.costs.observe(1, width, 4.0 if width == 8 else 6.0)
        chosen.append(width)
    assert chosen == [8] * DWELL_STEPS + [16] * TRIAL_STEPS + [8] * (600 - DWELL_STEPS - TRIAL_STEPS)
    assert (policy.snapshot()["trials"], policy.snapshot()["switches"]) == (1, 0)


def _extrapolated_run(policy: WidthPolicy, count: int, batch_size: int = 64) -> list[int]:
    """Times as the priors say; width 16 is no gain at all, and forgotten between two trials."""
    chosen = []
    for _ in range(count):
        width = policy.choose(batch_size)
        chosen.append(width)
        policy.costs.observe(batch_size, width, 5.0 if width == 8 else 5.5)
        policy.gains.observe(width, [3.0 * batch_size, 3.0 * batch_size], batch_size)
    return chosen


def test_a_width_of_unseen_gain_is_tried_at_most_once_an_interval() -> None:
    policy = _pair(5.0, 5.5, sizes=(64,))
    chosen = _extrapolated_run(policy, 2000)
    starts = [at for at in range(1, 2000) if chosen[at - 1 : at + 1] == [8, 16]]
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert len(starts) >= 4
    assert min(gaps) >= TRIAL_INTERVAL + TRIAL_STEPS
    assert chosen.count(16) == TRIAL_STEPS * len(starts)
    assert policy.snapshot()["switches"] == 0


def test_without_times_priors_count_as_known_but_gains_are_still_tried() -> None:
    policy = _pair(5.0, 5.6)
    for _ in range(200):
        width = policy.choose(1)
        policy.gains.observe(width, [3.0, 4.5 if width == 16 else -1.0], 1)
    assert policy.snapshot()["width_per_batch"] == {1: 16}
    assert (policy.snapshot()["trials"], policy.snapshot()["switches"]) == (1, 1)


def test_a_trial_that_gave_no_times_changes_nothing() -> None:
    """A step that a prefill interrupts is not timed; the bound alone must not decide."""
    policy = _pair(1.0, 3.0)
    _known(policy)
    chosen = []
    for _ in range(100):
        width = policy.choose(1)
        if width == 8:
            policy.costs.observe(1, 8, 4.0)
        chosen.append(width)
    assert chosen == [8] * DWELL_STEPS + [16] * TRIAL_STEPS + [8] * (100 - DWELL_STEPS - TRIAL_STEPS)


def test_a_narrower_width_needs_no_trial_of_its_gain() -> None:
    policy = _pair(5.0, 5.1)
    assert [policy.choose(1) for _ in range(DWELL_STEPS)] == [16] * DWELL_STEPS
    _measure(policy, 8, 5.0)
    _measure(policy, 16, 9.0)
    assert not policy.gains.is_observed(8)
    assert policy.choose(1) == 8
    assert (policy.snapshot()["trials"], policy.snapshot()["switches"]) == (0, 1)


def test_several_widths_on_trial_take_turns_the_most_hopeful_first() -> None:
    widths = (8, 16, 32)
    policy = WidthPolicy(widths, CostTable(widths, {(1, 8): 1.0, (1, 16): 2.0, (1, 32): 4.5}))
    for _ in range(20):
        policy.gains.observe(32, [3000.0, 3200.0, 3400.0], 1000)
    chosen = []
    for _ in range(100):
        width = policy.choose(1)
        policy.costs.observe(1, width, {8: 4.0, 16: 4.2, 32: 6.0}[width])
        chosen.append(width)
    tried = [8] * DWELL_STEPS + [16] * TRIAL_STEPS + [8] * DWELL_STEPS + [32] * TRIAL_STEPS
    assert chosen == tried + [8] * (100 - len(tried))


def test_a_trial_goes_on_when_its_batch_size_comes_back() -> None:
    priors = {(1, 8): 1.0, (1, 16): 3.0, (4, 8): 1.0, (4, 16): 9.0}
    policy = WidthPolicy(PAIR, CostTable(PAIR, priors))
    _known(policy)
    chosen = {1: [], 4: []}
    for step in range(60):
        size = (1, 4)[step % 2]
        width = policy.choose(size)
        policy.costs.observe(size, width, 4.0 if width == 8 else 6.0)
        chosen[size].append(width)
    assert chosen[1] == [8] * DWELL_STEPS + [16] * TRIAL_STEPS + [8] * (30 - DWELL_STEPS - TRIAL_STEPS)
    assert chosen[4] == [8] * 30


def test_a_batch_above_all_graphs_runs_the_narrowest_width() -> None:
    policy = _pair(5.0, 5.1, sizes=(1, 4))
    _known(policy)
    assert [policy.choose(size) for size in (4, 5, 4)] == [16, 8, 16]
    assert WidthPolicy(PAIR, CostTable(PAIR, {})).choose(1) == 8


def test_every_choice_is_a_candidate_whatever_is_told() -> None:
    widths = (4, 8, 16, 32)
    draw = random.Random(3)
    for _ in range(60):
        priors = {
            (size, width): draw.uniform(1, 50)
            for width in widths
            for size in draw.sample((1, 2, 4, 8, 16), draw.randint(0, 5))
        }
        policy = WidthPolicy(
            widths,
            CostTable(widths, priors),
            margin=draw.choice((0.0, 0.1)),
            dwell_steps=draw.randint(1, 9),
            trial_steps=draw.randint(1, 9),
            trial_interval=draw.randint(1, 30),
        )
        for step in range(300):
            size = draw.randint(1, 20)
            width = policy.choose(size)
            assert width in policy.costs.candidates(size)
            assert sum(policy.snapshot()["steps"].values()) == step + 1
            if draw.random() < 0.7:
                policy.costs.observe(size, width, draw.uniform(0.1, 100))
                policy.gains.observe(width, sorted(draw.uniform(1, 9) * size for _ in widths), size)


def test_a_snapshot_holds_the_counters_and_is_a_copy() -> None:
    policy = _pair(5.0, 5.1)
    _known(policy)
    policy.choose(1)
    snapshot = policy.snapshot()
    assert snapshot == {
        "width_per_batch": {1: 16},
        "expected_tokens": {width: policy.gains.expected(width) for width in PAIR},
        "steps": {8: 0, 16: 1},
        "switches": 0,
        "trials": 0,
    }
    snapshot["steps"][16] = 99
    assert policy.snapshot()["steps"] == {8: 0, 16: 1}


@pytest.mark.parametrize(
    ("widths", "options", "message"),
    [
        ((), {}, "widths is empty"),
        ((8, 16, 32), {}, r"widths are \[8, 16, 32\], those of costs are \[8, 16\]"),
        (PAIR, {"gains": GainEstimator((8, 32))}, r"those of gains are \[8, 32\]"),
        (PAIR, {"margin": -0.1}, "margin must be a fraction from 0, got -0.1"),
        (PAIR, {"dwell_steps": 0}, "dwell_steps must be at least 1, got 0"),
        (PAIR, {"trial_steps": 0}, "trial_steps must be at least 1, got 0"),
        (PAIR, {"trial_interval": 0}, "trial_interval must be at least 1, got 0"),
    ],
)
def test_bad_arguments_are_refused(widths: tuple, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WidthPolicy(widths, CostTable(PAIR, {}), **options)


def test_a_batch_of_none_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        _pair(1.0, 2.0).choose(0)


def test_the_decision_needs_neither_torch_nor_the_host() -> None:
    code = (
        "import sys\n"
        "from sglang_ddtree.width import CostTable, WidthPolicy\n"
        "WidthPolicy((8, 16), CostTable((8, 16), {(1, 8): 1.0})).choose(1)\n"
        "print(sorted({'torch', 'sglang', 'time'} & set(sys.modules) - BEFORE))\n"
    )
    path = f"import sys; sys.path[:0] = {sys.path!r}; BEFORE = {{'time'}} & set(sys.modules)\n"
    run = subprocess.run([sys.executable, "-c", path + code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"


def test_a_new_batch_size_starts_as_its_near_neighbour_and_not_as_a_far_one() -> None:
    # By the priors 8 is best everywhere; at batch 8 the times say 64.
    prior = {(size, width): ms for size in (1, 6, 8) for width, ms in ((8, 1.0), (64, 9.0))}
    costs = CostTable((8, 64), prior)
    policy = WidthPolicy((8, 64), costs)
    assert policy.choose(8) == 8
    for width in [8] * 20 + [64] * 8 + [8] * 8:
        costs.observe(8, width, 4.0 if width == 8 else 4.1)
    for _ in range(40):
        width = policy.choose(8)
        costs.observe(8, width, 4.0 if width == 8 else 4.1)
        policy.gains.observe(64, [8, 16], 4)
    assert policy.snapshot()["width_per_batch"] == {8: 64}
    assert policy.choose(6) == 64
    assert policy.choose(1) == 8

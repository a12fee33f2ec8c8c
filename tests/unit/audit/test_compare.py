from __future__ import annotations

import pytest

from sglang_ddtree.audit.client import Candidate, PlainAnswer
from sglang_ddtree.audit.compare import Divergence, compare, default_bound

# At position 2 the chosen token 12 has -0.5 and the second best, 99, -0.75.
PLAIN = PlainAnswer(
    chosen=(Candidate(10, -0.1), Candidate(11, -0.1), Candidate(12, -0.5), Candidate(13, -0.1)),
    top_two=(
        (Candidate(10, -0.1), Candidate(90, -4.0)),
        (Candidate(11, -0.1), Candidate(90, -4.0)),
        (Candidate(12, -0.5), Candidate(99, -0.75)),
        (Candidate(13, -0.1), Candidate(90, -4.0)),
    ),
)


def unasked(position: int, token: int) -> float:
    pytest.fail(f"asked for token {token} at {position}")


def test_equal_texts_have_no_divergence() -> None:
    assert compare(PLAIN, [10, 11, 12, 13], 0.0, unasked) is None


@pytest.mark.parametrize(("bound", "is_near_tie"), [(0.25, True), (0.3, True), (0.2499, False), (0.0, False)])
def test_the_second_best_token_is_a_near_tie_up_to_the_bound(bound: float, is_near_tie: bool) -> None:
    found = compare(PLAIN, [10, 11, 99, 50], bound, unasked)
    assert found == Divergence(2, 12, 99, 99, 0.25, 0.25, is_near_tie)


@pytest.mark.parametrize(("gap", "is_near_tie"), [(0.3, True), (0.5, False)])
def test_another_token_is_asked_for_and_judged_by_its_own_gap(gap: float, is_near_tie: bool) -> None:
    asked = []

    def gap_of(position: int, token: int) -> float:
        asked.append((position, token))
        return gap

    assert compare(PLAIN, [10, 11, 50, 13], 0.4, gap_of) == Divergence(2, 12, 50, 99, gap, 0.25, is_near_tie)
    assert asked == [(2, 50)]


def test_a_gap_that_is_not_a_number_is_a_fault() -> None:
    found = compare(PLAIN, [10, 11, 50, 13], 10.0, lambda *_: float("nan"))
    assert found is not None
    assert not found.is_near_tie


def test_an_exact_tie_listed_in_the_other_order_is_a_near_tie() -> None:
    tied = PlainAnswer((Candidate(7, -0.7),), ((Candidate(8, -0.7), Candidate(7, -0.7)),))
    assert compare(tied, [8], 0.0, unasked) == Divergence(0, 7, 8, 8, 0.0, 0.0, True)


@pytest.mark.parametrize(
    ("other", "position", "plain", "token"),
    [([10, 11], 2, 12, None), ([10, 11, 12, 13, 14], 4, None, 14), ([], 0, 10, None)],
)
def test_a_text_that_ends_early_or_goes_on_is_a_fault(
    other: list[int], position: int, plain: int | None, token: int | None
) -> None:
    assert compare(PLAIN, other, 100.0, unasked) == Divergence(
        position, plain, token, None, None, None, False
    )


def test_only_the_first_difference_counts() -> None:
    found = compare(PLAIN, [10, 11, 99, 77], 0.25, unasked)
    assert found is not None
    assert found.position == 2


@pytest.mark.parametrize(
    ("dtype", "bound"),
    [
        ("bfloat16", 0.5),
        ("auto", 0.5),
        ("half", 1 / 16),
        ("float16", 1 / 16),
        ("float32", 0.001),
        ("float", 0.001),
    ],
)
def test_the_default_bound_follows_the_dtype(dtype: str, bound: float) -> None:
    assert default_bound(dtype) == bound

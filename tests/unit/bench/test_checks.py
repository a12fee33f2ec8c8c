from __future__ import annotations

import pytest

from sglang_ddtree.bench.checks import first_difference, identity, longest_run


@pytest.mark.parametrize(
    ("ids", "expected"),
    [([], 0), ([7], 1), ([1, 1, 2, 1], 2), ([3] * 33, 33), ([1, 2] * 40, 1), ([1, 5, 5, 5, 5, 5], 5)],
)
def test_longest_run_counts_one_token_in_a_row(ids: list[int], expected: int) -> None:
    assert longest_run(ids) == expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1, 2], [1, 2, 3], 2), ([], [4], 0), ([], [], None)],
)
def test_first_difference_is_a_position(one: list[int], other: list[int], expected: int | None) -> None:
    assert first_difference(one, other) == expected


def test_identity_counts_texts_and_names_the_earliest_difference() -> None:
    found = identity([[1, 2, 3], [1, 2, 3], [9]], [[1, 2, 3], [1, 2, 4], [8]])
    assert (found.compared, found.identical, found.earliest) == (3, 1, 0)
    assert found.differences == {1: 2, 2: 0}
    assert identity([[1]], [[1]]).earliest is None

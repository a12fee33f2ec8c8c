import itertools

import pytest

from sglang_ddtree.tree import resolve_topk, tree_capacity, verify_width
from sglang_ddtree.tree.capacity import MAX_CAPACITY


@pytest.mark.parametrize(("depths", "topk"), list(itertools.product(range(1, 5), range(1, 5))))
def test_capacity_counts_every_prefix(depths: int, topk: int) -> None:
    prefixes = sum(1 for d in range(1, depths + 1) for _ in itertools.product(range(topk), repeat=d))
    assert tree_capacity(depths, topk) == prefixes


@pytest.mark.parametrize(("depths", "topk"), [(63, 64), (31, 2), (1000, 2)])
def test_capacity_saturates_where_int32_ends(depths: int, topk: int) -> None:
    assert tree_capacity(depths, topk) == MAX_CAPACITY == 2**31 - 1


def test_capacity_of_a_chain_is_its_length() -> None:
    assert tree_capacity(30, 1) == 30
    assert tree_capacity(30, 2) == 2**31 - 2


@pytest.mark.parametrize(
    ("budget", "vocab", "cap", "expected"), [(4, 100, 16, 4), (64, 10, 16, 10), (64, 100, 16, 16)]
)
def test_topk_is_the_least_of_budget_vocabulary_and_cap(
    budget: int, vocab: int, cap: int, expected: int
) -> None:
    assert resolve_topk(budget, vocab, cap) == expected


@pytest.mark.parametrize(
    ("budget", "depths", "topk", "expected"),
    [(1, 15, 1, 2), (64, 15, 16, 65), (64, 2, 3, 13), (255, 15, 1, 16)],
)
def test_width_is_the_root_and_every_node_that_can_exist(
    budget: int, depths: int, topk: int, expected: int
) -> None:
    assert verify_width(budget, depths, topk) == expected


@pytest.mark.parametrize("name", ["budget", "vocab_size", "cap"])
def test_values_below_one_are_refused_by_name(name: str) -> None:
    values = {"budget": 4, "vocab_size": 4, "cap": 4, name: 0}
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        resolve_topk(**values)
    with pytest.raises(ValueError, match="depths must be at least 1, got -1"):
        tree_capacity(-1, 4)
    with pytest.raises(ValueError, match="budget must be at least 1, got 0"):
        verify_width(0, 4, 4)

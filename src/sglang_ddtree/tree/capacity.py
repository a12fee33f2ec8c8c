"""How many nodes a draft tree can have, and the widths that follow from it."""

from __future__ import annotations

# What every builder can hold; the Triton builder's registers and sort key set the numbers.
MAX_NODES = 1024
"""Most nodes without the root: the frontier holds one lane per node."""
MAX_DEPTHS = 63
"""Most depths: 6 bits of the key."""
MAX_TOPK = 64
"""Most candidates per depth: 7 bits of the key, which must also hold the rank behind the last."""

MAX_CAPACITY = 2**31 - 1
"""Where `tree_capacity` saturates: node counts travel as int32."""


def tree_capacity(depths: int, topk: int) -> int:
    """Nodes of the full tree without its root: `topk + topk**2 + ... + topk**depths`.

    Args:
        depths: draft positions per block, L = block_size - 1, at least 1.
        topk: candidates per depth, K, at least 1.

    Returns:
        The count, or `MAX_CAPACITY` where the true count is larger.

    Raises:
        ValueError: an argument is below 1.
    """
    _require_positive(depths=depths, topk=topk)
    total, level = 0, 1
    for _ in range(depths):
        level *= topk
        total += level
        if total >= MAX_CAPACITY:
            return MAX_CAPACITY
    return total


def resolve_topk(budget: int, vocab_size: int, cap: int) -> int:
    """Candidates per depth that a tree of `budget` nodes can use.

    A depth never holds a rank beyond the budget, so more candidates are wasted.

    Raises:
        ValueError: an argument is below 1.
    """
    _require_positive(budget=budget, vocab_size=vocab_size, cap=cap)
    return min(budget, vocab_size, cap)


def verify_width(budget: int, depths: int, topk: int) -> int:
    """Tokens per request in the verify forward: the root and every node that can exist.

    Raises:
        ValueError: an argument is below 1.
    """
    _require_positive(budget=budget)
    return min(budget, tree_capacity(depths, topk)) + 1


def _require_positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")

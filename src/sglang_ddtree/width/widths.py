"""What a list of verify widths must be."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

MIN_WIDTH = 2
"""The root and one node: at 1 nothing is drafted."""


def checked_widths(widths: Sequence[int]) -> tuple[int, ...]:
    """`widths` as a tuple.

    Raises:
        ValueError: there is none, one is below `MIN_WIDTH`, or they do not ascend strictly.
    """
    found = tuple(widths)
    if not found:
        raise ValueError(f"widths is empty, expected at least one verify width of {MIN_WIDTH} or more")
    if found[0] < MIN_WIDTH:
        raise ValueError(f"a verify width is at least {MIN_WIDTH} (the root and a node), got {found[0]}")
    if any(wider <= narrower for narrower, wider in pairwise(found)):
        raise ValueError(f"widths must ascend strictly, got {list(found)}")
    return found


def index_of(width: int, widths: tuple[int, ...]) -> int:
    """Position of `width` in `widths`. Raises ValueError where it is not one of them."""
    if width not in widths:
        raise ValueError(f"width must be one of {list(widths)}, got {width}")
    return widths.index(width)

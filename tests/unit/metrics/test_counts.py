from __future__ import annotations

import random

import pytest

from sglang_ddtree.metrics.counts import AcceptedDrafts, describe_widths


def test_accepted_drafts_are_counted_at_every_depth_that_their_path_reaches() -> None:
    draw = random.Random(3)
    batches = [[draw.randrange(8) for _ in range(draw.randrange(1, 5))] for _ in range(50)]
    found = AcceptedDrafts()
    for batch in batches:
        found.add(batch)
    kept = [number for batch in batches for number in batch]
    assert (found.steps, found.trees) == (50, len(kept))
    assert found.by_depth() == [sum(number >= depth for number in kept) for depth in range(1, max(kept) + 1)]
    # Over all depths they are the draft tokens accepted.
    assert sum(found.by_depth()) == sum(kept)


def test_nothing_accepted_is_no_depth() -> None:
    found = AcceptedDrafts()
    assert found.by_depth() == []
    found.add([0, 0])
    assert (found.trees, found.by_depth()) == (2, [])


@pytest.mark.parametrize(
    ("before", "now", "text"),
    [
        ({}, {64: 9, 8: 31}, "verify width: 8 x 31, 64 x 9"),
        ({8: 31, 64: 9}, {8: 31, 64: 49}, "verify width: 64 x 40"),
        ({33: 40}, {33: 40}, ""),
        ({}, {}, ""),
    ],
)
def test_the_line_names_the_steps_since_the_last_one(
    before: dict[int, int], now: dict[int, int], text: str
) -> None:
    assert describe_widths(before, now) == text

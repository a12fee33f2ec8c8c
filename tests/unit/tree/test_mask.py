import pytest
import torch

from sglang_ddtree.tree import ancestor_mask, flat_mask_numel, write_tree_mask
from unit.tree.tree_cases import path_to_root, random_tree

POISON = 171
LENGTHS = [5, 0, 12]
WIDTH = 9


def _three_requests() -> tuple[torch.Tensor, list[int]]:
    """Masks of three trees of different sizes, and the flat buffer's cells by naive Python."""
    tree = random_tree(torch.Generator().manual_seed(3), 3, WIDTH)
    assert len(set(tree.node_count.tolist())) == 3
    cells: list[int] = []
    for request, length in enumerate(LENGTHS):
        parents = tree.parents[request].tolist()
        for slot in range(WIDTH):
            seen = path_to_root(parents, slot)
            cells += [1] * length + [int(column in seen) for column in range(WIDTH)]
    return ancestor_mask(tree), cells


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool])
def test_requests_of_different_length_lie_behind_each_other(dtype: torch.dtype) -> None:
    mask, expected = _three_requests()
    out = torch.zeros(len(expected), dtype=dtype)
    write_tree_mask(out, mask, torch.tensor(LENGTHS, dtype=torch.int32))
    assert out.int().tolist() == expected


def test_only_live_cells_are_touched() -> None:
    mask, expected = _three_requests()
    out = torch.full((len(expected) + 100,), POISON, dtype=torch.uint8)
    write_tree_mask(out, mask, torch.tensor(LENGTHS))
    assert out.tolist() == expected + [POISON] * 100


def test_a_request_reads_the_same_alone_and_in_a_batch() -> None:
    mask, expected = _three_requests()
    start = sum(WIDTH * (length + WIDTH) for length in LENGTHS[:2])
    alone = torch.empty(WIDTH * (LENGTHS[2] + WIDTH), dtype=torch.uint8)
    write_tree_mask(alone, mask[2:], torch.tensor(LENGTHS[2:]))
    assert alone.tolist() == expected[start:]


def test_stale_cells_of_a_longer_batch_are_overwritten() -> None:
    mask, expected = _three_requests()
    out = torch.zeros(4096, dtype=torch.uint8)
    write_tree_mask(out, torch.ones_like(mask), torch.tensor([60, 60, 60]))
    write_tree_mask(out, mask, torch.tensor(LENGTHS))
    assert out[: len(expected)].tolist() == expected


def test_a_buffer_too_small_is_refused_with_the_numbers() -> None:
    mask, expected = _three_requests()
    assert flat_mask_numel(3, WIDTH, 12) == 3 * WIDTH * (12 + WIDTH)
    with pytest.raises(ValueError, match=f"has 100 cells; .* need {len(expected)}"):
        write_tree_mask(torch.zeros(100, dtype=torch.bool), mask, torch.tensor(LENGTHS))
    with pytest.raises(ValueError, match="3 requests of width 9 with up to 12 prefix tokens need 567"):
        write_tree_mask(torch.zeros(566, dtype=torch.bool), mask, torch.tensor(LENGTHS), max_prefix_len=12)
    write_tree_mask(torch.zeros(567, dtype=torch.bool), mask, torch.tensor(LENGTHS), max_prefix_len=12)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (torch.zeros(999, dtype=torch.int32), "bool or uint8 tensor, got torch.int32"),
        (torch.zeros(9, 99, dtype=torch.bool), r"1-d bool or uint8 tensor, got torch.bool \[9, 99\]"),
        (torch.zeros(1998, dtype=torch.bool)[::2], "contiguous"),
    ],
)
def test_a_buffer_of_another_kind_is_refused(out: torch.Tensor, message: str) -> None:
    mask, _ = _three_requests()
    with pytest.raises(ValueError, match=message):
        write_tree_mask(out, mask, torch.tensor(LENGTHS))

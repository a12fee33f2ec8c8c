import pytest
import torch

from sglang_ddtree.recurrent import ancestor_taps
from unit.tree.tree_cases import as_tree, path_to_root, random_tree


def test_taps_of_a_small_tree() -> None:
    tree = as_tree([[-1, 0, 1, 0]], [[5, 6, 7, 8]], 5)
    assert ancestor_taps(tree, 4)[0].tolist() == [
        [0, -1, -2, -3],
        [1, 0, -1, -2],
        [2, 1, 0, -1],
        [3, 0, -1, -2],
        [4, -1, -2, -3],
    ]


@pytest.mark.parametrize("taps", [1, 2, 4, 7])
def test_taps_follow_the_path_to_the_root_and_on_into_the_window(taps: int) -> None:
    tree = random_tree(torch.Generator().manual_seed(taps), 4, 21)
    got = ancestor_taps(tree, taps)
    assert got.dtype == torch.int32
    for request in range(4):
        for slot in range(21):
            path = path_to_root(tree.parents[request].tolist(), slot)
            expected = (path + list(range(-1, -taps - 1, -1)))[:taps]
            assert got[request, slot].tolist() == expected


def test_taps_fill_the_first_rows_of_a_static_buffer() -> None:
    tree = random_tree(torch.Generator().manual_seed(0), 2, 9)
    buffer = torch.full((5, 9, 4), 77, dtype=torch.int32)
    got = ancestor_taps(tree, 4, out=buffer)
    assert got.data_ptr() == buffer.data_ptr()
    assert torch.equal(buffer[:2], ancestor_taps(tree, 4))
    assert (buffer[2:] == 77).all()


@pytest.mark.parametrize(
    "out", [torch.empty(1, 9, 4, dtype=torch.int32), torch.empty(2, 9, 4), torch.empty(2, 9, 3).int()]
)
def test_a_buffer_that_does_not_fit_is_refused(out: torch.Tensor) -> None:
    tree = random_tree(torch.Generator().manual_seed(0), 2, 9)
    with pytest.raises(ValueError, match="expected int32"):
        ancestor_taps(tree, 4, out=out)
    with pytest.raises(ValueError, match="at least 1"):
        ancestor_taps(tree, 0)

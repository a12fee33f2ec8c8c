import pytest
import torch

from sglang_ddtree.tree import (
    DraftTree,
    ancestor_mask,
    build_tree,
    lay_out,
    links,
    positions,
    write_tree_mask,
)
from unit.tree.tree_cases import as_tree, path_to_root, random_candidates, random_tree

SEEDS = range(20)

# Nodes 1 and 3 under the root, 2 and 5 under 1, 4 under 3; slots 6 and 7 unused.
SMALL = as_tree([[-1, 0, 1, 0, 3, 1]], [[9, 1, 2, 3, 4, 5]], 8)


def _random(seed: int) -> DraftTree:
    return random_tree(torch.Generator().manual_seed(seed), 3, 1 + seed * 2)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_row_sees_itself_and_its_ancestors_alone(seed: int) -> None:
    tree = _random(seed)
    mask = ancestor_mask(tree)
    assert mask.dtype == torch.bool
    for request in range(tree.batch_size):
        parents = tree.parents[request].tolist()
        for slot in range(tree.width):
            seen = mask[request, slot].nonzero().flatten().tolist()
            assert seen == sorted(path_to_root(parents, slot))


def test_an_unused_slot_sees_itself_and_nobody_sees_it() -> None:
    mask = ancestor_mask(SMALL)[0]
    for slot in (6, 7):
        assert mask[slot].nonzero().flatten().tolist() == [slot]
        assert mask[:, slot].nonzero().flatten().tolist() == [slot]


@pytest.mark.parametrize("seed", SEEDS)
def test_position_is_the_prefix_length_plus_the_depth(seed: int) -> None:
    tree = _random(seed)
    lengths = [7, 0, 1000]
    got = positions(tree, torch.tensor(lengths, dtype=torch.int32))
    assert got.dtype == torch.int64
    for request in range(3):
        parents = tree.parents[request].tolist()
        depths = [len(path_to_root(parents, slot)) - 1 for slot in range(tree.width)]
        assert got[request].tolist() == [lengths[request] + depth for depth in depths]


def test_links_are_first_child_and_next_sibling_by_slot() -> None:
    index, next_token, next_sibling = links(SMALL)
    assert index.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert next_token.tolist() == [[1, 2, -1, 4, -1, -1, -1, -1]]
    assert next_sibling.tolist() == [[-1, 3, 5, -1, -1, -1, -1, -1]]


@pytest.mark.parametrize("seed", SEEDS)
def test_links_visit_every_child_once_in_best_first_order(seed: int) -> None:
    tree = _random(seed)
    index, next_token, next_sibling = links(tree)
    assert index.flatten().tolist() == list(range(3 * tree.width))
    for request in range(tree.batch_size):
        parents = tree.parents[request].tolist()
        first, younger = next_token[request].tolist(), next_sibling[request].tolist()
        for slot in range(tree.width):
            visited, at = [], first[slot]
            while at >= 0:
                visited.append(at)
                at = younger[at]
            assert visited == [i for i in range(tree.width) if parents[i] == slot]
        for slot in range(int(tree.node_count[request]), tree.width):
            assert (first[slot], younger[slot]) == (-1, -1)


def test_topology_is_the_five_tensors_at_once() -> None:
    tree = _random(9)
    lengths = torch.tensor([3, 50, 8])
    _, topology = lay_out(tree, lengths)
    assert torch.equal(topology.positions, positions(tree, lengths))
    assert torch.equal(topology.ancestor_mask, ancestor_mask(tree))
    got = (topology.retrieve_index, topology.retrieve_next_token, topology.retrieve_next_sibling)
    for left, right in zip(got, links(tree), strict=True):
        assert torch.equal(left, right)
        assert left.is_contiguous()


def test_a_length_per_request_is_required() -> None:
    with pytest.raises(ValueError, match=r"prefix_lens is \[2\], expected \[1\]"):
        lay_out(SMALL, torch.tensor([1, 2]))


def test_the_first_slots_of_a_tree_are_the_tree_of_a_smaller_budget() -> None:
    candidates = random_candidates(torch.Generator().manual_seed(3), 3, 6, 5)
    roots, lengths = torch.tensor([1, 2, 3]), torch.tensor([10, 20, 30])
    wide = build_tree(candidates, roots, 40)
    for width in (2, 8, 17, 41):
        cut, topology = lay_out(wide, lengths, width)
        alone = build_tree(candidates, roots, width - 1)
        for left, right in zip(cut.tensors, alone.tensors, strict=True):
            assert torch.equal(left, right), width
        _, expected = lay_out(alone, lengths)
        for name in ("positions", "ancestor_mask", "retrieve_next_token", "retrieve_next_sibling"):
            assert torch.equal(getattr(topology, name), getattr(expected, name)), (width, name)


def test_the_flat_mask_has_the_tree_cells_of_the_whole_mask() -> None:
    tree, lengths = _random(7), torch.tensor([4, 0, 9])
    width = 6
    cells = width * (13 + 3 * width)
    whole, found = torch.zeros(cells, dtype=torch.bool), torch.ones(cells, dtype=torch.bool)
    _, topology = lay_out(tree, lengths, width, found)
    # The prefix is true in both: `found` starts as all true.
    write_tree_mask(whole, topology.ancestor_mask, lengths)
    assert torch.equal(found, whole)
    assert not whole.all()


@pytest.mark.parametrize("width", [0, 100])
def test_a_width_outside_the_tree_is_refused(width: int) -> None:
    with pytest.raises(ValueError, match=f"width must be in 1..8, got {width}"):
        lay_out(SMALL, torch.tensor([1]), width)

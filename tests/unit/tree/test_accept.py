import pytest
import torch

from sglang_ddtree.tree import Acceptance, DraftTree, accept_path, ancestor_mask
from unit.tree.tree_cases import as_tree, likely_targets, random_tree


def _walk(tree: DraftTree, request: int, targets: torch.Tensor) -> tuple[list[int], list[int]]:
    """(slots, emitted tokens) by walking from the root, one choice at a time."""
    parents, tokens = tree.parents[request].tolist(), tree.tokens[request].tolist()
    choices = targets[request].tolist()
    path, emitted = [0], [choices[0]]
    while True:
        fitting = [
            slot
            for slot in range(1, int(tree.node_count[request]))
            if parents[slot] == path[-1] and tokens[slot] == emitted[-1]
        ]
        if not fitting:
            return path, emitted
        (slot,) = fitting
        path.append(slot)
        emitted.append(choices[slot])


def _accept(tree: DraftTree, targets: torch.Tensor) -> Acceptance:
    return accept_path(tree, ancestor_mask(tree), targets)


def _assert_accepts(got: Acceptance, request: int, path: list[int], emitted: list[int], depth: int) -> None:
    padding = depth + 1 - len(path)
    assert got.accept_index[request].tolist() == path + [-1] * padding
    assert got.predict[request].tolist() == emitted + [0] * padding
    assert got.accept_lens[request].item() == len(path) == len(emitted)
    assert got.bonus_tokens[request].item() == emitted[-1]
    assert got.last_node[request].item() == path[-1]


def test_acceptance_is_the_walk_along_the_targets_choices() -> None:
    lengths: dict[int, int] = {}
    scattered = 0
    for seed in range(150):
        generator = torch.Generator().manual_seed(seed)
        tree = random_tree(generator, 4, 1 + seed % 40)
        targets = likely_targets(generator, tree)
        got = _accept(tree, targets)
        for request in range(4):
            path, emitted = _walk(tree, request, targets)
            _assert_accepts(got, request, path, emitted, tree.max_depth)
            lengths[len(path)] = lengths.get(len(path), 0) + 1
            scattered += path != list(range(len(path)))
    # The cases are worth something: short and long paths, many of them no prefix of the slots.
    assert len(lengths) >= 6
    assert scattered > 100


def test_accepted_path_need_not_be_a_prefix() -> None:
    tree = as_tree([[-1, 0, 1, 0, 3, 4]], [[9, 1, 2, 3, 4, 5]], 6)
    targets = torch.tensor([[3, 70, 71, 4, 5, 6]])
    _assert_accepts(_accept(tree, targets), 0, [0, 3, 4, 5], [3, 4, 5, 6], 3)


def test_a_node_fits_its_parents_choice_and_not_its_own() -> None:
    """Off by one between root and nodes would accept everything here, or nothing below."""
    tree = as_tree([[-1, 0, 1, 2]], [[9, 1, 2, 3]], 4)
    _assert_accepts(_accept(tree, torch.tensor([[9, 1, 2, 3]])), 0, [0], [9], 3)
    _assert_accepts(_accept(tree, torch.tensor([[1, 2, 3, 4]])), 0, [0, 1, 2, 3], [1, 2, 3, 4], 3)


def test_nothing_below_a_rejected_node_is_accepted() -> None:
    tree = as_tree([[-1, 0, 1, 2]], [[9, 1, 2, 3]], 4)
    _assert_accepts(_accept(tree, torch.tensor([[8, 2, 3, 4]])), 0, [0], [8], 3)


def test_an_unused_slot_is_never_accepted() -> None:
    """Unused slots hold token 0, which a target may well choose."""
    tree = as_tree([[-1, 0], [-1]], [[9, 0], [9]], 5)
    got = _accept(tree, torch.zeros(2, 5, dtype=torch.int64))
    _assert_accepts(got, 0, [0, 1], [0, 0], 1)
    _assert_accepts(got, 1, [0], [0], 1)


def test_every_request_accepts_its_own_length() -> None:
    chain = [-1, 0, 1, 2]
    tree = as_tree([chain] * 4, [[9, 1, 2, 3]] * 4, 4)
    targets = torch.tensor([[5, 0, 0, 0], [1, 5, 0, 0], [1, 2, 5, 0], [1, 2, 3, 5]])
    got = _accept(tree, targets)
    assert got.accept_lens.tolist() == [1, 2, 3, 4]
    assert got.bonus_tokens.tolist() == [5, 5, 5, 5]
    assert got.last_node.tolist() == [0, 1, 2, 3]


def test_types_are_those_of_the_contract() -> None:
    tree = as_tree([[-1, 0]], [[9, 1]], 2)
    got = _accept(tree, torch.tensor([[1, 2]]))
    assert (got.accept_index.dtype, got.accept_lens.dtype) == (torch.int32, torch.int32)
    assert {got.predict.dtype, got.bonus_tokens.dtype, got.last_node.dtype} == {torch.int64}


def test_shapes_that_do_not_fit_are_refused() -> None:
    tree = as_tree([[-1, 0]], [[9, 1]], 2)
    mask = ancestor_mask(tree)
    with pytest.raises(ValueError, match=r"target_tokens is \[1, 3\], expected \[1, 2\]"):
        accept_path(tree, mask, torch.zeros(1, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"ancestor_mask is \[2, 2\], expected \[1, 2, 2\]"):
        accept_path(tree, mask[0], torch.zeros(1, 2, dtype=torch.int64))

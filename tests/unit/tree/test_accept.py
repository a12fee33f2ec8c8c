import pytest
import torch

from sglang_ddtree.tree import (
    Acceptance,
    DraftTree,
    WidthTally,
    ancestor_mask,
    lay_out,
    settle_path,
)
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
    """The paths alone, of requests whose slots do not matter."""
    window = max(tree.width, tree.max_depth + 1)
    prefix_lens = torch.zeros(tree.batch_size, dtype=torch.int64, device=targets.device)
    slots = torch.arange(window, device=targets.device).repeat(tree.batch_size, 1)
    return settle_path(tree, ancestor_mask(tree), targets, prefix_lens, slots)[0]


def _assert_accepts(got: Acceptance, request: int, path: list[int], emitted: list[int], depth: int) -> None:
    padding = depth + 1 - len(path)
    assert got.accept_index[request].tolist() == path + [-1] * padding
    assert got.predict[request].tolist() == emitted + [0] * padding
    assert got.accept_lens[request].item() == len(path) == len(emitted)
    assert got.bonus_tokens[request].item() == emitted[-1]


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


def test_types_are_those_of_the_contract() -> None:
    tree = as_tree([[-1, 0]], [[9, 1]], 2)
    got = _accept(tree, torch.tensor([[1, 2]]))
    assert (got.accept_index.dtype, got.accept_lens.dtype) == (torch.int32, torch.int32)
    assert {got.predict.dtype, got.bonus_tokens.dtype} == {torch.int64}


def test_shapes_that_do_not_fit_are_refused() -> None:
    tree = as_tree([[-1, 0]], [[9, 1]], 2)
    mask, slots = ancestor_mask(tree), torch.arange(3).view(1, 3)
    with pytest.raises(ValueError, match=r"target_tokens is \[1, 3\], expected \[1, 2\]"):
        settle_path(tree, mask, torch.zeros(1, 3, dtype=torch.int64), torch.tensor([0]), slots)
    with pytest.raises(ValueError, match=r"ancestor_mask is \[2, 2\], expected \[1, 2, 2\]"):
        settle_path(tree, mask[0], torch.zeros(1, 2, dtype=torch.int64), torch.tensor([0]), slots)


def test_rows_lead_each_node_of_the_path_to_its_place_in_the_text() -> None:
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        tree = random_tree(generator, 3, 1 + seed % 40)
        targets = likely_targets(generator, tree)
        window = max(tree.width, tree.max_depth + 1)
        slots = 100 + torch.randperm(3 * window, generator=generator).view(3, window)
        prefix = torch.tensor([5, 0, 900])
        got, rows = settle_path(tree, ancestor_mask(tree), targets, prefix, slots)
        # A cache whose row at a node's slot holds the node's number.
        cache = torch.full((100 + 3 * window,), -1)
        for request in range(3):
            cache[slots[request, : tree.width]] = torch.arange(tree.width)
        cache[rows.targets.flatten()] = cache[rows.sources.flatten()].clone()
        for request in range(3):
            path, _ = _walk(tree, request, targets)
            assert cache[slots[request, : len(path)]].tolist() == path
            assert rows.rows[request, : len(path)].tolist() == [request * tree.width + slot for slot in path]
            assert rows.new_seq_lens[request].item() == prefix[request].item() + len(path)
            assert rows.positions[request].tolist() == list(
                range(int(prefix[request]), int(prefix[request]) + tree.max_depth + 1)
            )
            rest = slots[request, len(path) : tree.max_depth + 1].tolist()
            assert rows.sources[request, len(path) :].tolist() == rest
        assert got.accept_lens.tolist() == [len(_walk(tree, request, targets)[0]) for request in range(3)]


def test_the_tally_is_what_each_smaller_width_would_have_emitted() -> None:
    widths = torch.tensor([2, 4, 9, 30], dtype=torch.int32)
    tally = WidthTally(widths, torch.zeros(5, dtype=torch.int64))
    expected = [0] * 5
    differs = 0
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        tree = random_tree(generator, 2, 40)
        targets = likely_targets(generator, tree)
        slots = torch.arange(2 * 60).view(2, 60)
        settle_path(tree, ancestor_mask(tree), targets, torch.tensor([3, 4]), slots, tally)
        emitted = []
        for number, width in enumerate(widths.tolist()):
            if width > tree.width:
                emitted.append(-1)
                continue
            cut, _ = lay_out(tree, torch.tensor([3, 4]), width)
            lens = _accept(cut, targets[:, :width].contiguous()).accept_lens
            emitted.append(int(lens.sum()))
            expected[number] += emitted[-1]
        expected[4] += 2
        differs += len(set(emitted)) > 1
    assert tally.totals.tolist() == expected
    assert differs > 10


def test_settling_refuses_what_does_not_fit() -> None:
    tree = as_tree([[-1, 0]], [[9, 1]], 2)
    mask, targets = ancestor_mask(tree), torch.zeros(1, 2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"prefix_lens is \[2\], expected \[1\]"):
        settle_path(tree, mask, targets, torch.tensor([1, 2]), torch.zeros(1, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"slots is \[1, 1\], expected"):
        settle_path(tree, mask, targets, torch.tensor([1]), torch.zeros(1, 1, dtype=torch.int64))

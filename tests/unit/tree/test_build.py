import itertools
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_ddtree.tree import DraftCandidates, DraftTree, build_tree, tree_capacity, verify_width
from unit.tree.tree_cases import assert_same_tree, random_candidates

CPU_BUILDERS = ("torch", "reference")


def test_torch_and_heap_agree_on_1000_random_cases() -> None:
    """Same nodes, depths and parents over depth 1..31, cap 1..64, budget 1..256, batch 1..8."""
    draw = random.Random(20260412)
    generator = torch.Generator().manual_seed(1)
    for case in range(1000):
        depths, topk = draw.randint(1, 31), draw.randint(1, 64)
        budget, batch = draw.randint(1, 256), draw.randint(1, 8)
        candidates = random_candidates(
            generator, batch, depths, topk, vocab=100, sharpness=draw.choice((0.5, 2.0, 5.0))
        )
        roots = torch.randint(100, (batch,), generator=generator)
        expected = build_tree(candidates, roots, budget, builder="reference")
        got = build_tree(candidates, roots, budget, builder="torch")
        assert_same_tree(got, expected, f"case {case}: L={depths} K={topk} budget={budget} B={batch}")


def _all_prefixes(candidates: DraftCandidates, request: int) -> list[tuple[float, tuple[int, ...]]]:
    """(score, tokens) of every prefix, best first, by enumeration in float64."""
    logprobs = candidates.logprobs[request].double().tolist()
    ids = candidates.token_ids[request].tolist()
    prefixes = []
    for depth in range(1, len(ids) + 1):
        for ranks in itertools.product(range(len(ids[0])), repeat=depth):
            score = math.fsum(logprobs[d][k] for d, k in enumerate(ranks))
            prefixes.append((score, tuple(ids[d][k] for d, k in enumerate(ranks))))
    return sorted(prefixes, key=lambda item: -item[0])


def _paths(tree: DraftTree, request: int) -> list[tuple[int, ...]]:
    tokens, parents = tree.tokens[request].tolist(), tree.parents[request].tolist()
    paths: list[tuple[int, ...]] = [()]
    for slot in range(1, int(tree.node_count[request])):
        paths.append((*paths[parents[slot]], tokens[slot]))
    return paths[1:]


@pytest.mark.parametrize("builder", CPU_BUILDERS)
@pytest.mark.parametrize(
    ("depths", "topk", "budget"), [(1, 5, 3), (2, 3, 12), (3, 4, 20), (4, 3, 50), (5, 2, 62), (4, 4, 100)]
)
def test_nodes_are_the_most_probable_of_all_prefixes(
    builder: str, depths: int, topk: int, budget: int
) -> None:
    generator = torch.Generator().manual_seed(depths * 100 + topk)
    for _ in range(5):
        candidates = random_candidates(generator, 2, depths, topk, vocab=30)
        tree = build_tree(candidates, torch.tensor([1, 2]), budget, builder=builder)
        for request in range(2):
            ranked = _all_prefixes(candidates, request)
            expected = [path for _, path in ranked[: min(budget, len(ranked))]]
            assert _paths(tree, request) == expected
            # Control: another depth order is another tree, so the comparison can fail.
            flipped = DraftCandidates(candidates.token_ids.flip(1), candidates.logprobs.flip(1))
            if depths > 1:
                assert [path for _, path in _all_prefixes(flipped, request)[: len(expected)]] != expected


@st.composite
def _tied_candidates(draw: st.DrawFn) -> tuple[DraftCandidates, int]:
    """Few distinct values, 0.0 and -inf among them: many equal scores, many missing nodes."""
    batch, depths, topk = draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.integers(1, 6))
    value = st.sampled_from([0.0, -0.5, -0.5, -1.0, -3.0, -math.inf])
    rows = [
        [sorted(draw(st.lists(value, min_size=topk, max_size=topk)), reverse=True) for _ in range(depths)]
        for _ in range(batch)
    ]
    ids = torch.arange(topk).expand(batch, depths, topk).contiguous()
    return DraftCandidates(ids, torch.tensor(rows)), draw(st.integers(1, 60))


@settings(max_examples=200, deadline=None)
@given(_tied_candidates())
def test_ties_zeros_and_missing_candidates_still_give_a_valid_tree(
    case: tuple[DraftCandidates, int],
) -> None:
    candidates, budget = case
    roots = torch.zeros(candidates.batch_size, dtype=torch.int64)
    tree = build_tree(candidates, roots, budget, builder="torch")
    tree.check_integrity()
    assert_same_tree(tree, build_tree(candidates, roots, budget, builder="reference"), "tied")
    for request in range(candidates.batch_size):
        finite = sum(score > -math.inf for score, _ in _all_prefixes(candidates, request))
        assert int(tree.node_count[request]) == 1 + min(budget, finite)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    batch=st.integers(1, 4),
    depths=st.integers(1, 20),
    topk=st.integers(1, 20),
    budget=st.integers(1, 128),
)
def test_a_tree_is_prefix_closed_full_sized_and_free_of_twins(
    seed: int, batch: int, depths: int, topk: int, budget: int
) -> None:
    candidates = random_candidates(torch.Generator().manual_seed(seed), batch, depths, topk)
    tree = build_tree(candidates, torch.arange(batch), budget)
    tree.check_integrity()  # parents come first, depths fit, no two siblings share a token
    assert tree.node_count.tolist() == [1 + min(budget, tree_capacity(depths, topk))] * batch
    assert tree.width == verify_width(budget, depths, topk)
    assert tree.tokens[:, 0].tolist() == list(range(batch))


@pytest.mark.parametrize("builder", CPU_BUILDERS)
def test_a_certain_child_comes_after_its_parent(builder: str) -> None:
    candidates = DraftCandidates(torch.zeros(1, 8, 1, dtype=torch.int64), torch.zeros(1, 8, 1))
    tree = build_tree(candidates, torch.tensor([9]), 8, builder=builder)
    assert tree.parents.tolist() == [[-1, 0, 1, 2, 3, 4, 5, 6, 7]]
    assert tree.depths.tolist() == [list(range(9))]


@pytest.mark.parametrize("builder", CPU_BUILDERS)
def test_slots_without_a_node_are_empty_and_last(builder: str) -> None:
    logprobs = torch.tensor([[[-1.0, -math.inf], [-2.0, -math.inf]], [[-math.inf] * 2, [-1.0, -2.0]]])
    ids = torch.tensor([[[5, 6], [7, 8]], [[5, 6], [7, 8]]])
    tree = build_tree(DraftCandidates(ids, logprobs), torch.tensor([3, 4]), 6, width=9, builder=builder)
    assert tree.node_count.tolist() == [3, 1]
    assert tree.tokens.tolist() == [[3, 5, 7, 0, 0, 0, 0, 0, 0], [4, 0, 0, 0, 0, 0, 0, 0, 0]]
    assert tree.parents.tolist() == [[-1, 0, 1] + [-1] * 6, [-1] * 9]
    assert tree.depths.tolist() == [[0, 1, 2] + [0] * 6, [0] * 9]
    tree.check_integrity()


@pytest.mark.parametrize("builder", CPU_BUILDERS)
def test_a_request_gets_the_same_tree_alone_and_in_a_batch(builder: str) -> None:
    candidates = random_candidates(torch.Generator().manual_seed(5), 6, 7, 9)
    roots = torch.arange(6)
    together = build_tree(candidates, roots, 40, builder=builder)
    for request in range(6):
        one = slice(request, request + 1)
        alone = build_tree(
            DraftCandidates(candidates.token_ids[one], candidates.logprobs[one]),
            roots[one],
            40,
            builder=builder,
        )
        assert torch.equal(alone.parents[0], together.parents[request])
        assert torch.equal(alone.tokens[0], together.tokens[request])


def test_bad_arguments_are_refused_with_what_is_allowed() -> None:
    candidates = random_candidates(torch.Generator(), 2, 3, 4)
    roots = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(
        ValueError, match="width 10 cannot hold the root and 16 nodes: it must be at least 17"
    ):
        build_tree(candidates, roots, 16, width=10)
    with pytest.raises(ValueError, match="budget must be at least 1, got 0"):
        build_tree(candidates, roots, 0)
    with pytest.raises(ValueError, match=r"root_tokens is \[3\], expected \[2\]"):
        build_tree(candidates, torch.zeros(3, dtype=torch.int64), 4)
    with pytest.raises(ValueError, match="builder must be auto, reference, torch or triton, got 'heap'"):
        build_tree(candidates, roots, 4, builder="heap")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("depths", "topk", "budget", "message"),
    [
        (2, 2000, 1025, "MAX_NODES = 1024, got 1025"),
        (64, 2, 8, "MAX_DEPTHS = 63"),
        (2, 65, 8, "MAX_TOPK = 64"),
    ],
)
def test_limits_of_the_triton_builder_are_named(depths: int, topk: int, budget: int, message: str) -> None:
    pytest.importorskip("triton")
    candidates = random_candidates(torch.Generator(), 1, depths, topk, vocab=2000)
    with pytest.raises(ValueError, match=message):
        build_tree(candidates, torch.zeros(1, dtype=torch.int64), budget, builder="triton")


@pytest.mark.parametrize(
    ("field", "slot", "value", "message"),
    [
        ("parents", 2, 2, "node 2 has parent 2, allowed 0..1"),
        ("depths", 2, 3, "node 2 has depth 3"),
        ("tokens", 2, 5, "nodes 1 and 2 are both token 5 under parent 0"),
        ("parents", 0, 1, "root has parent 1"),
        ("tokens", 3, 1, "unused slot 3 holds token 1"),
    ],
)
def test_integrity_check_names_the_broken_slot(field: str, slot: int, value: int, message: str) -> None:
    tree = DraftTree(
        tokens=torch.tensor([[9, 5, 6, 0]]),
        parents=torch.tensor([[-1, 0, 0, -1]]),
        depths=torch.tensor([[0, 1, 1, 0]]),
        node_count=torch.tensor([3], dtype=torch.int32),
        max_depth=2,
    )
    tree.check_integrity()
    getattr(tree, field)[0, slot] = value
    with pytest.raises(ValueError, match=message):
        tree.check_integrity()

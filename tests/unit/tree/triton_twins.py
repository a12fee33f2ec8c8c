"""Every Triton kernel against its plain torch twin, on CUDA or, interpreted, on the CPU.

As a script, `TRITON_INTERPRET=1 python triton_twins.py NAME` runs one comparison on the CPU and prints how
many cases it held. The interpreter must be chosen before Triton is imported, hence a process of its own.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch

from sglang_ddtree.tree import DraftCandidates, DraftTree, ancestor_mask, build_tree, verify_width
from sglang_ddtree.tree.accept import accept_path_torch
from sglang_ddtree.tree.accept_triton import accept_path_triton
from sglang_ddtree.tree.candidates_triton import row_logsumexp_triton
from sglang_ddtree.tree.mask import write_tree_mask_torch
from sglang_ddtree.tree.mask_triton import write_tree_mask_triton
from sglang_ddtree.tree.topology import tree_topology_torch
from sglang_ddtree.tree.topology_triton import tree_topology_triton
from unit.tree.tree_cases import likely_targets, random_candidates, random_tree

POISON = 171


def tree_to(tree: DraftTree, device: str) -> DraftTree:
    tensors = (tree.tokens, tree.parents, tree.depths, tree.node_count)
    return DraftTree(*(tensor.to(device) for tensor in tensors), tree.max_depth)


def candidates_to(candidates: DraftCandidates, device: str) -> DraftCandidates:
    return DraftCandidates(candidates.token_ids.to(device), candidates.logprobs.to(device))


def assert_equal_fields(got: Any, expected: Any, case: str) -> None:
    for field in fields(expected):
        left, right = getattr(got, field.name), getattr(expected, field.name)
        if isinstance(right, torch.Tensor):
            assert left.dtype == right.dtype, (case, field.name, left.dtype, right.dtype)
            assert torch.equal(left.cpu(), right), (case, field.name)
        else:
            assert left == right, (case, field.name)


def _build_case(device: str, candidates: DraftCandidates, budget: int, spare: int, case: str) -> None:
    batch, depths, topk = candidates.logprobs.shape
    roots = torch.arange(batch) + 7
    width = verify_width(budget, depths, topk) + spare
    expected = build_tree(candidates, roots, budget, width=width, builder="torch")
    got = build_tree(
        candidates_to(candidates, device), roots.to(device), budget, width=width, builder="triton"
    )
    assert_equal_fields(got, expected, case)


def build(device: str, cases: int, max_budget: int) -> int:
    """Random trees over depth 1..31, cap 1..64, batch 1..8."""
    draw, generator = random.Random(1), torch.Generator().manual_seed(1)
    for number in range(cases):
        depths, topk, budget = draw.randint(1, 31), draw.randint(1, 64), draw.randint(1, max_budget)
        batch = draw.randint(1, 8) if max_budget > 64 else draw.randint(1, 2)
        candidates = random_candidates(
            generator, batch, depths, topk, vocab=100, sharpness=draw.choice((0.5, 2.0, 5.0))
        )
        case = f"case {number}: L={depths} K={topk} budget={budget} B={batch}"
        _build_case(device, candidates, budget, draw.choice((0, 0, 3)), case)
    return cases


def build_limits(device: str, cases: int, max_budget: int) -> int:
    """The corners: one depth, one candidate, the widest tree, the deepest."""
    del cases, max_budget
    generator = torch.Generator().manual_seed(2)
    corners = [(1, 1, 1), (1, 64, 64), (63, 1, 63), (63, 64, 150), (4, 3, 120)]
    if device == "cuda":
        corners += [(63, 64, 1024), (2, 64, 1024), (5, 3, 363), (15, 16, 513)]
    for depths, topk, budget in corners:
        candidates = random_candidates(generator, 1, depths, topk)
        _build_case(device, candidates, budget, 0, f"L={depths} K={topk} budget={budget}")
    return len(corners)


def build_ties(device: str, cases: int, max_budget: int) -> int:
    """Equal scores, exact zeros and -inf: the same tree all the same."""
    draw = random.Random(3)
    values = (0.0, -0.0, -0.5, -0.5, -1.0, -3.0, float("-inf"))
    for number in range(cases):
        depths, topk = draw.randint(1, 6), draw.randint(1, 6)
        rows = [sorted((draw.choice(values) for _ in range(topk)), reverse=True) for _ in range(depths)]
        ids = torch.arange(topk).expand(1, depths, topk).contiguous()
        _build_case(
            device,
            DraftCandidates(ids, torch.tensor([rows])),
            draw.randint(1, max_budget),
            2,
            f"{number}: {rows}",
        )
    return cases


def topology(device: str, cases: int, max_budget: int) -> int:
    draw, generator = random.Random(4), torch.Generator().manual_seed(4)
    for number in range(cases):
        tree = random_tree(generator, draw.randint(1, 3), draw.randint(1, max_budget + 1), vocab=400)
        lengths = torch.randint(100_000, (tree.batch_size,), generator=generator, dtype=torch.int32)
        got = tree_topology_triton(tree_to(tree, device), lengths.to(device))
        assert_equal_fields(got, tree_topology_torch(tree, lengths), f"case {number}")
    return cases


def accept(device: str, cases: int, max_budget: int) -> int:
    draw, generator = random.Random(5), torch.Generator().manual_seed(5)
    for number in range(cases):
        tree = random_tree(generator, draw.randint(1, 4), draw.randint(1, max_budget + 1), vocab=400)
        targets = likely_targets(generator, tree, vocab=400)
        got = accept_path_triton(tree_to(tree, device), targets.to(device))
        assert_equal_fields(got, accept_path_torch(tree, ancestor_mask(tree), targets), f"case {number}")
    return cases


def mask(device: str, cases: int, max_budget: int) -> int:
    """Requests of different length; cells behind the last stay, and a short buffer is never overrun."""
    draw, generator = random.Random(6), torch.Generator().manual_seed(6)
    longest = 9000 if device == "cuda" else 40
    for number in range(cases):
        tree = random_tree(generator, draw.randint(1, 4), draw.randint(1, max_budget + 1), vocab=400)
        batch, width = tree.tokens.shape
        lengths = torch.randint(longest, (batch,), generator=generator, dtype=torch.int32)
        live = width * (int(lengths.sum()) + batch * width)
        expected = torch.full((live + 64,), POISON, dtype=torch.uint8)
        write_tree_mask_torch(expected, ancestor_mask(tree), lengths)
        got = torch.full_like(expected, POISON, device=device)
        seen = ancestor_mask(tree).to(device)
        write_tree_mask_triton(got, seen, lengths.to(device))
        assert torch.equal(got.cpu(), expected), f"case {number}"
        short = torch.full_like(expected, POISON, device=device)
        write_tree_mask_triton(short[: live // 2], seen, lengths.to(device))
        assert torch.equal(short[: live // 2].cpu(), expected[: live // 2]), f"case {number}, short"
        assert (short[live // 2 :] == POISON).all(), f"case {number}, overrun"
    return cases


def logsumexp(device: str, cases: int, max_budget: int) -> int:
    del max_budget
    draw, generator = random.Random(7), torch.Generator().manual_seed(7)
    for number in range(cases):
        shape = (draw.randint(1, 3), draw.randint(1, 5), draw.choice((1, 37, 1000, 8192, 20_000)))
        dtype = draw.choice((torch.float32, torch.bfloat16, torch.float16))
        logits = (torch.randn(shape, generator=generator) * draw.choice((1, 10, 100))).to(dtype)
        logits[..., ::7] = float("-inf")
        logits[..., -1] = 0.5
        padded = torch.cat((logits, logits), dim=1).to(device)[:, : shape[1]]
        got = row_logsumexp_triton(padded).cpu()
        expected = torch.logsumexp(logits.double(), dim=-1)
        assert torch.allclose(got.double(), expected, rtol=1e-6, atol=1e-5), f"case {number}"
    return cases


COMPARISONS: dict[str, Callable[[str, int, int], int]] = {
    function.__name__: function
    for function in (build, build_limits, build_ties, topology, accept, mask, logsumexp)
}

# (cases, greatest budget) that the interpreter gets through in seconds.
INTERPRETED = {
    "build": (100, 32),
    "build_limits": (0, 0),
    "build_ties": (50, 30),
    "topology": (30, 70),
    "accept": (30, 70),
    "mask": (8, 12),
    "logsumexp": (25, 0),
}

if __name__ == "__main__":
    print(COMPARISONS[sys.argv[1]]("cpu", *INTERPRETED[sys.argv[1]]))

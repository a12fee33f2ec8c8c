"""Every Triton kernel against its plain torch twin, on CUDA or, interpreted, on the CPU.

As a script, `TRITON_INTERPRET=1 python triton_twins.py NAME` runs one comparison on the CPU and prints how
many cases it held. The interpreter must be chosen before Triton is imported, hence a process of its own.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch

from sglang_ddtree.tree import DraftCandidates, DraftTree, ancestor_mask, build_tree, verify_width
from sglang_ddtree.tree.accept import WidthTally, accept_path_torch, settle_path_torch
from sglang_ddtree.tree.accept_triton import accept_path_triton, settle_path_triton
from sglang_ddtree.tree.candidates import draft_candidates_torch
from sglang_ddtree.tree.candidates_triton import draft_candidates_triton
from sglang_ddtree.tree.mask import write_tree_mask_torch
from sglang_ddtree.tree.mask_triton import write_tree_mask_triton
from sglang_ddtree.tree.topology import lay_out_torch
from sglang_ddtree.tree.topology_triton import lay_out_triton
from sglang_ddtree.tree.window import open_window_torch
from sglang_ddtree.tree.window_triton import open_window_triton
from unit.tree.tree_cases import likely_targets, random_candidates, random_tree

POISON = 171


def tree_to(tree: DraftTree, device: str) -> DraftTree:
    return DraftTree(*(tensor.to(device) for tensor in tree.tensors), tree.max_depth)


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
    there = (candidates_to(candidates, device), roots.to(device), budget)
    got = build_tree(*there, width=width, builder="triton")
    assert_equal_fields(got, expected, case)
    out = DraftTree.empty(batch + 1, width, depths, torch.device(device))
    build_tree(*there, width=width, builder="triton", out=out.first(batch))
    assert_equal_fields(replace(out.first(batch), max_depth=expected.max_depth), expected, f"{case}, out")
    assert int(out.node_count[batch]) == 1, f"{case}, overrun"


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
    """Whole trees and trees cut to a width, with and without a flat mask; a short buffer is never overrun."""
    draw, generator = random.Random(4), torch.Generator().manual_seed(4)
    for number in range(cases):
        tree = random_tree(generator, draw.randint(1, 3), draw.randint(1, max_budget + 1), vocab=400)
        batch, there = tree.batch_size, tree_to(tree, device)
        lengths = torch.randint(1000, (batch,), generator=generator, dtype=torch.int32)
        width = draw.choice((tree.width, draw.randint(1, tree.width)))
        live = width * (int(lengths.sum()) + batch * width)
        for cells in (None, live + 64, live // 2):
            flat = None if cells is None else torch.full((cells + 64,), POISON, dtype=torch.uint8)
            found = None if flat is None else flat.to(device)
            whole = torch.full((live,), POISON, dtype=torch.uint8)
            expected = lay_out_torch(tree, lengths, width, whole)
            got = lay_out_triton(there, lengths.to(device), width, None if found is None else found[:cells])
            for left, right in zip(got, expected, strict=True):
                assert_equal_fields(left, right, f"case {number}, width {width} of {tree.width}")
            if flat is not None and found is not None:
                kept = min(live, int(cells or 0))
                flat[:kept] = whole[:kept]
                assert torch.equal(found.cpu(), flat), f"case {number}, flat mask of {cells} cells"
    return cases


def accept(device: str, cases: int, max_budget: int) -> int:
    draw, generator = random.Random(5), torch.Generator().manual_seed(5)
    for number in range(cases):
        tree = random_tree(generator, draw.randint(1, 4), draw.randint(1, max_budget + 1), vocab=400)
        targets = likely_targets(generator, tree, vocab=400)
        got = accept_path_triton(tree_to(tree, device), targets.to(device))
        assert_equal_fields(got, accept_path_torch(tree, ancestor_mask(tree), targets), f"case {number}")
    return cases


def settle(device: str, cases: int, max_budget: int) -> int:
    """The path with its rows, and the tally of smaller widths, over several steps."""
    draw, generator = random.Random(8), torch.Generator().manual_seed(8)
    widths = torch.tensor([2, 5, 17], dtype=torch.int32)
    expected_totals = torch.zeros(4, dtype=torch.int64)
    tally = WidthTally(widths.to(device), torch.zeros(4, dtype=torch.int64, device=device))
    for number in range(cases):
        tree = random_tree(generator, draw.randint(1, 4), draw.randint(1, max_budget + 1), vocab=400)
        targets = likely_targets(generator, tree, vocab=400)
        window = max(tree.width, tree.max_depth + 1) + draw.randint(0, 3)
        slots = torch.randperm(4096, generator=generator)[: tree.batch_size * window].view(-1, window)
        prefix = torch.randint(10_000, (tree.batch_size,), generator=generator)
        counted = draw.random() < 0.7
        got = settle_path_triton(
            tree_to(tree, device),
            targets.to(device),
            prefix.to(device),
            slots.to(device),
            tally if counted else None,
        )
        expected = settle_path_torch(
            tree,
            ancestor_mask(tree),
            targets,
            prefix,
            slots,
            WidthTally(widths, expected_totals) if counted else None,
        )
        for left, right in zip(got, expected, strict=True):
            assert_equal_fields(left, right, f"case {number}")
        assert torch.equal(tally.totals.cpu(), expected_totals), f"case {number}"
    return cases


def window(device: str, cases: int, max_budget: int) -> int:
    """Verify widths below, at and above the draft's block size."""
    draw, generator = random.Random(9), torch.Generator().manual_seed(9)
    for _ in range(cases):
        batch, block_size, width = draw.randint(1, 5), draw.randint(2, 20), draw.randint(1, max_budget + 1)
        context = 300
        table = torch.randint(1 << 20, (9, context), generator=generator, dtype=torch.int32)
        prefix = torch.randint(context - max(block_size, width), (batch,), generator=generator)
        rows = torch.randperm(9, generator=generator)[:batch].to(draw.choice((torch.int32, torch.int64)))
        bonus = torch.randint(500, (batch,), generator=generator)
        tensors = (prefix, rows, table, bonus)
        expected = open_window_torch(*tensors, 77, block_size, width)
        moved = (tensor.to(device) for tensor in tensors)
        got = open_window_triton(*moved, 77, block_size, width)
        assert_equal_fields(got, expected, f"B={batch} block={block_size} W={width}")
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


def candidates(device: str, cases: int, max_budget: int) -> int:
    """Top-k and normalisation over small and large vocabularies, rows with ties, -inf and NaN."""
    del max_budget
    draw, generator = random.Random(7), torch.Generator().manual_seed(7)
    for number in range(cases):
        vocab = draw.choice((1, 37, 1000, 4096, 4097, 20_000))
        batch, depths, topk = draw.randint(1, 3), draw.randint(1, 5), min(vocab, draw.choice((1, 5, 16, 64)))
        dtype = draw.choice((torch.float32, torch.bfloat16, torch.float16))
        logits = (torch.randn(batch, depths, vocab, generator=generator) * draw.choice((1, 10))).to(dtype)
        if vocab > 500:
            logits[..., ::7] = float("-inf")
        padded = torch.cat((logits, logits), dim=1).to(device)[:, :depths]
        got = candidates_to(draft_candidates_triton(padded, topk), "cpu")
        # By value, then by token, as the kernel orders equal logits.
        order = torch.sort(logits.double(), dim=-1, descending=True, stable=True)
        expected = order.values - torch.logsumexp(logits.double(), dim=-1, keepdim=True)
        case = f"case {number}: V={vocab} K={topk} {dtype}"
        assert torch.equal(got.token_ids, order.indices[..., :topk]), case
        close = torch.allclose(got.logprobs.double(), expected[..., :topk].clamp(max=0), rtol=1e-6, atol=2e-5)
        assert close, case
        twin = draft_candidates_torch(logits, topk)
        assert torch.allclose(got.logprobs, twin.logprobs, rtol=1e-6, atol=2e-5), case
    hopeless = torch.zeros(1, 3, 5000)
    hopeless[0, 0], hopeless[0, 1, 3] = float("-inf"), float("nan")
    got = candidates_to(draft_candidates_triton(hopeless.to(device), 4), "cpu")
    assert (got.logprobs[0, :2] == float("-inf")).all()
    assert torch.allclose(got.logprobs[0, 2], -torch.tensor(5000.0).log())
    assert got.token_ids[0, 2].tolist() == [0, 1, 2, 3]
    return cases


COMPARISONS: dict[str, Callable[[str, int, int], int]] = {
    function.__name__: function
    for function in (build, build_limits, build_ties, topology, accept, settle, window, mask, candidates)
}

# (cases, greatest budget) that the interpreter gets through in seconds.
INTERPRETED = {
    "build": (100, 32),
    "build_limits": (0, 0),
    "build_ties": (50, 30),
    "topology": (30, 70),
    "accept": (30, 70),
    "settle": (30, 70),
    "window": (30, 70),
    "mask": (8, 12),
    "candidates": (25, 0),
}

if __name__ == "__main__":
    print(COMPARISONS[sys.argv[1]]("cpu", *INTERPRETED[sys.argv[1]]))

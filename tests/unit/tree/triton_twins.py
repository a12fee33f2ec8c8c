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
import triton
import triton.language as tl

from sglang_ddtree.tree import DraftCandidates, DraftTree, ancestor_mask, build_tree, verify_width
from sglang_ddtree.tree.accept import WidthTally, settle_path_torch
from sglang_ddtree.tree.accept_triton import settle_path_triton
from sglang_ddtree.tree.candidates import draft_candidates_torch
from sglang_ddtree.tree.candidates_triton import draft_candidates_triton
from sglang_ddtree.tree.mask import write_tree_mask_torch
from sglang_ddtree.tree.mask_triton import write_tree_mask_triton
from sglang_ddtree.tree.sample import sample_torch
from sglang_ddtree.tree.sample_limits import Limits
from sglang_ddtree.tree.sample_noise_triton import exponential, gumbel_part
from sglang_ddtree.tree.sample_triton import sample_triton
from sglang_ddtree.tree.topology import lay_out_torch
from sglang_ddtree.tree.topology_triton import lay_out_triton
from sglang_ddtree.tree.window import open_window_torch
from sglang_ddtree.tree.window_triton import open_window_triton
from unit.tree.distributions import COMBINATIONS, LOGITS, NO_TOP_K, VOCAB, assert_follows, parameters_of
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
        shape = (130, 2) if number == 0 else (draw.randint(1, 3), draw.randint(1, max_budget + 1))
        tree = random_tree(generator, *shape, vocab=400)
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
        shape = (130, 2) if number == 0 else (draw.randint(1, 4), draw.randint(1, max_budget + 1))
        tree = random_tree(generator, *shape, vocab=400)
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
        found, logsumexp = draft_candidates_triton(padded, topk)
        got = candidates_to(found, "cpu")
        # By value, then by token, as the kernel orders equal logits.
        order = torch.sort(logits.double(), dim=-1, descending=True, stable=True)
        expected = order.values - torch.logsumexp(logits.double(), dim=-1, keepdim=True)
        case = f"case {number}: V={vocab} K={topk} {dtype}"
        assert torch.equal(got.token_ids, order.indices[..., :topk]), case
        close = torch.allclose(got.logprobs.double(), expected[..., :topk].clamp(max=0), rtol=1e-6, atol=2e-5)
        assert close, case
        twin, twin_logsumexp = draft_candidates_torch(logits, topk)
        assert torch.allclose(got.logprobs, twin.logprobs, rtol=1e-6, atol=2e-5), case
        assert torch.allclose(logsumexp.cpu(), twin_logsumexp, rtol=1e-6, atol=2e-5), case
    hopeless = torch.zeros(1, 3, 5000)
    hopeless[0, 0], hopeless[0, 1, 3] = float("-inf"), float("nan")
    found, logsumexp = draft_candidates_triton(hopeless.to(device), 4)
    got = candidates_to(found, "cpu")
    assert logsumexp[0, 0] == float("-inf")
    assert logsumexp[0, 1].isnan()
    assert (got.logprobs[0, :2] == float("-inf")).all()
    assert torch.allclose(got.logprobs[0, 2], -torch.tensor(5000.0).log())
    assert got.token_ids[0, 2].tolist() == [0, 1, 2, 3]
    return cases


def _limits_to(limits: Limits, device: str) -> Limits:
    names = ("temperatures", "top_ks", "top_ps", "min_ps")
    return replace(limits, **{name: getattr(limits, name).to(device) for name in names})


def _random_limits(draw: random.Random, batch: int, vocab: int) -> Limits:
    def column(*values: float) -> torch.Tensor:
        return torch.tensor([draw.choice(values) for _ in range(batch)])

    need = (draw.random() < 0.6, draw.random() < 0.5, draw.random() < 0.5)
    top_ks = column(1, 2, 5, 20, 40, 100, vocab, NO_TOP_K).to(draw.choice((torch.int32, torch.int64)))
    bound = draw.choice((None, None, 4, 50))
    return Limits(
        column(0.01, 0.3, 1.0, 1.7),
        top_ks if bound is None else top_ks.clamp(max=bound),
        column(0.1, 0.5, 0.9, 1.0),
        column(0.0, 0.05, 0.3, 1.0),
        *need,
        bound if need[0] else None,
    )


def sample(device: str, cases: int, max_budget: int) -> int:
    """The same noise, the same tokens: mixed filters, ties, -inf, strided rows; rows without a distribution."""
    del max_budget
    draw, generator = random.Random(10), torch.Generator().manual_seed(10)
    differing = 0
    for number in range(cases):
        vocab, batch, width = (
            draw.choice((1, 2, 37, 37, 37, 1000, 5000, 20_000)),
            draw.randint(1, 4),
            draw.randint(1, 3),
        )
        dtype = draw.choice((torch.float32, torch.bfloat16, torch.float16))
        logits = torch.randn(batch * width, vocab, generator=generator) * draw.choice((1, 4))
        # In halves equal logits are common, and so is the zero of either sign.
        logits = ((logits * 2).round() / 2 if draw.random() < 0.4 else logits).to(dtype)
        if vocab > 30:
            logits[:, ::7] = float("-inf")
        limits = _random_limits(draw, batch, vocab)
        noise = torch.empty(batch * width, vocab).exponential_(generator=generator)
        # Against the distribution: every token is as likely to win, or the least probable one does, so that the
        # draw is at the filters' edge.
        probs = torch.softmax(logits.float() / limits.temperatures.repeat_interleave(width)[:, None], dim=-1)
        noise *= probs if draw.random() < 0.7 else 1
        noise = probs.square() if vocab == 37 else noise
        padded = torch.cat((logits, logits), dim=1).to(device)[:, :vocab]
        got = sample_triton(padded, _limits_to(limits, device), width, noise=noise.to(device)).cpu()
        # The bound leaves torch.topk the choice among equals.
        expected = sample_torch(logits, replace(limits, max_top_k=None), width, noise=noise)
        assert got.dtype == expected.dtype
        differing += int((got != expected).sum())
        assert differing <= (2 if device == "cuda" else 0), f"case {number}: V={vocab} {limits} {dtype}"
    _sample_edges(device)
    _sample_hopeless(device)
    return cases


def _sample_edges(device: str) -> None:
    """Each filter alone, with noise that makes the last kept token win; zeros of either sign are equal."""
    logits = torch.randn(6, 37, generator=torch.Generator().manual_seed(15))
    logits[4:] = torch.tensor([-0.0, 0.0]).repeat(19)[:37]
    noise = torch.softmax(logits, dim=-1).square()
    noise[4:] = torch.linspace(1.0, 0.5, 37)
    limits = Limits(
        torch.ones(6),
        torch.tensor([5, NO_TOP_K, NO_TOP_K, 7, 3, 1]),
        torch.tensor([1.0, 0.5, 1.0, 0.9, 1.0, 1.0]),
        torch.tensor([0.0, 0.0, 0.3, 0.1, 0.0, 0.0]),
        *(True, True, True),
    )
    expected = sample_torch(logits, limits, 1, noise=noise)
    assert expected[4:].tolist() == [2, 0]
    for bounded in (limits, replace(limits, top_ks=limits.top_ks.clamp(max=37), max_top_k=37)):
        got = sample_triton(logits.to(device), _limits_to(bounded, device), 1, noise=noise.to(device))
        assert got.tolist() == expected.tolist(), bounded


def _sample_hopeless(device: str) -> None:
    vocab = 5000
    logits = torch.randn(5, vocab)
    logits[0], logits[1], logits[2, 7] = float("-inf"), float("nan"), float("nan")
    logits[3, 11], logits[4] = float("inf"), 0.0
    noise, moved = torch.zeros(5, vocab, device=device), logits.to(device)
    requests = (torch.full((1,), 0.7), torch.full((1,), 20), torch.full((1,), 0.9), torch.full((1,), 0.3))
    for need in ((False, False, False), (True, False, False), (False, True, True), (True, True, True)):
        for bound in (None, 20) if need[0] else (None,):
            limits = Limits(*requests, *need, bound)
            greedy = replace(limits, top_ks=torch.ones(1, dtype=torch.int64))
            for given in (None, noise):
                tokens = sample_triton(moved, _limits_to(limits, device), 5, noise=given).cpu()
                assert (tokens >= 0).all(), (limits, tokens)
                assert (tokens < vocab).all(), (limits, tokens)
                assert not any(need) or tokens[3] == 11, (limits, tokens)
            if need[0]:
                tokens = sample_triton(moved, _limits_to(greedy, device), 5).cpu()
                assert torch.equal(tokens, logits.argmax(dim=-1)), (limits, tokens)


@triton.jit
def _noise_kernel(seed_ptr, out_ptr, vocab, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLUMNS
    columns = first + tl.arange(0, COLUMNS)
    noise = tl.exp(-gumbel_part(seed_ptr, row, first, vocab, COLUMNS, False))
    tl.store(out_ptr + row * vocab + columns, noise, mask=columns < vocab)


@triton.jit
def _exponential_kernel(bits_ptr, out_ptr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    lanes = tl.arange(0, COLUMNS)
    tl.store(out_ptr + lanes, exponential(tl.load(bits_ptr + lanes).to(tl.uint32)))


def _kernel_noise(seed: torch.Tensor, rows: int, vocab: int) -> torch.Tensor:
    """The kernels' own Exp(1) draws, float32 [rows, vocab]."""
    noise = torch.empty(rows, vocab, device=seed.device)
    _noise_kernel[(rows, triton.cdiv(vocab, 4096))](seed, noise, vocab, COLUMNS=4096)
    return noise


def _uniform_ends(device: str) -> None:
    bits = torch.tensor([0, 1, 2, 2**24 + 1, 2**28 - 1, 2**28, 2**31, 2**32 - 1], device=device)
    got = torch.empty(bits.shape, device=device)
    _exponential_kernel[(1,)](bits, got, COLUMNS=8)
    expected = -torch.log1p(-((bits.cpu().double() + 0.5) / 2**32))
    assert torch.allclose(got.cpu().double()[:-1], expected[:-1], rtol=1e-5, atol=0), got
    assert 16 < float(got[-1]) < 17, got


def sample_noise(device: str, cases: int, max_budget: int) -> int:
    """The kernels' own noise is Exp(1) at both ends and in the races that it decides, and by (row, token) alone."""
    del max_budget
    _uniform_ends(device)
    rows, vocab = 3, 90_000
    source = torch.Generator(device).manual_seed(12)
    seed = torch.empty(1, dtype=torch.int64, device=device).random_(generator=source)
    noise = _kernel_noise(seed, rows, vocab)
    races = noise.cpu().view(-1, VOCAB)
    assert races.unique().numel() > 0.99 * races.numel()
    assert abs(float(races.mean()) - 1) < 0.01
    for request in COMBINATIONS:
        limits = Limits(*(values.view(-1) for values in parameters_of([request])), True, True, True)
        logits = torch.tensor(LOGITS).repeat(len(races), 1)
        assert_follows(sample_torch(logits, limits, len(races), noise=races), request, request)

    draw, generator = random.Random(13), torch.Generator().manual_seed(13)
    for number in range(cases):
        vocab = draw.choice((37, 5000))
        logits = (torch.randn(rows, vocab, generator=generator) * 2).to(device)
        limits = _limits_to(_random_limits(draw, rows, vocab), device)
        source = torch.Generator(device).manual_seed(number)
        got = sample_triton(logits, limits, 1, generator=source)
        source.manual_seed(number)
        seed = torch.empty(1, dtype=torch.int64, device=device).random_(generator=source)
        expected = sample_triton(logits, limits, 1, noise=_kernel_noise(seed, rows, vocab))
        assert torch.equal(got, expected), f"case {number}: V={vocab} {limits}"
    return cases


COMPARISONS: dict[str, Callable[[str, int, int], int]] = {
    function.__name__: function
    for function in (
        build,
        build_limits,
        build_ties,
        topology,
        settle,
        window,
        mask,
        candidates,
        sample,
        sample_noise,
    )
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
    "sample": (40, 0),
    "sample_noise": (8, 0),
}

if __name__ == "__main__":
    print(COMPARISONS[sys.argv[1]]("cpu", *INTERPRETED[sys.argv[1]]))

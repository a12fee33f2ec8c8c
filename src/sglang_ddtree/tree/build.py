"""One name for the three tree builders."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch

from .build_torch import build_torch
from .candidates import DraftCandidates
from .capacity import verify_width
from .reference import best_first_tree
from .tree import DraftTree

Builder = Literal["auto", "reference", "torch", "triton"]


def build_tree(
    candidates: DraftCandidates,
    root_tokens: torch.Tensor,
    budget: int,
    *,
    width: int | None = None,
    builder: Builder = "auto",
    out: DraftTree | None = None,
) -> DraftTree:
    """The tree of the `budget` most probable draft prefixes of every request (arXiv 2604.12989).

    The builders give the same tree bit for bit: scores are float32 sums from the root down, equal scores go
    by depth, then by the parent's slot, then by rank.

    Args:
        candidates: B requests, L depths, K candidates each.
        root_tokens: integer [B], the bonus token of each request.
        budget: most nodes without the root, at least 1.
        width: slots per request, W; by default the root and every node that can exist.
        out: filled and returned, instead of new tensors; B requests in W slots. A CUDA graph's result must lie
            outside the graph's own memory.
        builder: "auto" is Triton on CUDA and torch elsewhere; "reference" is the heap oracle, for tests.

    Returns:
        The trees. A request has min(budget, capacity) nodes, fewer where candidates are -inf.

    Raises:
        ValueError: a bad shape, a budget below 1, a width that cannot hold the nodes, an unknown builder,
            or a limit of the Triton builder exceeded.
    """
    batch, depths, topk = candidates.logprobs.shape
    if candidates.token_ids.shape != candidates.logprobs.shape:
        raise ValueError(
            f"token_ids is {list(candidates.token_ids.shape)}, logprobs is {[batch, depths, topk]}"
        )
    if root_tokens.shape != (batch,):
        raise ValueError(f"root_tokens is {list(root_tokens.shape)}, expected {[batch]}")
    needed = verify_width(budget, depths, topk)
    width = needed if width is None else width
    if width < needed:
        raise ValueError(
            f"width {width} cannot hold the root and {needed - 1} nodes: it must be at least {needed} "
            f"(budget {budget}, {depths} depths, {topk} candidates)"
        )
    if builder == "auto":
        builder = "triton" if candidates.logprobs.is_cuda else "torch"
    if out is not None and out.tokens.shape != (batch, width):
        raise ValueError(f"out holds {list(out.tokens.shape)}, expected {[batch, width]}")
    if builder == "triton":
        from .build_triton import build_triton

        return build_triton(candidates, root_tokens, budget, width, out)
    if builder == "torch":
        return _into(out, build_torch(candidates, root_tokens, budget, width))
    if builder == "reference":
        return _into(out, _build_reference(candidates, root_tokens, budget, width))
    raise ValueError(f"builder must be auto, reference, torch or triton, got {builder!r}")


def _into(out: DraftTree | None, tree: DraftTree) -> DraftTree:
    if out is None:
        return tree
    for mine, found in zip(out.tensors, tree.tensors, strict=True):
        mine.copy_(found)
    return replace(out, max_depth=tree.max_depth)


def _build_reference(
    candidates: DraftCandidates, root_tokens: torch.Tensor, budget: int, width: int
) -> DraftTree:
    _, depths, topk = candidates.logprobs.shape
    tokens, parents, levels, counts = [], [], [], []
    for logprobs, token_ids, root in zip(
        candidates.logprobs.tolist(), candidates.token_ids.tolist(), root_tokens.tolist(), strict=True
    ):
        nodes = best_first_tree(logprobs, token_ids, budget)
        unused = width - 1 - len(nodes)
        tokens.append([root] + [node.token for node in nodes] + [0] * unused)
        parents.append([-1] + [node.parent for node in nodes] + [-1] * unused)
        levels.append([0] + [node.depth for node in nodes] + [0] * unused)
        counts.append(1 + len(nodes))
    device = candidates.logprobs.device
    return DraftTree(
        tokens=torch.tensor(tokens, dtype=torch.int64, device=device),
        parents=torch.tensor(parents, dtype=torch.int64, device=device),
        depths=torch.tensor(levels, dtype=torch.int64, device=device),
        node_count=torch.tensor(counts, dtype=torch.int32, device=device),
        max_depth=min(depths, verify_width(budget, depths, topk) - 1),
    )

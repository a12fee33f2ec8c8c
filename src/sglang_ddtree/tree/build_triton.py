"""Triton builder: one program per request pops the best prefix `budget` times, without leaving registers."""

import torch
import triton
import triton.language as tl

from .candidates import DraftCandidates
from .capacity import MAX_DEPTHS, MAX_NODES, MAX_TOPK, tree_capacity
from .tree import DraftTree
from .triton_device import require_kernel_device, step_kernel
from .triton_order import key_value, ordered

_ONE_WARP_LANES = 256
# Up to here one warp is faster: the reduction needs no barrier between warps.


def build_triton(
    candidates: DraftCandidates,
    root_tokens: torch.Tensor,
    budget: int,
    width: int,
    out: DraftTree | None = None,
) -> DraftTree:
    """The twin of `build_torch` for CUDA; arguments as in `build.build_tree`.

    Raises:
        ValueError: more than MAX_NODES nodes, MAX_DEPTHS depths or MAX_TOPK candidates, or CPU tensors.
    """
    batch, depths, topk = candidates.logprobs.shape
    nodes = min(budget, tree_capacity(depths, topk))
    for name, limit, got in (
        ("MAX_NODES", MAX_NODES, nodes),
        ("MAX_DEPTHS", MAX_DEPTHS, depths),
        ("MAX_TOPK", MAX_TOPK, topk),
    ):
        if got > limit:
            raise ValueError(f"the Triton tree builder takes at most {name} = {limit}, got {got}")
    require_kernel_device(_build_kernel, candidates.logprobs)
    if out is None:
        slots = torch.empty(3, batch, width, dtype=torch.int64, device=candidates.logprobs.device)
        node_count = torch.empty(batch, dtype=torch.int32, device=slots.device)
        tokens, parents, levels = slots.unbind(0)
    else:
        tokens, parents, levels, node_count = out.tensors
    lanes = triton.next_power_of_2(nodes)
    if batch:
        _build_kernel[(batch,)](
            candidates.logprobs.contiguous(),
            candidates.token_ids.contiguous(),
            root_tokens.contiguous(),
            tokens,
            parents,
            levels,
            node_count,
            nodes,
            width,
            depths,
            topk,
            LANES=lanes,
            num_warps=1 if lanes <= _ONE_WARP_LANES else 4,
        )
    return DraftTree(tokens, parents, levels, node_count, min(depths, nodes))


@triton.jit
def _key(score, level, parent, rank):  # type: ignore[no-untyped-def]
    # One int64 that sorts like (score, shallower first, smaller parent first) and carries the rank along, so
    # that a single max reduction finds the best prefix and everything about it.
    low = ((63 - level) << 18) | ((2047 - parent) << 7) | rank
    return (ordered(score).to(tl.int64) << 32) | low.to(tl.int64)


@step_kernel(["nodes", "width", "depths", "topk"])
def _build_kernel(  # type: ignore[no-untyped-def]
    logprobs_ptr,
    token_ids_ptr,
    root_tokens_ptr,
    tokens_ptr,
    parents_ptr,
    depths_ptr,
    node_count_ptr,
    nodes,
    width,
    depths,
    topk,
    LANES: tl.constexpr,  # noqa: N803
):
    request = tl.program_id(0).to(tl.int64)
    logprobs_ptr += request * depths * topk
    token_ids_ptr += request * depths * topk
    tokens_ptr += request * width
    parents_ptr += request * width
    depths_ptr += request * width

    # The root, and the slots that no node can reach.
    lanes = tl.arange(0, LANES)
    root = tl.load(root_tokens_ptr + request).to(tl.int64)
    zeros = tl.zeros([LANES], dtype=tl.int64)
    for first in range(0, width, LANES):
        slots = first + lanes
        outside = (slots < width) & ((slots == 0) | (slots > nodes))
        tl.store(tokens_ptr + slots, tl.where(slots == 0, root, zeros), mask=outside)
        tl.store(parents_ptr + slots, zeros - 1, mask=outside)
        tl.store(depths_ptr + slots, zeros, mask=outside)

    # Lane i is the frontier of slot i: the key of its best child that is not a node yet. Score -inf says that
    # there is none. The last node needs no lane, since nothing is popped after it.
    no_lane = tl.zeros([LANES], dtype=tl.int32)
    scores = tl.zeros([LANES], dtype=tl.float32)
    best_root_child = tl.where(lanes == 0, tl.load(logprobs_ptr), float("-inf"))
    keys = _key(scores + best_root_child, no_lane, lanes, no_lane)
    count = tl.full((), 1, dtype=tl.int32)
    for slot in range(1, nodes + 1):
        best = tl.max(keys, axis=0)
        score = key_value(best)
        live = score > float("-inf")
        low = (best & 0xFFFFFF).to(tl.int32)
        rank = low & 0x7F
        parent = 2047 - ((low >> 7) & 0x7FF)
        level = 63 - (low >> 18)

        token = tl.load(token_ids_ptr + level * topk + rank, mask=live, other=0)
        tl.store(tokens_ptr + slot, token)
        tl.store(parents_ptr + slot, tl.where(live, parent, -1).to(tl.int64))
        tl.store(depths_ptr + slot, tl.where(live, level + 1, 0).to(tl.int64))
        count += live.to(tl.int32)

        sibling = tl.load(
            logprobs_ptr + level * topk + rank + 1, mask=live & (rank + 1 < topk), other=float("-inf")
        )
        child = tl.load(
            logprobs_ptr + (level + 1) * topk, mask=live & (level + 1 < depths), other=float("-inf")
        )
        keys = tl.where(lanes == parent, _key(scores + sibling, level, parent, rank + 1), keys)
        keys = tl.where(lanes == slot, _key(score + child, level + 1, slot, 0), keys)
        scores = tl.where(lanes == slot, score, scores)
    tl.store(node_count_ptr + request, count)

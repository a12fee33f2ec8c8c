"""One Triton kernel: a tile of query rows over a part of the context, the last part adds up."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..tree.triton_device import require_kernel_device
from .workspace import LEAST_SPLIT, Tiling, Workspace

_LOG2_E = 1.4426950408889634


def tree_attention_triton(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    mask: torch.Tensor | None,
    mask_indptr: torch.Tensor | None,
    scaling: float,
    workspace: Workspace,
    tiling: Tiling | None = None,
    least_split: int = LEAST_SPLIT,
) -> None:
    """The twin of `verify_torch.tree_attention_torch` for CUDA; `tiling` and `least_split` are for measurements."""
    require_kernel_device(_attention_kernel, q)
    batch, kv_heads, head_size = kv_indptr.shape[0] - 1, k.shape[1], q.shape[2]
    width, group = q.shape[0] // batch, q.shape[1] // kv_heads
    if tiling is None:
        tiling = workspace.tiling(batch, kv_heads, group, width, head_size)
    _attention_kernel[(tiling.blocks, kv_heads, batch * tiling.splits)](
        q,
        k,
        v,
        out,
        k_buffer,
        v_buffer,
        kv_indptr,
        kv_indices,
        None if mask is None else mask.view(torch.uint8),
        mask_indptr,
        workspace.sums,
        workspace.scales,
        workspace.arrived,
        width,
        tiling.splits,
        scaling * _LOG2_E,
        *q.stride()[:2],
        *k.stride()[:2],
        *v.stride()[:2],
        *out.stride()[:2],
        *k_buffer.stride()[:2],
        *v_buffer.stride()[:2],
        GROUP=group,
        HEAD=head_size,
        DIMS=triton.next_power_of_2(head_size),
        ROWS=tiling.rows,
        COLUMNS=tiling.columns,
        LEAST=least_split,
        HAS_MASK=mask is not None,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )


@triton.jit
def _attend(best, weight, total, q, keys, values, seen, scale):  # type: ignore[no-untyped-def]
    logits = tl.dot(q, tl.trans(keys)) * scale
    logits = tl.where(seen, logits, float("-inf"))
    # `best` starts at a finite number: a tile without a key to see leaves all as it was.
    new_best = tl.maximum(best, tl.max(logits, 1))
    weights = tl.math.exp2(logits - new_best[:, None])
    fade = tl.math.exp2(best - new_best)
    weight = weight * fade + tl.sum(weights, 1)
    total = total * fade[:, None] + tl.dot(weights.to(values.dtype), values)
    return new_best, weight, total


@triton.jit(do_not_specialize=["width", "splits"])
def _attention_kernel(  # type: ignore[no-untyped-def]
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    k_buffer_ptr,
    v_buffer_ptr,
    kv_indptr_ptr,
    kv_indices_ptr,
    mask_ptr,
    mask_indptr_ptr,
    sums_ptr,
    scales_ptr,
    arrived_ptr,
    width,
    splits,
    scale,
    q_token,
    q_head,
    k_token,
    k_head,
    v_token,
    v_head,
    out_token,
    out_head,
    kb_slot,
    kb_head,
    vb_slot,
    vb_head,
    GROUP: tl.constexpr,  # noqa: N803
    HEAD: tl.constexpr,  # noqa: N803
    DIMS: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
    LEAST: tl.constexpr,  # noqa: N803
    HAS_MASK: tl.constexpr,  # noqa: N803
):
    block = tl.program_id(0)
    kv_head = tl.program_id(1)
    request = tl.program_id(2) // splits
    split = tl.program_id(2) % splits

    context_at = tl.load(kv_indptr_ptr + request).to(tl.int64)
    context = (tl.load(kv_indptr_ptr + request + 1) - context_at).to(tl.int32)
    # A short context is cut into fewer parts, or none; those left over have nothing to do.
    share = tl.maximum((context + splits - 1) // splits, LEAST)
    share = (share + COLUMNS - 1) // COLUMNS * COLUMNS
    parts = tl.maximum((context + share - 1) // share, 1)
    if split >= parts:
        return

    rows = block * ROWS + tl.arange(0, ROWS)
    token = rows // GROUP
    head = kv_head * GROUP + rows % GROUP
    own = token < width
    at = request.to(tl.int64) * width + token
    dims = tl.arange(0, DIMS)
    inner = dims < HEAD
    q = tl.load(
        q_ptr + (at * q_token + head * q_head)[:, None] + dims[None, :],
        mask=own[:, None] & inner[None, :],
        other=0.0,
    )

    best = tl.full([ROWS], -1.0e30, dtype=tl.float32)
    weight = tl.zeros([ROWS], dtype=tl.float32)
    total = tl.zeros([ROWS, DIMS], dtype=tl.float32)
    lane = tl.arange(0, COLUMNS)
    last = tl.minimum((split + 1) * share, context)
    for start in range(split * share, last, COLUMNS):
        columns = start + lane
        there = columns < last
        slots = tl.load(kv_indices_ptr + context_at + columns, mask=there, other=0).to(tl.int64)
        loads = there[:, None] & inner[None, :]
        keys = tl.load(
            k_buffer_ptr + (slots * kb_slot + kv_head * kb_head)[:, None] + dims[None, :],
            mask=loads,
            other=0.0,
        )
        values = tl.load(
            v_buffer_ptr + (slots * vb_slot + kv_head * vb_head)[:, None] + dims[None, :],
            mask=loads,
            other=0.0,
        )
        best, weight, total = _attend(best, weight, total, q, keys, values, there[None, :], scale)

    if split == parts - 1:
        # Short, as the sum below: no pipeline, whose buffers would keep a second program off the multiprocessor.
        for start in tl.range(0, width, COLUMNS, num_stages=1):
            columns = start + lane
            there = columns < width
            node = request.to(tl.int64) * width + columns
            loads = there[:, None] & inner[None, :]
            keys = tl.load(
                k_ptr + (node * k_token + kv_head * k_head)[:, None] + dims[None, :], mask=loads, other=0.0
            )
            values = tl.load(
                v_ptr + (node * v_token + kv_head * v_head)[:, None] + dims[None, :], mask=loads, other=0.0
            )
            seen = own[:, None] & there[None, :]
            if HAS_MASK:
                line = tl.load(mask_indptr_ptr + request) + token.to(tl.int64) * (context + width) + context
                seen = tl.load(mask_ptr + line[:, None] + columns[None, :], mask=seen, other=0) != 0
            best, weight, total = _attend(best, weight, total, q, keys, values, seen, scale)

    where = (at * out_token + head * out_head)[:, None] + dims[None, :]
    stores = own[:, None] & inner[None, :]
    if parts == 1:
        # A row that sees nothing, which no node is, would divide by zero.
        result = total / tl.maximum(weight, 1.0e-30)[:, None]
        tl.store(out_ptr + where, result.to(out_ptr.dtype.element_ty), mask=stores)
        return

    tile = (request * tl.num_programs(1) + kv_head) * tl.num_programs(0) + block
    row = tl.arange(0, ROWS)
    cells = row[:, None] * DIMS + dims[None, :]
    mine = tile * splits + split
    tl.store(sums_ptr + mine.to(tl.int64) * (ROWS * DIMS) + cells, total)
    tl.store(scales_ptr + mine * (2 * ROWS) + row, best)
    tl.store(scales_ptr + mine * (2 * ROWS) + ROWS + row, weight)
    # All threads' stores before the count, the count before the others' loads.
    tl.debug_barrier()
    done = tl.atomic_add(arrived_ptr + tile, 1, sem="acq_rel")
    if done == parts - 1:
        best = tl.full([ROWS], -1.0e30, dtype=tl.float32)
        weight = tl.zeros([ROWS], dtype=tl.float32)
        total = tl.zeros([ROWS, DIMS], dtype=tl.float32)
        for part in tl.range(0, parts, num_stages=1):
            other = tile * splits + part
            top = tl.load(scales_ptr + other * (2 * ROWS) + row, cache_modifier=".cg")
            share_weight = tl.load(scales_ptr + other * (2 * ROWS) + ROWS + row, cache_modifier=".cg")
            share_total = tl.load(sums_ptr + other.to(tl.int64) * (ROWS * DIMS) + cells, cache_modifier=".cg")
            new_best = tl.maximum(best, top)
            fade, grow = tl.math.exp2(best - new_best), tl.math.exp2(top - new_best)
            weight = weight * fade + share_weight * grow
            total = total * fade[:, None] + share_total * grow[:, None]
            best = new_best
        result = total / tl.maximum(weight, 1.0e-30)[:, None]
        tl.store(out_ptr + where, result.to(out_ptr.dtype.element_ty), mask=stores)
        # For the next call.
        tl.store(arrived_ptr + tile, 0)

"""Queries of a block against the context in a paged KV cache and against the block itself."""

from __future__ import annotations

import torch

from .verify_torch import tree_attention_torch
from .workspace import Workspace

LARGEST_HEAD = 256


def can_attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, k_buffer: torch.Tensor) -> bool:
    """Whether `tree_attention` takes these: plain multi-head or grouped heads, one size, one dtype of two bytes."""
    if not q.stride(2) == k.stride(2) == v.stride(2) == 1:
        return False
    return (
        q.dtype in (torch.bfloat16, torch.float16)
        and q.dtype == k.dtype == v.dtype == k_buffer.dtype
        and k_buffer.dim() == 3
        and q.shape[2] == k.shape[2] == v.shape[2] <= LARGEST_HEAD
        and q.shape[1] % k.shape[1] == 0
        and k_buffer.shape[1:] == k.shape[1:]
    )


def tree_attention(
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
    workspace: Workspace | None,
) -> None:
    """Write softmax(scaling q k^T) v to `out`, every query over its request's context and its row of the mask.

    The Triton kernel packs the query heads of a KV head into one program and cuts a long context into parts that
    run at the same time; the program that finishes last adds them up. So a step waits for no context as one
    program would walk it, and a short context costs one kernel.

    Args:
        q: [B * W, H, D] bfloat16 or float16, the last dimension contiguous, as in all of them.
        k: [B * W, KV heads, D], the block's own keys; they need not lie in the cache.
        v: as `k`.
        out: [B * W, H, D].
        k_buffer: [slots, KV heads, D], the KV cache of the layer.
        v_buffer: as `k_buffer`.
        kv_indptr: int32 [B + 1], where each request's context begins in `kv_indices`.
        kv_indices: integer, cache slots of the contexts.
        mask: bool, 1-d: row i of request b lies at mask_indptr[b] + i * (context + W), its cells for the block
            after those for the context, which are not read (`tree.mask.write_tree_mask`). Without one every query
            sees the whole block.
        mask_indptr: int64 [B + 1], needed with a mask.
        scaling: of the logits.
        workspace: needed on CUDA.

    Raises:
        ValueError: shapes that do not fit, a mask without its index, or no workspace on CUDA.
    """
    batch = kv_indptr.shape[0] - 1
    if batch < 1 or q.shape[0] % batch or q.shape[0] != k.shape[0] or q.shape != out.shape:
        raise ValueError(
            f"q {list(q.shape)}, k {list(k.shape)} and out {list(out.shape)} do not fit {batch} requests"
        )
    if mask is not None and mask_indptr is None:
        raise ValueError("a mask needs mask_indptr")
    if not q.is_cuda:
        tree_attention_torch(
            q, k, v, out, k_buffer, v_buffer, kv_indptr, kv_indices, mask, mask_indptr, scaling
        )
        return
    if workspace is None:
        raise ValueError("on CUDA tree_attention needs a workspace")
    from .verify_triton import tree_attention_triton

    tree_attention_triton(
        q, k, v, out, k_buffer, v_buffer, kv_indptr, kv_indices, mask, mask_indptr, scaling, workspace
    )

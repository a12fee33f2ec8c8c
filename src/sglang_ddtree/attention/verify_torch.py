"""The plain twin of the attention kernel, in float32, one request at a time."""

from __future__ import annotations

import torch


def tree_attention_torch(
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
) -> None:
    """See `verify.tree_attention`."""
    batch, group = kv_indptr.shape[0] - 1, q.shape[1] // k.shape[1]
    width = q.shape[0] // batch
    for request in range(batch):
        slots = kv_indices[int(kv_indptr[request]) : int(kv_indptr[request + 1])].long()
        rows = slice(request * width, (request + 1) * width)
        keys = torch.cat([k_buffer[slots], k[rows]]).float().repeat_interleave(group, dim=1)
        values = torch.cat([v_buffer[slots], v[rows]]).float().repeat_interleave(group, dim=1)
        logits = torch.einsum("whd,nhd->hwn", q[rows].float(), keys) * scaling
        if mask is not None and mask_indptr is not None:
            start, length = int(mask_indptr[request]), len(slots) + width
            seen = mask[start : start + width * length].view(width, length).bool()
            seen = torch.cat([torch.ones_like(seen[:, : len(slots)]), seen[:, len(slots) :]], dim=1)
            logits = logits.masked_fill(~seen, float("-inf"))
        out[rows] = torch.einsum("hwn,nhd->whd", logits.softmax(dim=-1), values).to(out.dtype)

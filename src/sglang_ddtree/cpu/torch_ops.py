"""Torch versions of the cache bookkeeping that SGLang does in Triton. They import no SGLang."""

from __future__ import annotations

import torch


def window_cache_locs(
    *,
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
    device: torch.device | str,
) -> torch.Tensor:
    """Cache slots of each request's verify window.

    Every window is `draft_token_num` wide, so one gather does it; `end_offset` is then redundant.

    Returns:
        int64 ``[batch_size * draft_token_num]``, request by request.
    """
    columns = start_offset.long()[:, None] + torch.arange(draft_token_num, device=start_offset.device)
    return req_to_token[req_pool_indices.long()[:, None], columns].reshape(-1).to(torch.int64)


def assign_req_to_token_pool(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    batch_size: int,
) -> None:
    """Write new slots into columns ``start_offset[i] .. end_offset[i]`` of each request's row, in place.

    Args:
        req_to_token: int32 ``[rows, row_width]``.
        out_cache_loc: the slots, request by request, ``sum(end_offset - start_offset)`` of them.

    Raises:
        IndexError: a window ends beyond its row (the Triton original writes into the next row instead).
    """
    counts = (end_offset - start_offset).long()
    rows = req_pool_indices.long().repeat_interleave(counts)
    first_of_request = (counts.cumsum(0) - counts).repeat_interleave(counts)
    columns = torch.arange(rows.numel(), device=rows.device) - first_of_request
    columns += start_offset.long().repeat_interleave(counts)
    req_to_token[rows, columns] = out_cache_loc[: rows.numel()].to(req_to_token.dtype)

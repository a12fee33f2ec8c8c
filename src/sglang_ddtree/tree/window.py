"""What a step writes behind the committed prefix: the draft block and its KV slots."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class StepWindow:
    """The window of one step of B requests, L + 1 being the draft's block size and W the verify width.

    Attributes:
        prefix_lens: int64 [B], committed lengths on the device; the host's copy may lag by a step.
        block_ids: int64 [B, L + 1], the bonus token, then mask tokens.
        positions: int64 [B, L + 1], of the draft block.
        slots: int64 [B, max(L + 1, W)], KV slot of every position from the prefix on.
        block_slots: int64 [B * (L + 1)], the slots of the draft block.
        verify_slots: int64 [B * W], the slots of the verify forward.
    """

    prefix_lens: torch.Tensor
    block_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    block_slots: torch.Tensor
    verify_slots: torch.Tensor


def open_window(
    prefix_lens: torch.Tensor,
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    bonus_tokens: torch.Tensor,
    *,
    mask_token_id: int,
    block_size: int,
    width: int,
) -> StepWindow:
    """Gather the window from the slots that the scheduler reserved: one Triton kernel on CUDA, no round trip.

    Args:
        prefix_lens: int64 [B].
        req_pool_indices: integer [B], the request's row in `req_to_token`.
        req_to_token: int32 [rows, context], KV slot by row and position.
        bonus_tokens: int64 [B].
        mask_token_id: the draft's mask token.
        block_size: L + 1.
        width: W.
    """
    if prefix_lens.is_cuda:
        from .window_triton import open_window_triton

        return open_window_triton(
            prefix_lens, req_pool_indices, req_to_token, bonus_tokens, mask_token_id, block_size, width
        )
    return open_window_torch(
        prefix_lens, req_pool_indices, req_to_token, bonus_tokens, mask_token_id, block_size, width
    )


def open_window_torch(
    prefix_lens: torch.Tensor,
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    bonus_tokens: torch.Tensor,
    mask_token_id: int,
    block_size: int,
    width: int,
) -> StepWindow:
    """The plain twin of the Triton kernel; arguments as in `open_window`."""
    columns = prefix_lens.unsqueeze(1) + torch.arange(max(block_size, width), device=prefix_lens.device)
    slots = req_to_token[req_pool_indices.to(torch.int64).unsqueeze(1), columns].to(torch.int64)
    block_ids = torch.full(
        (prefix_lens.shape[0], block_size), mask_token_id, dtype=torch.int64, device=prefix_lens.device
    )
    block_ids[:, 0] = bonus_tokens
    return StepWindow(
        prefix_lens=prefix_lens,
        block_ids=block_ids,
        positions=columns[:, :block_size].contiguous(),
        slots=slots,
        block_slots=slots[:, :block_size].reshape(-1),
        verify_slots=slots[:, :width].reshape(-1),
    )

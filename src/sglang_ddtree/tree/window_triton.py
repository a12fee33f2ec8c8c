"""The step's window in one Triton kernel, one program per request."""

import torch
import triton
import triton.language as tl

from .triton_device import require_kernel_device, step_kernel
from .window import StepWindow


def open_window_triton(
    prefix_lens: torch.Tensor,
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    bonus_tokens: torch.Tensor,
    mask_token_id: int,
    block_size: int,
    width: int,
) -> StepWindow:
    """The twin of `open_window_torch` for CUDA."""
    require_kernel_device(_window_kernel, prefix_lens)
    batch, device = prefix_lens.shape[0], prefix_lens.device
    window = max(block_size, width)
    block_ids, positions, block_slots = torch.empty(
        3, batch, block_size, dtype=torch.int64, device=device
    ).unbind(0)
    slots = torch.empty(batch, window, dtype=torch.int64, device=device)
    narrow = width < window
    verify_slots = torch.empty(batch, width, dtype=torch.int64, device=device) if narrow else slots
    if batch:
        _window_kernel[(batch,)](
            prefix_lens,
            req_pool_indices,
            req_to_token,
            bonus_tokens,
            block_ids,
            positions,
            slots,
            block_slots,
            verify_slots,
            req_to_token.stride(0),
            mask_token_id,
            block_size,
            width,
            window,
            COLUMNS=triton.next_power_of_2(window),
            num_warps=1 if window <= 256 else 4,
        )
    return StepWindow(prefix_lens, block_ids, positions, slots, block_slots.view(-1), verify_slots.view(-1))


@step_kernel(["row_stride", "mask_token_id", "block_size", "width", "window"])
def _window_kernel(  # type: ignore[no-untyped-def]
    prefix_lens_ptr,
    req_pool_indices_ptr,
    req_to_token_ptr,
    bonus_tokens_ptr,
    block_ids_ptr,
    positions_ptr,
    slots_ptr,
    block_slots_ptr,
    verify_slots_ptr,
    row_stride,
    mask_token_id,
    block_size,
    width,
    window,
    COLUMNS: tl.constexpr,  # noqa: N803
):
    request = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, COLUMNS)
    prefix = tl.load(prefix_lens_ptr + request).to(tl.int64)
    row = tl.load(req_pool_indices_ptr + request).to(tl.int64)
    bonus = tl.load(bonus_tokens_ptr + request).to(tl.int64)
    slots = tl.load(req_to_token_ptr + row * row_stride + prefix + columns, mask=columns < window, other=0)
    slots = slots.to(tl.int64)
    in_block = columns < block_size
    tl.store(slots_ptr + request * window + columns, slots, mask=columns < window)
    tl.store(block_slots_ptr + request * block_size + columns, slots, mask=in_block)
    tl.store(verify_slots_ptr + request * width + columns, slots, mask=columns < width)
    tl.store(positions_ptr + request * block_size + columns, prefix + columns, mask=in_block)
    masked = tl.zeros([COLUMNS], dtype=tl.int64) + mask_token_id
    tl.store(
        block_ids_ptr + request * block_size + columns, tl.where(columns == 0, bonus, masked), mask=in_block
    )

"""The flattened attention mask in Triton: rows in parallel, each in a few strides."""

import torch
import triton
import triton.language as tl

from .triton_device import require_kernel_device, step_kernel

_BLOCK = 1024
_SPLITS = 4
# Programs per row: at batch 1 the rows alone would leave half of a large GPU idle.


def write_tree_mask_triton(out: torch.Tensor, tree_mask: torch.Tensor, prefix_lens: torch.Tensor) -> None:
    """The twin of `write_tree_mask_torch` for CUDA; a cell past the end of `out` is dropped."""
    require_kernel_device(_mask_kernel, out)
    batch, width = tree_mask.shape[:2]
    if batch:
        _mask_kernel[(width, batch, _SPLITS)](
            out.view(torch.uint8),
            tree_mask.contiguous().view(torch.uint8),
            prefix_lens.contiguous(),
            out.numel(),
            width,
            COLUMNS=triton.next_power_of_2(width),
            BLOCK=_BLOCK,
            SPLITS=_SPLITS,
        )


@triton.jit
def lengths_before(lens_ptr, request):  # type: ignore[no-untyped-def]
    """The sum of `lens` below `request`, in one variant for all batches."""
    lanes = tl.arange(0, 64)
    total = tl.zeros([64], dtype=tl.int64)
    for first in range(0, request.to(tl.int32), 64):
        at = first + lanes
        total += tl.load(lens_ptr + at, mask=at < request, other=0).to(tl.int64)
    return tl.sum(total, axis=0)


@step_kernel(["out_cells", "width"])
def _mask_kernel(  # type: ignore[no-untyped-def]
    out_ptr,
    tree_mask_ptr,
    prefix_lens_ptr,
    out_cells,
    width,
    COLUMNS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    SPLITS: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)
    request = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)

    prefix = tl.load(prefix_lens_ptr + request).to(tl.int64)
    start = (lengths_before(prefix_lens_ptr, request) + request * width) * width + row * (prefix + width)

    ones = tl.full([BLOCK], 1, dtype=tl.uint8)
    for first in range(part * BLOCK, prefix.to(tl.int32), SPLITS * BLOCK):
        cells = first + tl.arange(0, BLOCK)
        tl.store(out_ptr + start + cells, ones, mask=(cells < prefix) & (start + cells < out_cells))

    columns = tl.arange(0, COLUMNS)
    mine = columns < tl.where(part == 0, width, 0)
    seen = tl.load(tree_mask_ptr + (request * width + row) * width + columns, mask=mine, other=0)
    cells = start + prefix + columns
    tl.store(out_ptr + cells, seen, mask=mine & (cells < out_cells))

"""A batch's pointers in Triton, one program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..tree.triton_device import require_kernel_device, step_kernel

_LEAST_ENTRIES = 512


def write_pointers_triton(
    context_lens: torch.Tensor, width: int, qo: torch.Tensor, kv: torch.Tensor, mask: torch.Tensor
) -> None:
    """The twin of `pointers.write_pointers_torch` for CUDA."""
    require_kernel_device(_pointers_kernel, context_lens)
    # One variant for all the batch sizes that servers capture.
    entries = max(_LEAST_ENTRIES, triton.next_power_of_2(len(qo)))
    _pointers_kernel[(1,)](context_lens, qo, kv, mask, width, len(qo), ENTRIES=entries, num_warps=4)


@step_kernel(["width", "entries"])
def _pointers_kernel(  # type: ignore[no-untyped-def]
    lens_ptr,
    qo_ptr,
    kv_ptr,
    mask_ptr,
    width,
    entries,
    ENTRIES: tl.constexpr,  # noqa: N803
):
    entry = tl.arange(0, ENTRIES)
    there = entry < entries
    previous = tl.load(lens_ptr + entry - 1, mask=there & (entry > 0), other=0).to(tl.int64)
    contexts = tl.cumsum(previous, axis=0)
    before = entry.to(tl.int64) * width
    tl.store(qo_ptr + entry, before.to(qo_ptr.dtype.element_ty), mask=there)
    tl.store(kv_ptr + entry, contexts.to(kv_ptr.dtype.element_ty), mask=there)
    tl.store(mask_ptr + entry, (width * (contexts + before)).to(mask_ptr.dtype.element_ty), mask=there)

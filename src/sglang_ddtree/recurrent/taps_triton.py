"""The walk up from every node in Triton, one program per request."""

import torch
import triton
import triton.language as tl

from ..tree.tree import DraftTree
from ..tree.triton_device import require_kernel_device, step_kernel


def ancestor_taps_triton(tree: DraftTree, out: torch.Tensor) -> torch.Tensor:
    """The twin of `ancestor_taps_torch` for CUDA: fills `out`, int32 [B, W, taps]."""
    require_kernel_device(_taps_kernel, tree.parents)
    batch, width, taps = out.shape
    if batch:
        _taps_kernel[(batch,)](
            tree.parents,
            out,
            *out.stride(),
            width,
            TAPS=taps,
            COLUMNS=triton.next_power_of_2(width),
            num_warps=1 if width <= 256 else 4,
        )
    return out


@step_kernel(["width"])
def _taps_kernel(  # type: ignore[no-untyped-def]
    parents_ptr,
    out_ptr,
    request_stride,
    node_stride,
    tap_stride,
    width,
    TAPS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
):
    request = tl.program_id(0).to(tl.int64)
    nodes = tl.arange(0, COLUMNS).to(tl.int64)
    inside = nodes < width
    parents_ptr += request * width
    out_ptr += request * request_stride + nodes * node_stride
    walk = nodes
    for tap in tl.static_range(TAPS):
        tl.store(out_ptr + tap * tap_stride, walk.to(tl.int32), mask=inside)
        up = tl.load(parents_ptr + walk, mask=inside & (walk >= 0), other=-1)
        walk = tl.where(walk >= 0, up, walk - 1)

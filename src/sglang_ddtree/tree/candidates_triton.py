"""Row-wise log-sum-exp in float32 without a float32 copy of the logits."""

import torch
import triton
import triton.language as tl

from .triton_device import require_kernel_device

_BLOCK = 8192


def row_logsumexp_triton(logits: torch.Tensor) -> torch.Tensor:
    """The twin of the torch path in `candidates.row_logsumexp`: float [B, L, V] -> float32 [B, L]."""
    require_kernel_device(_logsumexp_kernel, logits)
    if logits.stride(2) != 1:
        logits = logits.contiguous()
    batch, depths, vocab = logits.shape
    out = torch.empty(batch, depths, dtype=torch.float32, device=logits.device)
    if out.numel():
        _logsumexp_kernel[(batch, depths)](
            logits,
            out,
            vocab,
            logits.stride(0),
            logits.stride(1),
            BLOCK=min(_BLOCK, triton.next_power_of_2(vocab)),
            num_warps=16,
        )
    return out


@triton.jit
def _logsumexp_kernel(  # type: ignore[no-untyped-def]
    logits_ptr,
    out_ptr,
    vocab,
    batch_stride,
    depth_stride,
    BLOCK: tl.constexpr,  # noqa: N803
):
    request = tl.program_id(0).to(tl.int64)
    depth = tl.program_id(1).to(tl.int64)
    logits_ptr += request * batch_stride + depth * depth_stride
    columns = tl.arange(0, BLOCK)
    # Lane-wise running maximum and sum. The maximum starts at the least finite number: -inf - -inf is NaN.
    top = tl.full([BLOCK], -3.4028234663852886e38, dtype=tl.float32)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for first in range(0, vocab, BLOCK):
        inside = first + columns < vocab
        value = tl.load(logits_ptr + first + columns, mask=inside, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(top, value)
        total = total * tl.exp(top - higher) + tl.exp(value - higher)
        top = higher
    best = tl.max(top, axis=0)
    sum_exp = tl.sum(total * tl.exp(top - best), axis=0)
    tl.store(out_ptr + request * tl.num_programs(1) + depth, best + tl.log(sum_exp))

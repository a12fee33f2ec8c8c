"""Top-k with log-sum-exp over the vocabulary in two Triton kernels: parts of a row, then the row."""

import torch
import triton
import triton.language as tl

from .candidates import DraftCandidates
from .triton_device import require_kernel_device

_PART = 4096
# Columns of one program: enough programs for the whole GPU at batch 1, few enough that they sort little.


def draft_candidates_triton(logits: torch.Tensor, topk: int) -> DraftCandidates:
    """The twin of `candidates.draft_candidates_torch` for CUDA. Equal logits go by token id, smallest first."""
    require_kernel_device(_part_kernel, logits)
    if logits.stride(2) != 1:
        logits = logits.contiguous()
    batch, depths, vocab = logits.shape
    device = logits.device
    columns = min(_PART, triton.next_power_of_2(vocab))
    parts, lanes = triton.cdiv(vocab, columns), triton.next_power_of_2(topk)
    keys = torch.empty(batch * depths, parts, lanes, dtype=torch.int64, device=device)
    sums = torch.empty(batch * depths, parts, 2, dtype=torch.float32, device=device)
    token_ids = torch.empty(batch, depths, topk, dtype=torch.int64, device=device)
    logprobs = torch.empty(batch, depths, topk, dtype=torch.float32, device=device)
    if batch:
        _part_kernel[(batch * depths, parts)](
            logits,
            keys,
            sums,
            vocab,
            depths,
            topk,
            logits.stride(0),
            logits.stride(1),
            COLUMNS=columns,
            LANES=lanes,
            num_warps=4,
        )
        found = parts * lanes
        _row_kernel[(batch * depths,)](
            keys,
            sums,
            token_ids,
            logprobs,
            parts,
            topk,
            KEYS=triton.next_power_of_2(found),
            PARTS=triton.next_power_of_2(parts),
            LANES=lanes,
            num_warps=1 if found <= 512 else 4,
        )
    return DraftCandidates(token_ids, logprobs)


@triton.jit
def _ordered(value):  # type: ignore[no-untyped-def]
    # float32 bits as an int32 that sorts like the number.
    bits = value.to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)


@triton.jit(do_not_specialize=["vocab", "depths", "topk", "batch_stride", "depth_stride"])
def _part_kernel(  # type: ignore[no-untyped-def]
    logits_ptr,
    keys_ptr,
    sums_ptr,
    vocab,
    depths,
    topk,
    batch_stride,
    depth_stride,
    COLUMNS: tl.constexpr,  # noqa: N803
    LANES: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0)
    part = tl.program_id(1)
    logits_ptr += (row // depths).to(tl.int64) * batch_stride + (row % depths).to(tl.int64) * depth_stride
    columns = part * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < vocab
    values = tl.load(logits_ptr + columns, mask=inside, other=float("-inf")).to(tl.float32)

    # The maximum starts at the least finite number: -inf - -inf is NaN.
    top = tl.maximum(tl.max(values, axis=0), -3.4028234663852886e38)
    out = row.to(tl.int64) * tl.num_programs(1) + part
    tl.store(sums_ptr + out * 2, top)
    tl.store(sums_ptr + out * 2 + 1, tl.sum(tl.exp(values - top), axis=0))

    # One int64 that sorts like (logit, smaller token first). Columns outside lose to every token.
    keys = (_ordered(values).to(tl.int64) << 32) | (0x7FFFFFFF - columns).to(tl.int64)
    lowest = -0x7FFFFFFFFFFFFFFF
    keys = tl.where(inside, keys, lowest)
    lanes = tl.arange(0, LANES)
    best = tl.full([LANES], lowest, dtype=tl.int64)
    for rank in range(topk):
        key = tl.max(keys, axis=0)
        best = tl.where(lanes == rank, key, best)
        keys = tl.where(keys == key, lowest, keys)
    tl.store(keys_ptr + out * LANES + lanes, best)


@triton.jit(do_not_specialize=["parts", "topk"])
def _row_kernel(  # type: ignore[no-untyped-def]
    keys_ptr,
    sums_ptr,
    token_ids_ptr,
    logprobs_ptr,
    parts,
    topk,
    KEYS: tl.constexpr,  # noqa: N803
    PARTS: tl.constexpr,  # noqa: N803
    LANES: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS)
    there = part < parts
    tops = tl.load(sums_ptr + (row * parts + part) * 2, mask=there, other=-3.4028234663852886e38)
    totals = tl.load(sums_ptr + (row * parts + part) * 2 + 1, mask=there, other=0.0)
    top = tl.max(tops, axis=0)
    logsumexp = top + tl.log(tl.sum(totals * tl.exp(tops - top), axis=0))

    lowest = -0x7FFFFFFFFFFFFFFF
    at = tl.arange(0, KEYS)
    keys = tl.load(keys_ptr + row * parts * LANES + at, mask=at < parts * LANES, other=lowest)
    lanes = tl.arange(0, LANES)
    best = tl.full([LANES], lowest, dtype=tl.int64)
    for rank in range(topk):
        key = tl.max(keys, axis=0)
        best = tl.where(lanes == rank, key, best)
        keys = tl.where(keys == key, lowest, keys)
    ordered = (best >> 32).to(tl.int32)
    values = tl.where(ordered >= 0, ordered, ordered ^ 0x7FFFFFFF).to(tl.float32, bitcast=True)
    logprobs = values - logsumexp
    # A row with NaN or only -inf has no distribution: it proposes nothing instead of spreading NaN.
    logprobs = tl.where(logprobs == logprobs, tl.minimum(logprobs, 0.0), float("-inf"))
    tl.store(token_ids_ptr + row * topk + lanes, 0x7FFFFFFF - (best & 0x7FFFFFFF), mask=lanes < topk)
    tl.store(logprobs_ptr + row * topk + lanes, logprobs, mask=lanes < topk)

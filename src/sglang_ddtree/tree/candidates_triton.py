"""Top-k with log-sum-exp over the vocabulary in two Triton kernels: parts of a row, then the row."""

import torch
import triton
import triton.language as tl

from .candidates import DraftCandidates
from .triton_device import require_kernel_device, step_kernel
from .triton_order import LOWEST, best_keys, key_token, key_value, ordered, token_key

_PART = 4096
# Columns of one program: enough programs for the whole GPU at batch 1, few enough that they sort little.


def draft_candidates_triton(logits: torch.Tensor, topk: int) -> tuple[DraftCandidates, torch.Tensor]:
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
    logsumexp = torch.empty(batch, depths, dtype=torch.float32, device=device)
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
            logsumexp,
            parts,
            topk,
            KEYS=triton.next_power_of_2(found),
            PARTS=triton.next_power_of_2(parts),
            LANES=lanes,
            num_warps=1 if found <= 512 else 4,
        )
    return DraftCandidates(token_ids, logprobs), logsumexp


@step_kernel(
    ["vocab", "depths", "topk", "batch_stride", "depth_stride"], ("logits_ptr", "keys_ptr", "sums_ptr")
)
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

    # Columns outside lose to every token.
    keys = tl.where(inside, token_key(ordered(values), columns), LOWEST)
    tl.store(keys_ptr + out * LANES + tl.arange(0, LANES), best_keys(keys, topk, LANES))


@step_kernel(["parts", "topk"], ("keys_ptr", "sums_ptr"))
def _row_kernel(  # type: ignore[no-untyped-def]
    keys_ptr,
    sums_ptr,
    token_ids_ptr,
    logprobs_ptr,
    logsumexp_ptr,
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
    tl.store(logsumexp_ptr + row, logsumexp)

    at = tl.arange(0, KEYS)
    keys = tl.load(keys_ptr + row * parts * LANES + at, mask=at < parts * LANES, other=LOWEST)
    best = best_keys(keys, topk, LANES)
    lanes = tl.arange(0, LANES)
    values = key_value(best)
    logprobs = values - logsumexp
    # A row with NaN or only -inf has no distribution: it proposes nothing instead of spreading NaN.
    logprobs = tl.where(logprobs == logprobs, tl.minimum(logprobs, 0.0), float("-inf"))
    tl.store(token_ids_ptr + row * topk + lanes, key_token(best), mask=lanes < topk)
    tl.store(logprobs_ptr + row * topk + lanes, logprobs, mask=lanes < topk)

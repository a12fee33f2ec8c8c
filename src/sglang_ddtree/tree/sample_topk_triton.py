"""Sample under a small top-k in two Triton kernels: the best of every part of a row, then the row."""

import torch
import triton
import triton.language as tl

from .sample_limits import Limits
from .sample_noise_triton import finite_top, gumbel_at, logit_order
from .triton_device import step_kernel
from .triton_order import LOWEST, best_keys, key_token, key_value, ordered, token_key

MAX_TOP_K = 64
_PART = 4096


def sample_topk_triton(
    logits: torch.Tensor, limits: Limits, width: int, noise: torch.Tensor, topk: int
) -> torch.Tensor:
    """As `sample_triton.sample_triton`, for requests whose top_k is at most `topk`, 1 to MAX_TOP_K."""
    rows, vocab = logits.shape
    topk = min(topk, vocab)
    columns = min(_PART, triton.next_power_of_2(vocab))
    # Two sizes instead of one for each power of two: fewer variants to compile.
    parts, lanes = triton.cdiv(vocab, columns), 32 if topk <= 32 else MAX_TOP_K
    keys = torch.empty(rows, parts, lanes, dtype=torch.int64, device=logits.device)
    sums = torch.empty(rows, parts, 2, dtype=torch.float32, device=logits.device)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    _top_part_kernel[(rows, parts)](
        logits,
        limits.temperatures,
        keys,
        sums,
        logits.stride(0),
        vocab,
        width,
        topk,
        COLUMNS=columns,
        LANES=lanes,
        num_warps=4,
    )
    _top_row_kernel[(rows,)](
        limits.temperatures,
        limits.top_ks,
        limits.top_ps,
        limits.min_ps,
        noise,
        keys,
        sums,
        tokens,
        vocab,
        parts,
        width,
        topk,
        limits.flags,
        KEYS=triton.next_power_of_2(parts * lanes),
        PARTS=triton.next_power_of_2(parts),
        LANES=lanes,
        GIVEN=noise.is_floating_point(),
        num_warps=1 if parts * lanes <= 512 else 4,
    )
    return tokens


# The row stride and the vocabulary are the model's and may be specialised; what changes with the batch is not.
@step_kernel(["width", "topk"], ("logits_ptr", "keys_ptr", "sums_ptr"))
def _top_part_kernel(  # type: ignore[no-untyped-def]
    logits_ptr,
    temperatures_ptr,
    keys_ptr,
    sums_ptr,
    row_stride,
    vocab,
    width,
    topk,
    COLUMNS: tl.constexpr,  # noqa: N803
    LANES: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0)
    part = tl.program_id(1)
    temperature = tl.load(temperatures_ptr + row // width).to(tl.float32)
    columns = part * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < vocab
    source = logits_ptr + row.to(tl.int64) * row_stride + columns
    logits = tl.load(source, mask=inside, other=float("-inf")).to(tl.float32)
    values = finite_top(logits)

    # The maximum starts at the least finite number: -inf - -inf is NaN.
    top = tl.maximum(tl.max(values, axis=0), -3.4028234663852886e38)
    out = row.to(tl.int64) * tl.num_programs(1) + part
    tl.store(sums_ptr + out * 2, top)
    tl.store(sums_ptr + out * 2 + 1, tl.sum(tl.exp((values - top) / temperature), axis=0))
    keys = tl.where(inside, token_key(logit_order(logits), columns), LOWEST)
    tl.store(keys_ptr + out * LANES + tl.arange(0, LANES), best_keys(keys, topk, LANES))


@step_kernel(["parts", "width", "topk", "flags"], ("keys_ptr", "sums_ptr"))
def _top_row_kernel(  # type: ignore[no-untyped-def]
    temperatures_ptr,
    top_ks_ptr,
    top_ps_ptr,
    min_ps_ptr,
    noise_ptr,
    keys_ptr,
    sums_ptr,
    tokens_ptr,
    vocab,
    parts,
    width,
    topk,
    flags,
    KEYS: tl.constexpr,  # noqa: N803
    PARTS: tl.constexpr,  # noqa: N803
    LANES: tl.constexpr,  # noqa: N803
    GIVEN: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)
    request = row // width
    temperature = tl.load(temperatures_ptr + request).to(tl.float32)
    top_k = tl.load(top_ks_ptr + request)
    top_p = tl.load(top_ps_ptr + request, mask=(flags & 2) != 0, other=1.0).to(tl.float32)
    min_p = tl.load(min_ps_ptr + request, mask=(flags & 4) != 0, other=0.0).to(tl.float32)

    part = tl.arange(0, PARTS)
    there = part < parts
    tops = tl.load(sums_ptr + (row * parts + part) * 2, mask=there, other=-3.4028234663852886e38)
    totals = tl.load(sums_ptr + (row * parts + part) * 2 + 1, mask=there, other=0.0)
    top = tl.max(tops, axis=0)
    total = tl.sum(totals * tl.exp((tops - top) / temperature), axis=0)

    at = tl.arange(0, KEYS)
    keys = tl.load(keys_ptr + row * parts * LANES + at, mask=at < parts * LANES, other=LOWEST)
    best = best_keys(keys, topk, LANES)
    found = best > LOWEST
    tokens = tl.where(found, key_token(best), 0)
    scaled = tl.where(found, finite_top(key_value(best)) - top, float("-inf")) / temperature
    weights = tl.exp(scaled)
    lanes = tl.arange(0, LANES)
    before = tl.cumsum(weights, axis=0) - weights
    # Rounding may take the sum past the total: without top-p the tail is not lost to that.
    most = tl.where(top_p >= 1, float("inf"), top_p * total)
    kept = (lanes < top_k) & (before <= most) & (weights >= min_p)
    # The most probable token passes whatever rounding, or a row without a distribution, makes of it.
    kept = found & (kept | (lanes == 0))
    scores = ordered(scaled + gumbel_at(noise_ptr, row, tokens, vocab, GIVEN))
    winner = tl.max(tl.where(kept, token_key(scores, tokens), LOWEST), axis=0)
    winner = tl.where(top_k <= 1, tl.max(best, axis=0), winner)
    tl.store(tokens_ptr + row, key_token(winner))

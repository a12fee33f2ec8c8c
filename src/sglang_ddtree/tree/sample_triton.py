"""Sample the target in Triton: the noise race in parts of a row, then its winner is held against the filters."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .sample_before_triton import part_before, tokens_before
from .sample_limits import Limits
from .sample_noise_triton import finite_top, gumbel_part, logit_order
from .sample_topk_triton import MAX_TOP_K, sample_topk_triton
from .triton_device import require_kernel_device, step_kernel
from .triton_order import LOWEST, key_token, key_value, ordered, token_key

_PART = 4096


def sample_triton(
    logits: torch.Tensor,
    limits: Limits,
    width: int,
    *,
    generator: torch.Generator | None = None,
    noise: torch.Tensor | None = None,
) -> torch.Tensor:
    """The twin of `sample.sample_torch` for CUDA, without seeds; int64 [rows], always inside the vocabulary.

    A draw is the best log-weight plus Gumbel noise, the logarithm of the twin's race, over the kept tokens.
    These are the first in the order (logit, smaller token first), so nothing needs sorting: the winner
    among all tokens is the draw if it is kept, which takes one sum over the tokens before it; if not, the kept
    ones are all before it, and the race is run again among these. The twin sorts probabilities, where logits
    that differ by a rounding can be equal. NaN has no mass here, and a row without any gives its token 0.

    Args:
        logits: [rows, V], any floating dtype.
        limits: one value per request.
        width: rows per request.
        generator: source of the seed, which is drawn on the device.
        noise: float32 [rows, V]: Exp(1) draws instead.
    """
    require_kernel_device(_race_kernel, logits)
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    if noise is None:
        source = torch.empty(1, dtype=torch.int64, device=logits.device).random_(generator=generator)
    else:
        source = noise.float().contiguous()
    rows, vocab = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if not rows:
        return tokens
    bound = limits.max_top_k
    if limits.need_top_k and bound is not None and bound <= MAX_TOP_K:
        return sample_topk_triton(logits, limits, width, source, max(bound, 1))
    columns = min(_PART, max(16, triton.next_power_of_2(vocab)))
    parts = triton.cdiv(vocab, columns)
    shared = {"COLUMNS": columns, "FILTERED": limits.flags != 0, "GIVEN": noise is not None}
    keys = torch.empty(rows, parts, dtype=torch.int64, device=logits.device)
    sums = torch.empty(rows, parts, 2, dtype=torch.float32, device=logits.device)
    _race_kernel[(rows, parts)](
        logits,
        limits.temperatures,
        limits.top_ks,
        source,
        keys,
        sums,
        logits.stride(0),
        vocab,
        width,
        limits.flags,
        **shared,
        num_warps=8 if columns >= 2048 else 1,
    )
    _draw_kernel[(rows,)](
        logits,
        limits.temperatures,
        limits.top_ks,
        limits.top_ps,
        limits.min_ps,
        source,
        keys,
        sums,
        tokens,
        logits.stride(0),
        vocab,
        parts,
        width,
        limits.flags,
        PARTS=triton.next_power_of_2(parts),
        **shared,
        num_warps=16 if limits.flags and columns >= 2048 else 1,
    )
    return tokens


# The row stride and the vocabulary are the model's and may be specialised; what changes with the batch is not.
@step_kernel(["width", "flags"], ("logits_ptr", "keys_ptr", "sums_ptr"))
def _race_kernel(  # type: ignore[no-untyped-def]
    logits_ptr,
    temperatures_ptr,
    top_ks_ptr,
    noise_ptr,
    keys_ptr,
    sums_ptr,
    row_stride,
    vocab,
    width,
    flags,
    COLUMNS: tl.constexpr,  # noqa: N803
    FILTERED: tl.constexpr,  # noqa: N803
    GIVEN: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    request = row // width
    temperature = tl.load(temperatures_ptr + request).to(tl.float32)
    columns = part * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < vocab
    logits = tl.load(logits_ptr + row * row_stride + columns, mask=inside, other=float("-inf")).to(tl.float32)
    values = finite_top(logits)

    # The maximum starts at the least finite number: -inf - -inf is NaN. Scores are relative to it, so that a
    # low temperature costs them no precision.
    top = tl.maximum(tl.max(values, axis=0), -3.4028234663852886e38)
    scaled = (values - top) / temperature
    orders = ordered(scaled + gumbel_part(noise_ptr, row, part * COLUMNS, vocab, COLUMNS, GIVEN))
    out = row * tl.num_programs(1) + part
    tl.store(sums_ptr + out * 2, top)
    if FILTERED:
        tl.store(sums_ptr + out * 2 + 1, tl.sum(tl.exp(scaled), axis=0))
        top_k = tl.load(top_ks_ptr + request, mask=(flags & 1) != 0, other=2)
        orders = tl.where(top_k <= 1, logit_order(logits), orders)
    tl.store(keys_ptr + out, tl.max(tl.where(inside, token_key(orders, columns), LOWEST), axis=0))


@step_kernel(["parts", "width", "flags"], ("logits_ptr", "keys_ptr", "sums_ptr"))
def _draw_kernel(  # type: ignore[no-untyped-def]
    logits_ptr,
    temperatures_ptr,
    top_ks_ptr,
    top_ps_ptr,
    min_ps_ptr,
    noise_ptr,
    keys_ptr,
    sums_ptr,
    tokens_ptr,
    row_stride,
    vocab,
    parts,
    width,
    flags,
    PARTS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
    FILTERED: tl.constexpr,  # noqa: N803
    GIVEN: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)
    request = row // width
    temperature = tl.load(temperatures_ptr + request).to(tl.float32)
    lanes = tl.arange(0, PARTS)
    there = lanes < parts
    keys = tl.load(keys_ptr + row * parts + lanes, mask=there, other=LOWEST)
    sums_ptr += row * parts * 2
    tops = tl.load(sums_ptr + lanes * 2, mask=there, other=-3.4028234663852886e38)
    top = tl.max(tops, axis=0)
    orders = ordered(key_value(keys) + (tops - top) / temperature)
    scores = tl.where(there, token_key(orders, key_token(keys)), LOWEST)
    token = key_token(tl.max(scores, axis=0))
    if FILTERED:
        top_k = tl.load(top_ks_ptr + request, mask=(flags & 1) != 0, other=0x7FFFFFFF)
        top_p = tl.load(top_ps_ptr + request, mask=(flags & 2) != 0, other=1.0).to(tl.float32)
        min_p = tl.load(min_ps_ptr + request, mask=(flags & 4) != 0, other=0.0).to(tl.float32)
        token = tl.where(top_k <= 1, key_token(tl.max(keys, axis=0)), token)
        totals = tl.load(sums_ptr + lanes * 2 + 1, mask=there, other=0.0)
        total = tl.sum(totals * tl.exp((tops - top) / temperature), axis=0)
        # As many tokens as parts are at least as great as the k-th part's greatest: what is below is not kept.
        above = tl.sum((tops[None, :] > tops[:, None]).to(tl.int32), axis=1)
        floor = tl.min(tl.where(there & (above < top_k), tops, float("inf")), axis=0)
        floor = tl.where((top_k <= parts) & (floor > -3.4028234663852886e38), floor, float("-inf"))
        # Rounding may take the sum past the total: without top-p the tail is not lost to that.
        most = tl.where(top_p >= 1, float("inf"), top_p * total)
        counted = (top_k < vocab) | (top_p < 1)
        searching = (top_k > 1) & (counted | (min_p > 0))
        row_ptr = logits_ptr + row * row_stride
        while searching:
            value = finite_top(tl.load(row_ptr + token).to(tl.float32))
            kept = (value >= floor) & (tl.exp((value - top) / temperature) >= min_p)
            if kept & counted:
                weight, count = tokens_before(
                    row_ptr, sums_ptr, value, token, top, temperature, vocab, parts, COLUMNS
                )
                kept = (count == 0) | ((count < top_k) & (weight <= most))
            searching = kept == 0
            if searching:
                best = tl.full([COLUMNS], LOWEST, dtype=tl.int64)
                for part in range(parts):
                    if tl.load(sums_ptr + part * 2) >= tl.maximum(value, floor):
                        columns, values, before = part_before(
                            row_ptr, part, logit_order(value), token, vocab, COLUMNS
                        )
                        scaled = (values - top) / temperature
                        passed = before & (values >= floor) & (tl.exp(scaled) >= min_p)
                        noise = gumbel_part(noise_ptr, row, part * COLUMNS, vocab, COLUMNS, GIVEN)
                        found = token_key(ordered(scaled + noise), columns)
                        best = tl.maximum(best, tl.where(passed, found, LOWEST))
                winner = tl.max(best, axis=0)
                # None is left only where the row has no distribution, and any token will do.
                searching = winner > LOWEST
                token = tl.where(searching, key_token(winner), token)
    tl.store(tokens_ptr + row, token)

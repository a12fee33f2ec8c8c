"""What the kernels that sample share: logits made finite, and Gumbel noise by (seed, row, token)."""

import triton
import triton.language as tl

from .triton_order import ordered


@triton.jit
def finite_top(logits):  # type: ignore[no-untyped-def]
    """Logits without NaN and +inf: NaN has no mass, +inf weighs like the greatest finite number."""
    return tl.where(logits == logits, tl.minimum(logits, 3.4028234663852886e38), float("-inf"))


@triton.jit
def logit_order(logits):  # type: ignore[no-untyped-def]
    """int32 that sorts as torch.argmax compares: NaN above all, both zeros equal."""
    order = ordered(logits)
    order = tl.where(order == -1, 0, order)
    return tl.where(logits == logits, order, 0x7FFFFFFF)


@triton.jit
def _gumbel(exponential):  # type: ignore[no-untyped-def]
    return -tl.log(tl.maximum(exponential, 1.1754943508222875e-38))


@triton.jit
def exponential(bits):  # type: ignore[no-untyped-def]
    """Exp(1) draws in 2^-33..16.7, float32, from uniform uint32 bits."""
    # Races are decided at small draws, which therefore come from small uniforms, where float32 keeps all 32
    # bits. The greatest stays below 1: its draw must be finite.
    uniform = tl.minimum((bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.99999994)
    # -log(1 - u): the series where 1 - u would round away what u holds; its error is below 1e-8.
    series = 0.2 + uniform * 0.16666667
    series = 0.25 + uniform * series
    series = 0.33333334 + uniform * series
    series = uniform * (1.0 + uniform * (0.5 + uniform * series))
    return tl.where(uniform < 0.0625, series, -tl.log(1.0 - uniform))


@triton.jit
def gumbel_part(noise_ptr, row, first, vocab, COLUMNS: tl.constexpr, GIVEN: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    """Standard Gumbel noise, float32 [COLUMNS], of the tokens from `first` on, a multiple of 4; row is int64.

    Given: -log of Exp(1) draws, float32 [rows, vocab]. Else Philox4x32-10 with the int64 seed at `noise_ptr`
    as key and (token // 4, row) as counter, one of its four words for each token. 32-bit draws know no
    probability below 2^-33: a rarer token never wins, others err by about that much.
    """
    if GIVEN:
        columns = first + tl.arange(0, COLUMNS)
        noise = tl.load(noise_ptr + row * vocab + columns, mask=columns < vocab, other=1.0)
    else:
        groups = first // 4 + tl.arange(0, COLUMNS // 4)
        zero = groups * 0
        a, b, c, d = tl.philox(tl.load(noise_ptr), groups, zero + row.to(tl.int32), zero, zero)
        noise = exponential(tl.interleave(tl.interleave(a, c), tl.interleave(b, d)))
    return _gumbel(noise)


@triton.jit
def gumbel_at(noise_ptr, row, tokens, vocab, GIVEN: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    """What `gumbel_part` gives for single tokens, float32 of their shape."""
    if GIVEN:
        noise = tl.load(noise_ptr + row * vocab + tokens)
    else:
        groups = (tokens // 4).to(tl.int32)
        zero = groups * 0
        a, b, c, d = tl.philox(tl.load(noise_ptr), groups, zero + row.to(tl.int32), zero, zero)
        word = tokens % 4
        noise = exponential(tl.where(word < 2, tl.where(word == 0, a, b), tl.where(word == 2, c, d)))
    return _gumbel(noise)

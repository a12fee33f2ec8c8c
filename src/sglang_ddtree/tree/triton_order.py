"""Numbers and tokens as integers that sort alike: one max reduction finds the best and says which it is."""

import triton
import triton.language as tl

LOWEST = tl.constexpr(-0x7FFFFFFFFFFFFFFF)
# Below the key of every number and token: marks what is not there.


@triton.jit
def ordered(value):  # type: ignore[no-untyped-def]
    """float32 as an int32 that sorts like the number; -0.0 sorts just below 0.0, NaN by its sign at the ends."""
    bits = value.to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)


@triton.jit
def token_key(order, token):  # type: ignore[no-untyped-def]
    """int64 that sorts like (`ordered` int32, smaller token first)."""
    return (order.to(tl.int64) << 32) | (0x7FFFFFFF - token).to(tl.int64)


@triton.jit
def key_value(key):  # type: ignore[no-untyped-def]
    """The float32 whose `ordered` int32 is the upper half of a key."""
    order = (key >> 32).to(tl.int32)
    return tl.where(order >= 0, order, order ^ 0x7FFFFFFF).to(tl.float32, bitcast=True)


@triton.jit
def key_token(key):  # type: ignore[no-untyped-def]
    """The token, int64, in a `token_key`."""
    return 0x7FFFFFFF - (key & 0x7FFFFFFF)


@triton.jit
def best_keys(keys, count, LANES: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    """The `count` greatest of distinct keys, descending, int64 [LANES]; LOWEST where there are fewer."""
    lanes = tl.arange(0, LANES)
    best = tl.full([LANES], LOWEST, dtype=tl.int64)
    for rank in range(count):
        key = tl.max(keys, axis=0)
        best = tl.where(lanes == rank, key, best)
        keys = tl.where(keys == key, LOWEST, keys)
    return best

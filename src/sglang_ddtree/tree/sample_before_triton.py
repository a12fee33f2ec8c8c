"""What comes before a token in a row, in the order (logit, smaller token first) that the filters cut."""

import triton
import triton.language as tl

from .sample_noise_triton import finite_top, logit_order


@triton.jit
def part_before(row_ptr, part, order, token, vocab, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    """Columns int32, finite logits float32 and whether they come before (order, token) of a part, [COLUMNS] each."""
    columns = part * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < vocab
    values = finite_top(tl.load(row_ptr + columns, mask=inside, other=float("-inf")).to(tl.float32))
    orders = logit_order(values)
    return columns, values, inside & ((orders > order) | ((orders == order) & (columns < token)))


@triton.jit
def tokens_before(row_ptr, tops_ptr, value, token, top, temperature, vocab, parts, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    """Weight (exp of the logit below `top` over temperature) and number of the tokens before (value, token).

    `tops_ptr` holds a part's greatest logit at every second place: parts below `value` are not read.
    """
    order = logit_order(value)
    weights = tl.zeros([COLUMNS], dtype=tl.float32)
    counts = tl.zeros([COLUMNS], dtype=tl.int32)
    for part in range(parts):
        if tl.load(tops_ptr + part * 2) >= value:
            _, values, before = part_before(row_ptr, part, order, token, vocab, COLUMNS)
            weights += tl.where(before, tl.exp((values - top) / temperature), 0.0)
            counts += before.to(tl.int32)
    return tl.sum(weights, axis=0), tl.sum(counts, axis=0)

"""The walk along the target's choices in Triton, and what follows from it, one program per request."""

import torch
import triton
import triton.language as tl

from .accept import Acceptance, PathRows, WidthTally
from .tree import DraftTree
from .triton_device import require_kernel_device, step_kernel


def settle_path_triton(
    tree: DraftTree,
    target_tokens: torch.Tensor,
    prefix_lens: torch.Tensor,
    slots: torch.Tensor,
    tally: WidthTally | None = None,
) -> tuple[Acceptance, PathRows]:
    """The twin of `settle_path_torch` for CUDA; it reads parents instead of the mask."""
    require_kernel_device(_accept_kernel, tree.tokens)
    batch, width = tree.tokens.shape
    device = tree.tokens.device
    path_len = tree.max_depth + 1
    accept_index = torch.empty(batch, path_len, dtype=torch.int32, device=device)
    accept_lens = torch.empty(batch, dtype=torch.int32, device=device)
    paths = torch.empty(5, batch, path_len, dtype=torch.int64, device=device).unbind(0)
    predict, targets, sources, rows, positions = paths
    bonus_tokens, new_seq_lens = torch.empty(2, batch, dtype=torch.int64, device=device).unbind(0)
    if batch:
        _accept_kernel[(batch,)](
            tree.tokens,
            tree.parents,
            target_tokens.contiguous(),
            accept_index,
            accept_lens,
            predict,
            bonus_tokens,
            prefix_lens,
            slots,
            new_seq_lens,
            targets,
            sources,
            rows,
            positions,
            # Without a tally these pointers are not followed.
            accept_lens if tally is None else tally.widths,
            predict if tally is None else tally.totals,
            slots.stride(0),
            width,
            path_len,
            0 if tally is None else tally.widths.shape[0],
            COLUMNS=triton.next_power_of_2(width),
            WIDTHS=0 if tally is None else triton.next_power_of_2(tally.widths.shape[0]),
            num_warps=1 if width <= 256 else 4,
        )
    accepted = Acceptance(accept_index, accept_lens, predict, bonus_tokens)
    return accepted, PathRows(new_seq_lens, targets, sources, rows, positions)


@step_kernel(["slots_stride", "width", "path_len", "widths"])
def _accept_kernel(  # type: ignore[no-untyped-def]
    tokens_ptr,
    parents_ptr,
    target_tokens_ptr,
    accept_index_ptr,
    accept_lens_ptr,
    predict_ptr,
    bonus_tokens_ptr,
    prefix_lens_ptr,
    slots_ptr,
    new_seq_lens_ptr,
    targets_ptr,
    sources_ptr,
    rows_ptr,
    positions_ptr,
    tally_widths_ptr,
    tally_totals_ptr,
    slots_stride,
    width,
    path_len,
    widths,
    COLUMNS: tl.constexpr,  # noqa: N803
    WIDTHS: tl.constexpr,  # noqa: N803
):
    request = tl.program_id(0).to(tl.int64)
    target_tokens_ptr += request * width
    out = request * path_len
    slots = tl.arange(0, COLUMNS)
    inside = slots < width
    tokens = tl.load(tokens_ptr + request * width + slots, mask=inside, other=0)
    # The root and unused slots have parent -1: nobody's child.
    parents = tl.load(parents_ptr + request * width + slots, mask=inside, other=-1)
    prefix = tl.load(prefix_lens_ptr + request).to(tl.int64)
    slots_ptr += request * slots_stride
    if WIDTHS > 0:
        lanes = tl.arange(0, WIDTHS)
        limits = tl.load(tally_widths_ptr + lanes, mask=lanes < widths, other=0)
        emitted = tl.zeros([WIDTHS], dtype=tl.int64)

    # `node` is the last accepted slot; once the walk has ended it stays there and nothing more is emitted.
    node = tl.full((), 0, dtype=tl.int32)
    walking = tl.full((), 1, dtype=tl.int32)
    count = tl.full((), 0, dtype=tl.int32)
    for step in range(path_len):
        choice = tl.load(target_tokens_ptr + node)
        tl.store(accept_index_ptr + out + step, tl.where(walking > 0, node, -1))
        tl.store(predict_ptr + out + step, tl.where(walking > 0, choice, 0))
        target = tl.load(slots_ptr + step)
        source = tl.load(slots_ptr + node)
        tl.store(targets_ptr + out + step, target)
        tl.store(sources_ptr + out + step, tl.where(walking > 0, source, target))
        tl.store(rows_ptr + out + step, request * width + tl.where(walking > 0, node, 0))
        tl.store(positions_ptr + out + step, prefix + step)
        if WIDTHS > 0:
            emitted += ((limits > node) & (walking > 0)).to(tl.int64)
        count += walking
        fits = (parents == node) & (tokens == choice)
        child = tl.min(tl.where(fits, slots, COLUMNS), axis=0)
        walking = walking & (child < COLUMNS).to(tl.int32)
        node = tl.where(walking > 0, child, node)
    tl.store(accept_lens_ptr + request, count)
    tl.store(bonus_tokens_ptr + request, tl.load(target_tokens_ptr + node))
    tl.store(new_seq_lens_ptr + request, prefix + count)
    if WIDTHS > 0:
        tl.atomic_add(tally_totals_ptr + lanes, emitted, mask=lanes < widths)
        tl.atomic_add(tally_totals_ptr + widths, 1)

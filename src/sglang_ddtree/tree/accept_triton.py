"""The walk along the target's choices in Triton, one program per request."""

import torch
import triton
import triton.language as tl

from .accept import Acceptance
from .tree import DraftTree
from .triton_device import require_kernel_device


def accept_path_triton(tree: DraftTree, target_tokens: torch.Tensor) -> Acceptance:
    """The twin of `accept_path_torch` for CUDA; it reads parents instead of the mask."""
    require_kernel_device(_accept_kernel, tree.tokens)
    batch, width = tree.tokens.shape
    device = tree.tokens.device
    path_len = tree.max_depth + 1
    accept_index = torch.empty(batch, path_len, dtype=torch.int32, device=device)
    accept_lens = torch.empty(batch, dtype=torch.int32, device=device)
    predict = torch.empty(batch, path_len, dtype=torch.int64, device=device)
    bonus_tokens, last_node = torch.empty(2, batch, dtype=torch.int64, device=device).unbind(0)
    if batch:
        _accept_kernel[(batch,)](
            tree.tokens,
            tree.parents,
            target_tokens.contiguous(),
            accept_index,
            accept_lens,
            predict,
            bonus_tokens,
            last_node,
            width,
            path_len,
            COLUMNS=triton.next_power_of_2(width),
            num_warps=1 if width <= 256 else 4,
        )
    return Acceptance(accept_index, accept_lens, predict, bonus_tokens, last_node)


@triton.jit(do_not_specialize=["width", "path_len"])
def _accept_kernel(  # type: ignore[no-untyped-def]
    tokens_ptr,
    parents_ptr,
    target_tokens_ptr,
    accept_index_ptr,
    accept_lens_ptr,
    predict_ptr,
    bonus_tokens_ptr,
    last_node_ptr,
    width,
    path_len,
    COLUMNS: tl.constexpr,  # noqa: N803
):
    request = tl.program_id(0).to(tl.int64)
    target_tokens_ptr += request * width
    accept_index_ptr += request * path_len
    predict_ptr += request * path_len
    slots = tl.arange(0, COLUMNS)
    inside = slots < width
    tokens = tl.load(tokens_ptr + request * width + slots, mask=inside, other=0)
    # The root and unused slots have parent -1: nobody's child.
    parents = tl.load(parents_ptr + request * width + slots, mask=inside, other=-1)

    # `node` is the last accepted slot; once the walk has ended it stays there and nothing more is emitted.
    node = tl.full((), 0, dtype=tl.int32)
    walking = tl.full((), 1, dtype=tl.int32)
    count = tl.full((), 0, dtype=tl.int32)
    for step in range(path_len):
        choice = tl.load(target_tokens_ptr + node)
        tl.store(accept_index_ptr + step, tl.where(walking > 0, node, -1))
        tl.store(predict_ptr + step, tl.where(walking > 0, choice, 0))
        count += walking
        fits = (parents == node) & (tokens == choice)
        child = tl.min(tl.where(fits, slots, COLUMNS), axis=0)
        walking = walking & (child < COLUMNS).to(tl.int32)
        node = tl.where(walking > 0, child, node)
    tl.store(accept_lens_ptr + request, count)
    tl.store(last_node_ptr + request, node.to(tl.int64))
    tl.store(bonus_tokens_ptr + request, tl.load(target_tokens_ptr + node))

"""Which cache slots each request looks at in one forward pass, and the attention over them. No SGLang."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch


class Segment(NamedTuple):
    """One request's share of a forward pass."""

    rows: slice  # its query rows
    kv_locs: torch.Tensor  # int64 [kv_len], the cache slots it may look at, in order
    mask: torch.Tensor | None  # bool [rows, kv_len], True where a row may look; None: everywhere


def plan_segments(forward_batch: ForwardBatch, req_to_token: torch.Tensor) -> list[Segment]:
    """What each request of the batch looks at.

    `forward_batch.seq_lens` counts the tokens before the window in TARGET_VERIFY, and all tokens, the new
    ones included, in every other mode.
    """
    mode = forward_batch.forward_mode
    seq_lens = forward_batch.seq_lens.tolist()
    if mode.is_target_verify():
        width = forward_batch.input_ids.shape[0] // max(len(seq_lens), 1)
        new_lens = [width] * len(seq_lens)
        kv_lens = [length + width for length in seq_lens]
        masks = verify_masks(forward_batch.spec_info, seq_lens, width)
    else:
        new_lens = [1] * len(seq_lens) if mode.is_decode() else forward_batch.extend_seq_lens.tolist()
        kv_lens = seq_lens
        masks = [causal_mask(new, kv) for new, kv in zip(new_lens, kv_lens, strict=True)]

    segments = []
    start = 0
    for row, new, kv, mask in zip(
        forward_batch.req_pool_indices.tolist(), new_lens, kv_lens, masks, strict=True
    ):
        segments.append(Segment(slice(start, start + new), req_to_token[row, :kv].long(), mask))
        start += new
    return segments


def causal_mask(new_len: int, kv_len: int) -> torch.Tensor | None:
    """bool ``[new_len, kv_len]`` for the last `new_len` of `kv_len` tokens; None when one token sees all."""
    if new_len == 1:
        return None
    return torch.ones(new_len, kv_len, dtype=torch.bool).tril(diagonal=kv_len - new_len)


def verify_masks(spec_info: Any, seq_lens: list[int], width: int) -> list[torch.Tensor | None]:
    """The mask of each request's verify window, one bool ``[width, seq_len + width]`` per request.

    Taken from `spec_info.tree_mask` (bool ``[batch, width, width]``, the window alone: the prefix is visible
    to all), else from SGLang's flat `spec_info.custom_mask` (``width * (seq_len + width)`` cells a request),
    else causal.

    Raises:
        ValueError: a mask has another shape than the window and the lengths ask for.
    """
    tree_mask = getattr(spec_info, "tree_mask", None)
    if tree_mask is not None:
        if tuple(tree_mask.shape) != (len(seq_lens), width, width):
            raise ValueError(
                f"tree_mask has shape {tuple(tree_mask.shape)}, expected {(len(seq_lens), width, width)}"
            )
        return [
            torch.cat([window.new_ones(width, length), window], dim=1)
            for length, window in zip(seq_lens, tree_mask.bool(), strict=True)
        ]

    custom_mask = getattr(spec_info, "custom_mask", None)
    if custom_mask is not None:
        sizes = [width * (length + width) for length in seq_lens]
        if custom_mask.numel() < sum(sizes):
            raise ValueError(
                f"custom_mask has {custom_mask.numel()} cells, expected at least {sum(sizes)} "
                f"for lengths {seq_lens} and a window of {width}"
            )
        # The buffer may be longer than this batch: only the leading cells are live.
        live = custom_mask.reshape(-1)[: sum(sizes)].bool().split(sizes)
        return [cells.view(width, -1) for cells in live]

    return [causal_mask(width, length + width) for length in seq_lens]


def attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    segments: Sequence[Segment],
    *,
    scale: float,
    sees_everything: bool = False,
) -> torch.Tensor:
    """Attention of every segment's rows over its own cache slots, one SDPA call each.

    A loop beats a padded batch on a CPU at every verify width from 1 to 65 (batch 48).

    Args:
        queries: ``[rows, heads, key_dim]``.
        keys, values: the caches, ``[slots, kv_heads, key_dim]`` and ``[slots, kv_heads, value_dim]``, in any
            float dtype; `heads` is a multiple of `kv_heads`.
        sees_everything: leave the segments' masks out.

    Returns:
        ``[rows, heads, value_dim]`` in the queries' dtype.
    """
    heads, kv_heads = queries.shape[1], keys.shape[1]
    output = queries.new_empty(queries.shape[0], heads, values.shape[-1])
    for rows, kv_locs, mask in segments:
        attended = scaled_dot_product_attention(
            _heads_first(queries[rows]),
            _heads_first(keys[kv_locs].to(queries.dtype)),
            _heads_first(values[kv_locs].to(queries.dtype)),
            attn_mask=None if sees_everything else mask,
            scale=scale,
            enable_gqa=heads != kv_heads,
        )
        output[rows] = attended[0].transpose(0, 1)
    return output


def _heads_first(rows: torch.Tensor) -> torch.Tensor:
    return rows.transpose(0, 1).unsqueeze(0)

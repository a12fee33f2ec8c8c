"""Attention backend `ddtree_cpu`: torch's scaled_dot_product_attention, with a tree mask in TARGET_VERIFY."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from sglang.srt.layers.attention.attention_registry import register_attention_backend
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from torch.nn.functional import scaled_dot_product_attention

from sglang_ddtree.cpu.platform import PLATFORM_NAME

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner


class Segment(NamedTuple):
    """One request's share of a forward pass."""

    rows: slice  # its query rows
    kv_locs: torch.Tensor  # int64 [kv_len], the cache slots it may look at, in order
    mask: torch.Tensor | None  # bool [rows, kv_len], True where a row may look; None: everywhere


class CpuTreeAttentionBackend(AttentionBackend):
    """One SDPA call per request and layer; what each request looks at is worked out once per forward pass.

    A loop beats a padded batch on a CPU at every verify width from 1 to 65 (batch 48).
    """

    def __init__(self, model_runner: ModelRunner) -> None:
        super().__init__()
        self.req_to_token_pool = model_runner.req_to_token_pool
        self.token_to_kv_pool = model_runner.token_to_kv_pool
        self._planned_for: ForwardBatch | None = None
        self._segments: list[Segment] = []

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        # Built at the first layer: a tree mask may still be written between this call and the forward pass.
        self._planned_for = None

    def support_triton(self) -> bool:
        return False

    def forward_decode(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self._attend(*args, **kwargs)

    def forward_extend(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self._attend(*args, **kwargs)

    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
    ) -> torch.Tensor:
        _refuse_unsupported(layer)
        if save_kv_cache and k is not None and v is not None:
            self.token_to_kv_pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc), k, v)
        if self._planned_for is not forward_batch:
            self._segments = plan_segments(forward_batch, self.req_to_token_pool.req_to_token)
            self._planned_for = forward_batch

        queries = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        keys = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
        values = self.token_to_kv_pool.get_value_buffer(layer.layer_id)
        sees_everything = layer.attn_type == AttentionType.ENCODER_ONLY  # DFlash's draft block
        output = queries.new_empty(queries.shape[0], layer.tp_q_head_num, layer.v_head_dim)
        for rows, kv_locs, mask in self._segments:
            attended = scaled_dot_product_attention(
                _heads_first(queries[rows]),
                _heads_first(keys[kv_locs].to(q.dtype)),
                _heads_first(values[kv_locs].to(q.dtype)),
                attn_mask=None if sees_everything else mask,
                scale=layer.scaling,
                enable_gqa=layer.tp_q_head_num != layer.tp_k_head_num,
            )
            output[rows] = attended[0].transpose(0, 1)
        return output.view(-1, layer.tp_q_head_num * layer.v_head_dim)


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


def _heads_first(rows: torch.Tensor) -> torch.Tensor:
    return rows.transpose(0, 1).unsqueeze(0)


def _refuse_unsupported(layer: RadixAttention) -> None:
    found = {
        "a sliding window": layer.sliding_window_size > -1,
        "cross attention": layer.is_cross_attention,
        "a logit cap": layer.logit_cap > 0,
    }
    present = [name for name, is_present in found.items() if is_present]
    if present:
        raise NotImplementedError(
            f"attention backend {PLATFORM_NAME} does not support {' and '.join(present)} "
            f"(layer {layer.layer_id})"
        )


def register() -> None:
    """Make the backend known to SGLang under the platform's name. Idempotent."""
    register_attention_backend(PLATFORM_NAME)(CpuTreeAttentionBackend)

"""Attention backend `ddtree_cpu`: torch's scaled_dot_product_attention, with a tree mask in TARGET_VERIFY."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.layers.attention.attention_registry import register_attention_backend
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc

from sglang_ddtree.cpu.platform import PLATFORM_NAME
from sglang_ddtree.cpu.segments import Segment, attend, plan_segments

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner


class CpuTreeAttentionBackend(AttentionBackend):
    """What each request looks at is worked out once per forward pass, not once per layer."""

    def __init__(self, model_runner: ModelRunner) -> None:
        super().__init__()
        self.req_to_token_pool = model_runner.req_to_token_pool
        self.token_to_kv_pool = model_runner.token_to_kv_pool
        self._planned_for: ForwardBatch | None = None
        self._segments: list[Segment] = []

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        # Planned at the first layer: a tree mask may still be written between this call and the forward pass.
        self._planned_for = None

    def support_triton(self) -> bool:
        return False

    def forward_decode(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self._forward(*args, **kwargs)

    def forward_extend(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self._forward(*args, **kwargs)

    def _forward(
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
        output = attend(
            q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim),
            self.token_to_kv_pool.get_key_buffer(layer.layer_id),
            self.token_to_kv_pool.get_value_buffer(layer.layer_id),
            self._segments,
            scale=layer.scaling,
            sees_everything=layer.attn_type == AttentionType.ENCODER_ONLY,  # DFlash's draft block
        )
        return output.view(-1, layer.tp_q_head_num * layer.v_head_dim)


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

"""This package's attention in SGLang's triton backend, for verifies and for the draft's block.

SGLang's extend kernel stays for prefill and for the layers that ours does not take.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from ..attention import Workspace, can_attend, tree_attention
from .hooks import declare
from .seams import serves_ddtree

logger = logging.getLogger(__name__)

_workspaces: dict[tuple[torch.device, int], Workspace] = {}


def install() -> None:
    """Declare the hooks."""
    backend = "sglang.srt.layers.attention.triton_backend.TritonAttnBackend"
    declare(
        f"{backend}.__init__",
        "after",
        "memory of the attention kernel is taken at startup",
        prepare_backend,
    )
    declare(
        f"{backend}.forward_extend",
        "around",
        "the extend kernel walks a context in one program: a verify must cost its width, not its context",
        attend,
    )
    declare(
        f"{backend}.init_cuda_graph_state",
        "around",
        "its buffers hold a context per captured token; a verify and a draft read one per request",
        size_by_requests,
    )


def prepare_backend(result: None, backend: Any, *args: Any, **kwargs: Any) -> None:
    if serves_ddtree():
        backend.ddtree_attention = VerifyAttention(backend)


def attend(
    original: Callable[..., torch.Tensor],
    backend: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layer: Any,
    forward_batch: Any,
    save_kv_cache: bool = True,
    **options: Any,
) -> torch.Tensor:
    own = getattr(backend, "ddtree_attention", None)
    if own is not None and forward_batch.forward_mode.is_target_verify():
        reason = own.reason_to_decline(q, k, v, layer, options)
        if reason is None:
            return own.attend(q, k, v, layer, forward_batch, save_kv_cache)
        own.log_once(reason)
    return original(backend, q, k, v, layer, forward_batch, save_kv_cache, **options)


def size_by_requests(
    original: Callable[..., None], backend: Any, max_bs: int, max_num_tokens: int, *args: Any, **kwargs: Any
) -> None:
    # What SGLang sizes by tokens is read in plain decode steps, which DDTREE has none of, and the context slots.
    original(backend, max_bs, max_bs if serves_ddtree() else max_num_tokens, *args, **kwargs)


def workspace_bytes() -> int:
    """Memory of all workspaces of this process."""
    return sum(workspace.nbytes for workspace in _workspaces.values())


class VerifyAttention:
    """The attention of one backend object."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        # Programs of one stream share it: no two layers, forwards or widths run at the same time.
        key = (torch.device(backend.device), int(backend.v_head_dim))
        if key not in _workspaces:
            _workspaces[key] = Workspace.allocate(key[1], int(backend.device_core_count), key[0])
        self.workspace = _workspaces[key]
        self.head_size = key[1]
        self.declined: set[str] = set()

    def reason_to_decline(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: Any, options: dict[str, Any]
    ) -> str | None:
        """What of this call the kernel does not do; None if nothing."""
        backend = self.backend
        if k is None or v is None:
            return "keys and values in the cache alone"
        if backend.enable_deterministic:
            return "deterministic inference"
        if backend.use_mla or backend.dcp_size > 1:
            return "a cache of another layout"
        if any(option is not None for option in options.values()):
            return "attention sinks or a score function"
        if layer.k_scale is not None:
            return "scaled keys and values"
        if layer.logit_cap > 0:
            return "capped logits"
        if layer.sliding_window_size > 0:
            return "a sliding window"
        if layer.xai_temperature_len > 0:
            return "a temperature by length"
        if layer.is_cross_attention or (
            backend.forward_metadata.custom_mask is None and not _sees_whole_block(layer)
        ):
            return "a causal block"
        q = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        k_buffer = backend.token_to_kv_pool.get_key_buffer(layer.layer_id)
        if q.shape[2] != self.head_size or not can_attend(q, k, v, k_buffer):
            return "its head size, dtype or cache layout"
        return None

    def log_once(self, reason: str) -> None:
        if reason not in self.declined:
            self.declined.add(reason)
            logger.info("DDTREE leaves attention with %s to SGLang's extend kernel.", reason)

    @torch.compiler.disable
    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool,
    ) -> torch.Tensor:
        from sglang.srt.mem_cache.memory_pool import KVWriteLoc

        backend = self.backend
        metadata = backend.forward_metadata
        out = getattr(forward_batch, "_attn_output", None)
        if out is None:
            out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if save_kv_cache:
            slots = KVWriteLoc.for_batch(forward_batch, swa_loc=metadata.swa_out_cache_loc)
            backend._set_kv_buffer(forward_batch, layer, slots, k, v)
        heads = (-1, layer.tp_q_head_num, layer.qk_head_dim)
        tree_attention(
            q.view(heads),
            k,
            v,
            out.view(heads),
            backend.token_to_kv_pool.get_key_buffer(layer.layer_id),
            backend.token_to_kv_pool.get_value_buffer(layer.layer_id),
            metadata.kv_indptr,
            metadata.kv_indices,
            metadata.custom_mask,
            metadata.mask_indptr if metadata.custom_mask is not None else None,
            layer.scaling,
            self.workspace,
        )
        return out


def _sees_whole_block(layer: Any) -> bool:
    from sglang.srt.layers.radix_attention import AttentionType

    return bool(layer.attn_type == AttentionType.ENCODER_ONLY)

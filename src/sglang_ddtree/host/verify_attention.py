"""The seam by which SGLang's triton backend runs this package's attention in a verify and in the draft.

The backend asks a split-KV kernel of its own first, `verify_splitkv_fwd`, which serves chains on ROCm alone, and takes
its extend kernel for what that one declines. DDTREE puts its kernel in that place.
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
    declare(
        "sglang.srt.layers.attention.triton_backend.TritonAttnBackend.__init__",
        "after",
        "SGLang's extend kernel walks a context in one program: a verify must cost its width, not its context",
        attend_trees,
    )
    declare(
        "sglang.srt.layers.attention.triton_backend.TritonAttnBackend.init_cuda_graph_state",
        "around",
        "its buffers hold a context per captured token; a verify and a draft read one per request",
        size_by_requests,
    )


def size_by_requests(
    original: Callable[..., None], backend: Any, max_bs: int, max_num_tokens: int, *args: Any, **kwargs: Any
) -> None:
    # What SGLang sizes by tokens is read in plain decode steps, which DDTREE has none of, and the context slots.
    original(backend, max_bs, max_bs if serves_ddtree() else max_num_tokens, *args, **kwargs)


def attend_trees(result: None, backend: Any, *args: Any, **kwargs: Any) -> None:
    if serves_ddtree():
        backend.verify_splitkv_fwd = VerifyAttention(backend)
        backend.use_verify_splitkv = True


def workspace_bytes() -> int:
    """Memory of all workspaces of this process."""
    return sum(workspace.nbytes for workspace in _workspaces.values())


class VerifyAttention:
    """Stands where SGLang's `verify_splitkv_fwd` stands: the same arguments, True when `o` is written."""

    def __init__(self, backend: Any) -> None:
        # Programs of one stream share it: no two layers, forwards or widths run at the same time.
        key = (torch.device(backend.device), int(backend.v_head_dim))
        if key not in _workspaces:
            _workspaces[key] = Workspace.allocate(key[1], int(backend.device_core_count), key[0])
        self.workspace = _workspaces[key]
        self.head_size = key[1]
        self.declined: set[str] = set()

    @torch.compiler.disable
    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        o: torch.Tensor,
        k_buffer: torch.Tensor,
        v_buffer: torch.Tensor,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        kv_indices: torch.Tensor,
        custom_mask: torch.Tensor | None,
        is_causal: bool,
        mask_indptr: torch.Tensor | None,
        max_len_extend: int,
        k_scale: float,
        v_scale: float,
        sm_scale: float,
        *,
        logit_cap: float,
        sliding_window_size: int,
        sinks: torch.Tensor | None,
        window_kv_offsets: torch.Tensor | None,
        xai_temperature_len: int,
        max_bs: int,
    ) -> bool:
        reasons = {
            "a causal block": is_causal and custom_mask is None,
            "scaled keys and values": (k_scale, v_scale) != (1.0, 1.0),
            "capped logits": logit_cap > 0,
            "a sliding window": sliding_window_size > 0,
            "attention sinks": sinks is not None,
            "a temperature by length": xai_temperature_len > 0,
            "rows that are no whole blocks": q.shape[0] != (kv_indptr.shape[0] - 1) * max_len_extend,
            "its head size, dtype or cache layout": q.shape[2] != self.head_size
            or not can_attend(q, k, v, k_buffer),
        }
        reason = next((name for name, holds in reasons.items() if holds), None)
        if reason is not None:
            if reason not in self.declined:
                self.declined.add(reason)
                logger.info("DDTREE leaves attention with %s to SGLang's extend kernel.", reason)
            return False
        tree_attention(
            q,
            k,
            v,
            o,
            k_buffer,
            v_buffer,
            kv_indptr,
            kv_indices,
            custom_mask,
            mask_indptr if custom_mask is not None else None,
            sm_scale,
            self.workspace,
        )
        return True

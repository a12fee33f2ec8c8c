"""What SGLang's triton backend prepares for a replay, moved into the captured graph.

The backend fills its index tensors before every replay, by some ten launches for the draft and again for the verify.
DDTREE records two kernels at the head of each graph instead, which read the lengths from the graph's own buffers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..attention import write_pointers
from .hooks import declare
from .seams import serves_ddtree

GATHER_PROGRAMS = 8
"""Programs that gather one request's context slots."""


def install() -> None:
    """Declare the hooks."""
    backend = "sglang.srt.layers.attention.triton_backend.TritonAttnBackend"
    declare(
        f"{backend}._init_forward_metadata_out_graph",
        "around",
        "a replay's index tensors are filled by the graph itself",
        prepare_outside,
    )
    declare(
        f"{backend}.init_forward_metadata_in_graph",
        "around",
        "a replay's index tensors are filled by the graph itself",
        prepare_inside,
    )


def prepare_outside(
    original: Callable[..., None], backend: Any, forward_batch: Any, in_capture: bool
) -> None:
    if in_capture or not records_metadata(backend, forward_batch):
        original(backend, forward_batch, in_capture)


def prepare_inside(original: Callable[..., None], backend: Any, forward_batch: Any) -> None:
    original(backend, forward_batch)
    if not records_metadata(backend, forward_batch):
        return
    requests = forward_batch.batch_size
    lens = forward_batch.seq_lens[:requests]
    kv_indptr = backend.kv_indptr[: requests + 1]
    write_pointers(
        lens,
        backend._target_verify_num_tokens_per_req(forward_batch.spec_info),
        backend.qo_indptr[: requests + 1],
        kv_indptr,
        backend.mask_indptr[: requests + 1],
    )
    backend.kv_index_translator.pack_read_stream(
        forward_batch.kv_loc_plan,
        req_pool_indices=forward_batch.req_pool_indices,
        seq_lens=lens,
        indptr=kv_indptr,
        out=backend.cuda_graph_kv_indices,
        num_token_blocks=GATHER_PROGRAMS,
    )


def records_metadata(backend: Any, forward_batch: Any) -> bool:
    """Whether this is a verify or a draft of DDTREE whose index tensors depend on the graph's buffers alone."""
    from sglang.srt.mem_cache.kv_loc_plan import IdSpaceKind

    return bool(
        serves_ddtree()
        and forward_batch.forward_mode.is_target_verify()
        and not (backend.sliding_window_size or 0) > 0
        and not backend.use_sliding_window_kv_pool
        and backend.dllm_attention is None
        # Its attention is SGLang's unified kernel, which has not been run this way.
        and not backend.enable_deterministic
        # Translated slots come from a table of the step's own.
        and not backend.kv_index_translator._reads_translated(IdSpaceKind.FULL)
    )

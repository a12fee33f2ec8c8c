"""One target forward over the whole tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.eagle_utils import eagle_prepare_for_verify

from ..tree.mask import write_tree_mask
from ..tree.topology import TreeTopology
from ..tree.tree import DraftTree
from .verify_input import DDTreeVerifyInput

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.managers.utils import GenerationBatchResult

    from .window import HostLengths, StepWindow
    from .worker import DDTreeWorker


def verify(
    worker: DDTreeWorker,
    batch: ScheduleBatch,
    tree: DraftTree,
    topology: TreeTopology,
    window: StepWindow,
    host: HostLengths,
) -> GenerationBatchResult:
    """Target logits [batch * W, vocabulary] and captured hidden states [batch * W, layers * hidden]."""
    mask, mask_is_captured = _flat_mask(worker.model_runner.attn_backend, topology, window, host)
    verify_input = DDTreeVerifyInput(
        draft_token=tree.tokens.reshape(-1),
        # A captured graph reads the buffer itself; handing it over would copy it onto itself every step.
        custom_mask=mask[:0] if mask is not None and mask_is_captured else mask,
        positions=topology.positions.reshape(-1),
        retrieve_index=topology.retrieve_index,
        retrieve_next_token=topology.retrieve_next_token,
        retrieve_next_sibling=topology.retrieve_next_sibling,
        retrieve_cum_len=None,
        spec_steps=worker.plan.max_depth,
        topk=2,
        draft_token_num=tree.width,
        capture_hidden_mode=CaptureHiddenMode.FULL,
        seq_lens_sum=host.total,
        seq_lens_cpu=host.lens,
        prepared_out_cache_loc=window.head(tree.width),
        tree_mask=topology.ancestor_mask,
    )
    committed = batch.seq_lens_cpu, batch.seq_lens_sum
    batch.spec_info = verify_input
    batch.seq_lens_cpu, batch.seq_lens_sum = host.lens, host.total
    forward_batch, runs_graph = eagle_prepare_for_verify(
        verify_input, worker.model_runner.req_to_token_pool, batch, worker.target_worker
    )
    batch.seq_lens_cpu, batch.seq_lens_sum = committed
    if not runs_graph:
        verify_input.custom_mask = mask
    return worker.target_worker.forward_batch_generation(
        batch=None, forward_batch=forward_batch, is_verify=True
    )


def _flat_mask(
    backend: Any, topology: TreeTopology, window: StepWindow, host: HostLengths
) -> tuple[torch.Tensor | None, bool]:
    """SGLang's flattened mask and whether it lies in the buffer that captured graphs read.

    A batch larger than the graphs gets a buffer of its own, sized from the host's bound.
    """
    if not window.prefix_lens.is_cuda:
        return None, False
    batch_size, width = topology.positions.shape
    shared = backend.verify_mask
    captured = shared is not None and shared.fits(batch_size)
    if captured:
        # Sized for the captured batch at full context: nothing to check against the batch at hand.
        mask = shared.buffer
    else:
        # `host.total` bounds the sum of prefix + width, which is all that the cells depend on.
        mask = torch.empty(width * host.total, dtype=torch.bool, device=window.prefix_lens.device)
    write_tree_mask(mask, topology.ancestor_mask, window.prefix_lens)
    return mask, captured

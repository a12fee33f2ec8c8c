"""One target forward over the whole tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.eagle_utils import eagle_prepare_for_verify

from ..tree.mask import write_tree_mask
from ..tree.topology import TreeTopology, lay_out
from ..tree.tree import DraftTree
from .verify_input import DDTreeVerifyInput

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.managers.utils import GenerationBatchResult

    from ..tree.window import StepWindow
    from .lengths import HostLengths
    from .worker import DDTreeWorker


def verify(
    worker: DDTreeWorker,
    batch: ScheduleBatch,
    tree: DraftTree,
    topology: TreeTopology,
    window: StepWindow,
    host: HostLengths,
    mask: VerifyMask,
) -> GenerationBatchResult:
    """Target logits [batch * W, vocabulary] and captured hidden states [batch * W, layers * hidden]."""
    verify_input = DDTreeVerifyInput(
        draft_token=tree.tokens.view(-1),
        # A captured graph reads the buffer itself; handing it over would copy it onto itself every step.
        custom_mask=mask.cells[:0] if mask.cells is not None and mask.is_captured else mask.cells,
        positions=topology.positions.view(-1),
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
        prepared_out_cache_loc=window.verify_slots,
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
        verify_input.custom_mask = mask.cells
    return worker.target_worker.forward_batch_generation(
        batch=None, forward_batch=forward_batch, is_verify=True
    )


@dataclass(frozen=True)
class VerifyMask:
    """SGLang's flattened mask of one step; None on backends that read the tree's own.

    Attributes:
        cells: bool, 1-d, laid out as `tree.mask.write_tree_mask` says.
        is_captured: the cells are the buffer that captured graphs read.
    """

    cells: torch.Tensor | None
    is_captured: bool


def mask_buffer(backend: Any, window: StepWindow, width: int, host: HostLengths) -> VerifyMask:
    """Room for the mask. A batch larger than the graphs gets a buffer of its own, sized by the host's bound."""
    if not window.prefix_lens.is_cuda:
        return VerifyMask(None, False)
    shared = backend.verify_mask
    if shared is not None and shared.fits(window.prefix_lens.shape[0]):
        # Sized for the captured batch at full context: nothing to check against the batch at hand.
        return VerifyMask(shared.buffer, True)
    # `host.total` bounds the sum of prefix + width, which is all that the cells depend on.
    return VerifyMask(
        torch.empty(width * host.total, dtype=torch.bool, device=window.prefix_lens.device), False
    )


def lay_out_for_verify(
    tree: DraftTree, window: StepWindow, width: int, mask: VerifyMask, *, reads_prefix: bool
) -> tuple[DraftTree, TreeTopology]:
    """The tree in the step's width, with its mask written.

    Args:
        reads_prefix: the attention kernel reads the mask on the prefix as well; SGLang's triton backend does so
            only under deterministic inference.
    """
    if mask.cells is None or not reads_prefix:
        return lay_out(tree, window.prefix_lens, width, mask.cells)
    tree, topology = lay_out(tree, window.prefix_lens, width)
    write_tree_mask(mask.cells, topology.ancestor_mask, window.prefix_lens)
    return tree, topology

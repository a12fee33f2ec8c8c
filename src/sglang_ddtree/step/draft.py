"""One draft forward: the block of mask tokens in, top-k candidates per depth out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sglang.srt.lora.layers import unwrap_lora_layer
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from ..tree.candidates import DraftCandidates, draft_candidates

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch

    from .window import HostLengths, StepWindow
    from .worker import DDTreeWorker


class CandidateHead:
    """Top-k of the borrowed target head over the draft's hidden states."""

    def __init__(self, weight: torch.Tensor, *, vocab_size: int, block_size: int, topk: int) -> None:
        self.weight = weight[:vocab_size]
        self.block_size = block_size
        self.topk = topk

    def candidates(self, hidden_states: torch.Tensor) -> DraftCandidates:
        """hidden_states: [batch * block_size, hidden]; slot 0 is the bonus token and proposes nothing."""
        size = hidden_states.shape[-1]
        hidden = hidden_states.view(-1, self.block_size, size)[:, 1:].reshape(-1, size)
        # Two dimensions: a batched product would read the head once per request.
        logits = torch.matmul(hidden.to(self.weight.dtype), self.weight.T)
        return draft_candidates(logits.view(-1, self.block_size - 1, logits.shape[-1]), self.topk)


class CapturedHead:
    """The head as the tail of the draft CUDA graph: its result lies at a fixed address after a replay."""

    def __init__(self, head: CandidateHead, max_bs: int) -> None:
        self.head = head
        shape = (max_bs, head.block_size - 1, head.topk)
        self.token_ids = torch.zeros(shape, dtype=torch.int64, device=head.weight.device)
        self.logprobs = torch.zeros(shape, dtype=torch.float32, device=head.weight.device)

    def __call__(self, hidden_states: torch.Tensor, input_ids: torch.Tensor | None = None) -> None:
        found = self.head.candidates(hidden_states)
        self.token_ids[: found.batch_size].copy_(found.token_ids)
        self.logprobs[: found.batch_size].copy_(found.logprobs)

    def result(self, batch_size: int) -> DraftCandidates:
        return DraftCandidates(self.token_ids[:batch_size], self.logprobs[:batch_size])

    @property
    def nbytes(self) -> int:
        return self.token_ids.nbytes + self.logprobs.nbytes


def draft(
    worker: DDTreeWorker,
    batch: ScheduleBatch,
    bonus_tokens: torch.Tensor,
    window: StepWindow,
    host: HostLengths,
) -> DraftCandidates:
    """Run the draft model over one block per request."""
    forward_batch = _draft_forward_batch(worker, batch, bonus_tokens, window, host)
    with torch.inference_mode(), worker.draft_scope():
        output = worker.draft_model_runner.forward(forward_batch)
    if output.can_run_graph and worker.captured_head is not None:
        return worker.captured_head.result(forward_batch.batch_size)
    return worker.candidate_head.candidates(output.logits_output.hidden_states)


def _draft_forward_batch(
    worker: DDTreeWorker,
    batch: ScheduleBatch,
    bonus_tokens: torch.Tensor,
    window: StepWindow,
    host: HostLengths,
) -> ForwardBatch:
    block_size = worker.plan.block_size
    batch_size = window.slots.shape[0]
    block_ids = torch.full(
        (batch_size, block_size), worker.mask_token_id, dtype=torch.int64, device=window.slots.device
    )
    block_ids[:, 0] = bonus_tokens
    positions = window.prefix_lens.unsqueeze(1) + torch.arange(block_size, device=window.slots.device)
    slots = window.head(block_size)
    forward_batch = ForwardBatch(
        forward_mode=ForwardMode.TARGET_VERIFY,
        batch_size=batch_size,
        input_ids=block_ids.flatten(),
        req_pool_indices=batch.req_pool_indices,
        seq_lens=window.prefix_lens,
        out_cache_loc=slots,
        seq_lens_sum=host.total,
        seq_lens_cpu=host.lens,
        positions=positions.flatten(),
        input_embeds=worker.embed_block(block_ids),
        spec_algorithm=SpeculativeAlgorithm.DFLASH,
        spec_info=worker.draft_block_spec_info,
        capture_hidden_mode=CaptureHiddenMode.NULL,
        global_num_token_non_padded_cpu=batch_size * block_size,
        can_run_decode_cuda_graph=batch.can_run_decode_cuda_graph,
    )
    translator = worker.draft_model_runner.kv_index_translator
    plan = worker.model_runner.kv_index_translator.plan(
        req_pool_indices=batch.req_pool_indices,
        seq_lens=window.prefix_lens,
        seq_lens_cpu=host.lens,
        write_virtual=slots,
        read_extent=block_size,
    )
    plan.bind(forward_batch, translator)
    return forward_batch


def target_lm_head(target_model: torch.nn.Module) -> torch.nn.Module | None:
    return unwrap_lora_layer(getattr(target_model, "lm_head", None))

"""One draft forward: the block of mask tokens in, the draft tree out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.lora.layers import unwrap_lora_layer
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from ..tree.build import build_tree
from ..tree.candidates import DraftCandidates, draft_candidates
from ..tree.shards import merge_shards, pack_shard
from ..tree.tree import DraftTree

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch

    from ..tree.window import StepWindow
    from .lengths import HostLengths
    from .plan import StepPlan
    from .ranks import Ranks
    from .worker import DDTreeWorker


class CandidateHead:
    """Top-k of the borrowed target head over the draft's hidden states.

    Args:
        weight: [tokens, hidden], this rank's part of the vocabulary, or all of it.
        first_token: token id of its first row.
        ranks: those that hold the other parts; None on one rank.
        is_whole: every rank has all of the vocabulary. The first one's candidates count then: the hidden states of
            ranks may differ in a last bit.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        *,
        block_size: int,
        topk: int,
        first_token: int = 0,
        ranks: Ranks | None = None,
        is_whole: bool = False,
    ) -> None:
        self.weight = weight
        self.block_size = block_size
        self.topk = topk
        self.first_token = first_token
        self.ranks = ranks
        self.is_whole = is_whole

    @classmethod
    def of(cls, lm_head: Any, *, vocab_size: int, block_size: int, topk: int, ranks: Ranks) -> CandidateHead:
        """The head of a target that runs on `ranks`.

        Raises:
            ValueError: it is neither whole nor one of SGLang's parts of a vocabulary.
        """
        shard = getattr(lm_head, "shard_indices", None)
        if shard is None:
            if ranks.count > 1 and lm_head.weight.shape[0] != vocab_size:
                raise ValueError(
                    f"DDTREE borrows the target's lm_head; on {ranks.count} ranks this {type(lm_head).__name__} has "
                    f"{lm_head.weight.shape[0]} of {vocab_size} rows and does not say which. "
                    "Set --tensor-parallel-size to 1."
                )
            weight, first = lm_head.weight, 0
        else:
            weight, first = lm_head.weight[: int(shard.num_org_elements)], int(shard.org_vocab_start_index)
        if ranks.count == 1:
            return cls(weight, block_size=block_size, topk=topk)
        return cls(
            weight,
            block_size=block_size,
            topk=topk,
            first_token=first,
            ranks=ranks,
            is_whole=weight.shape[0] == vocab_size,
        )

    def candidates(self, hidden_states: torch.Tensor) -> DraftCandidates:
        """hidden_states: [batch * block_size, hidden]; slot 0 is the bonus token and proposes nothing."""
        size = hidden_states.shape[-1]
        hidden = hidden_states.view(-1, self.block_size, size)[:, 1:].reshape(-1, size)
        # Two dimensions: a batched product would read the head once per request.
        logits = torch.matmul(hidden.to(self.weight.dtype), self.weight.T)
        logits = logits.view(-1, self.block_size - 1, logits.shape[-1])
        if self.ranks is None:
            return draft_candidates(logits, self.topk)
        packed = pack_shard(logits, self.topk, self.first_token)
        gathered = self.ranks.gather(packed.view(-1, packed.shape[-1]))
        gathered = gathered.view(-1, *packed.shape)
        return merge_shards(gathered[:1] if self.is_whole else gathered)


class CapturedTrees:
    """Head and tree builder as the tail of the draft CUDA graph: the trees lie at a fixed address after a replay."""

    def __init__(self, head: CandidateHead, plan: StepPlan, max_bs: int) -> None:
        self.head = head
        self.plan = plan
        self.trees = DraftTree.empty(max_bs, plan.verify_width, plan.max_depth, head.weight.device)

    def __call__(self, hidden_states: torch.Tensor, input_ids: torch.Tensor) -> None:
        """input_ids: [batch * block_size], the graph's own buffer; slot 0 of a block is the bonus token."""
        found = self.head.candidates(hidden_states)
        bonus_tokens = input_ids.view(-1, self.plan.block_size)[:, 0]
        out = self.trees.first(found.batch_size)
        build_tree(found, bonus_tokens, self.plan.budget, width=self.plan.verify_width, out=out)

    def result(self, batch_size: int) -> DraftTree:
        return self.trees.first(batch_size)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.trees.tensors)


def draft(
    worker: DDTreeWorker,
    batch: ScheduleBatch,
    bonus_tokens: torch.Tensor,
    window: StepWindow,
    host: HostLengths,
) -> DraftTree:
    """Run the draft model over one block per request, and build its trees in `plan.verify_width` slots."""
    forward_batch = _draft_forward_batch(worker, batch, window, host)
    with torch.inference_mode(), worker.draft_scope():
        output = worker.draft_model_runner.forward(forward_batch)
    if output.can_run_graph and worker.captured_trees is not None:
        return worker.captured_trees.result(forward_batch.batch_size)
    candidates = worker.candidate_head.candidates(output.logits_output.hidden_states)
    return worker.build_tree(candidates, bonus_tokens)


def _draft_forward_batch(
    worker: DDTreeWorker,
    batch: ScheduleBatch,
    window: StepWindow,
    host: HostLengths,
) -> ForwardBatch:
    batch_size, block_size = window.block_ids.shape
    forward_batch = ForwardBatch(
        forward_mode=ForwardMode.TARGET_VERIFY,
        batch_size=batch_size,
        input_ids=window.block_ids.view(-1),
        req_pool_indices=batch.req_pool_indices,
        seq_lens=window.prefix_lens,
        out_cache_loc=window.block_slots,
        seq_lens_sum=host.total,
        seq_lens_cpu=host.lens,
        positions=window.positions.view(-1),
        input_embeds=worker.embed_block(window.block_ids),
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
        write_virtual=window.block_slots,
        read_extent=block_size,
    )
    plan.bind(forward_batch, translator)
    return forward_batch


def target_lm_head(target_model: torch.nn.Module) -> torch.nn.Module | None:
    return unwrap_lora_layer(getattr(target_model, "lm_head", None))

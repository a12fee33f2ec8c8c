"""The worker that the scheduler drives: DFLASH's prefill, and a decode step that verifies a tree."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.lora.layers import unwrap_lora_layer
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.runtime_context import get_exec, get_observability, get_spec
from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
from sglang.srt.speculative.draft_worker_common import make_draft_input_v2
from sglang.srt.speculative.spec_tp_sync import SpecTpSyncSite
from sglang.srt.speculative.spec_utils import draft_tp_context

from ..host import startup
from ..host.recurrent import recurrent_family
from ..tree.build import build_tree
from ..tree.window import open_window
from .accept import accept
from .commit import commit_draft_kv, commit_target_kv
from .draft import CandidateHead, CapturedTrees, draft, target_lm_head
from .lengths import host_lengths
from .phases import EVERY, PhaseClock, marks_of
from .prewarm import rehearse_sampling, rehearse_steps
from .ranks import Ranks
from .recurrent import commit_recurrent, tree_backend
from .verify import lay_out_for_verify, mask_buffer, verify
from .widths import VerifyWidths

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.managers.tp_worker import TpModelWorker
    from sglang.srt.model_executor.model_runner import SamplingPrewarmResult
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
    from sglang.srt.server_args import ServerArgs
    from sglang.srt.speculative.dflash_info import DFlashVerifyInput

    from ..tree.candidates import DraftCandidates
    from ..tree.tree import DraftTree

logger = logging.getLogger(__name__)


class DDTreeWorker(DFlashWorkerV2):
    """DFLASH's worker with the chain replaced by a tree.

    The base class and the draft runner see the block size as SGLang's one width; the target runner, the
    allocator and the scheduler see the verify width.
    """

    def __init__(
        self, server_args: ServerArgs, gpu_id: int, nccl_port: int, target_worker: TpModelWorker
    ) -> None:
        self.plan = startup.worker_plan(server_args, target_worker.model_runner)
        with get_spec().override(**self.plan.draft_fields()):
            super().__init__(server_args, gpu_id, nccl_port, target_worker)
        self.has_recurrent_layers = recurrent_family(target_worker.model_runner.model_config) is not None
        self.ranks = Ranks.of_target()
        self.candidate_head = CandidateHead.of(
            startup.dense_lm_head(target_lm_head(target_worker.model_runner.model)),
            vocab_size=int(target_worker.model_runner.model_config.vocab_size),
            block_size=self.plan.block_size,
            topk=self.plan.topk,
            ranks=self.ranks,
        )
        self.captured_trees: CapturedTrees | None = None
        self.widths = VerifyWidths(
            self.plan,
            target_worker.model_runner,
            self.draft_model_runner,
            self.ranks,
            records_nodes=self.has_recurrent_layers,
        )
        self.phases = PhaseClock(
            marks_of(torch.device(self.device)), EVERY if get_observability().enable_metrics else 0
        )
        self.mask_reads_prefix = bool(get_exec().deterministic.enable_deterministic_inference)
        self.speculative_num_draft_tokens = self.plan.verify_width

    # -- the draft runner's life, in its own width

    def alloc_memory_pool(self, *args: Any, **kwargs: Any) -> None:
        with get_spec().override(**self.plan.draft_fields()):
            super().alloc_memory_pool(*args, **kwargs)

    def init_attention_backends(self) -> None:
        with get_spec().override(**self.plan.draft_fields()):
            super().init_attention_backends()

    def init_cuda_graphs(self) -> None:
        with get_spec().override(**self.plan.draft_fields()):
            super().init_cuda_graphs()
        self.widths.capture()
        rehearse_steps(self)
        startup.log_ready(self)

    def _maybe_build_draft_sampler(self) -> CapturedTrees:
        # Asked for only when the draft is about to be captured.
        max_bs = max(get_exec().graph.cuda_graph_config.decode.bs)
        self.captured_trees = CapturedTrees(self.candidate_head, self.plan, max_bs)
        return self.captured_trees

    def _defer_target_verify_gather(self) -> None:
        """DFLASH may take a verify's capped logits before ranks exchange them; every node's choice needs all."""

    def prewarm_sampling(self) -> SamplingPrewarmResult:
        if torch.device(self.device).type != "cuda":
            return self.model_runner.prewarm_sampling()
        return rehearse_sampling(self)

    # -- what a step needs of the base class, under one name each

    @property
    def mask_token_id(self) -> int:
        return int(self._mask_token_id)

    @property
    def draft_block_spec_info(self) -> DFlashVerifyInput:
        return self._draft_block_spec_info

    @contextmanager
    def draft_scope(self) -> Iterator[None]:
        with draft_tp_context(self.draft_parallel_layout):
            yield

    def embed_block(self, block_ids: torch.Tensor) -> torch.Tensor:
        """int64 [batch, block_size] -> [batch * block_size, hidden], by the target's embedding."""
        embedding = unwrap_lora_layer(self.target_worker.model_runner.model.get_input_embeddings())
        embeds = embedding(block_ids)
        if self._noise_embed_scale != 1.0:
            embeds = embeds * self._noise_embed_scale
        return embeds.view(-1, embeds.shape[-1])

    def write_draft_kv(
        self, hidden_states: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, lens: torch.Tensor
    ) -> None:
        """Context KV of the first `lens` rows per request; slots is int64 [batch, columns]."""
        self._append_target_hidden_to_draft_kv_by_loc(
            target_hidden=hidden_states,
            cache_loc=slots.reshape(-1),
            cache_loc_2d=slots,
            positions=positions,
            commit_lens=lens,
        )

    def agree(self, target_tokens: torch.Tensor, sampling_info: SamplingBatchInfo) -> torch.Tensor:
        """The first rank's choices on every rank, where DFLASH sends its own (``SGLANG_SPEC_TP_SYNC``)."""
        site = (
            SpecTpSyncSite.DFLASH_ACCEPT_GREEDY
            if sampling_info.is_all_greedy
            else SpecTpSyncSite.DFLASH_ACCEPT_SAMPLE
        )
        return self._tp_sync.sync(site, target_tokens)

    # -- the step

    def forward_batch_generation(
        self,
        batch: ScheduleBatch,
        on_publish: Callable[[torch.Tensor], None] | None = None,
        grammar_barrier: Any = None,
        pp_proxy_tensors: Any = None,
    ) -> GenerationBatchResult:
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch or batch.forward_mode.is_idle():
            self.widths.interrupt()
            return super().forward_batch_generation(batch, on_publish, grammar_barrier, pp_proxy_tensors)
        return self._decode(batch, on_publish)

    def _decode(
        self, batch: ScheduleBatch, on_publish: Callable[[torch.Tensor], None] | None
    ) -> GenerationBatchResult:
        draft_input = batch.spec_info
        if not isinstance(draft_input, DFlashDraftInputV2):
            raise RuntimeError(
                f"DDTREE expected DFlashDraftInputV2 on the batch, got {type(draft_input).__name__}"
            )
        if batch.seq_lens.is_cuda:
            # Published by the previous iteration, maybe on another stream.
            batch.seq_lens.record_stream(torch.cuda.current_stream())
        bonus_tokens = draft_input.bonus_tokens.view(-1)
        width = self.widths.choose(len(batch.seq_lens))
        self.phases.begin()
        window = open_window(
            batch.seq_lens,
            batch.req_pool_indices,
            self.model_runner.req_to_token_pool.req_to_token,
            bonus_tokens,
            mask_token_id=self.mask_token_id,
            block_size=self.plan.block_size,
            width=width,
        )
        host = host_lengths(batch, draft_input, window.slots.shape[1])
        self.phases.done("window")

        tree = draft(self, batch, bonus_tokens, window, host)
        self.phases.done("draft")
        with self.widths.running(width) as backend:
            mask = mask_buffer(backend, window, width, host)
            tree, topology = lay_out_for_verify(
                tree, window, width, mask, reads_prefix=self.mask_reads_prefix
            )
            recurrent = tree_backend(self.model_runner)
            if recurrent is not None:
                recurrent.set_tree(tree, topology)
            self.phases.done("layout")
            output = verify(self, batch, tree, topology, window, host, mask)
        self.phases.done("verify")
        logits = output.logits_output.next_token_logits
        accepted, rows = accept(
            tree, topology, window, logits, batch.sampling_info, self.agree, self.widths.tally(width)
        )
        self.phases.done("accept")

        if on_publish is not None:
            on_publish(rows.new_seq_lens)
        commit_target_kv(self, rows)
        if self.has_recurrent_layers:
            commit_recurrent(self, recurrent, batch, accepted, rows, window.prefix_lens)
        commit_draft_kv(self, accepted, rows, output.logits_output.hidden_states)
        self.phases.done("commit")
        self.widths.end()
        # The scheduler copies what it is given to the host; nobody reads these there.
        output.logits_output.hidden_states = None

        return GenerationBatchResult(
            logits_output=output.logits_output,
            next_token_ids=accepted.predict.view(-1),
            accept_lens=accepted.accept_lens,
            can_run_cuda_graph=output.can_run_cuda_graph,
            next_draft_input=make_draft_input_v2(
                bonus_tokens=accepted.bonus_tokens, new_seq_lens=rows.new_seq_lens
            ),
            speculative_num_draft_tokens=width,
            speculative_output_stride=self.plan.output_stride,
            new_seq_lens=rows.new_seq_lens,
        )

    def build_tree(self, candidates: DraftCandidates, bonus_tokens: torch.Tensor) -> DraftTree:
        """The trees of an eager draft; a captured one builds them in its graph."""
        return build_tree(candidates, bonus_tokens, self.plan.budget, width=self.plan.verify_width)

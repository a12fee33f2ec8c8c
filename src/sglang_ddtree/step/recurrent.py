"""GDN layers in a step: the verify from recorded inputs, and the replay of the accepted path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from sglang.srt.layers.attention.hybrid_linear_attn_backend import HybridLinearAttnBackend
from sglang.srt.layers.attention.linear.gdn_backend import GDNAttnBackend
from sglang.srt.runtime_context import get_spec, mamba_track_grid
from sglang.srt.speculative.spec_utils import commit_mamba_states_after_verify

from ..host.recurrent import RecurrentPlan, recurrent_plan
from ..recurrent import TreeRecord, ancestor_taps, commit_path, tree_conv, tree_delta_rule

if TYPE_CHECKING:
    from sglang.srt.layers.radix_linear_attention import RadixLinearAttention
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner

    from ..tree.accept import Acceptance, PathRows
    from ..tree.topology import TreeTopology
    from ..tree.tree import DraftTree
    from .worker import DDTreeWorker


class TreeGDNBackend(GDNAttnBackend):
    """SGLang's GDN backend with a tree verify that stores no state per node.

    The tree's links lie in buffers of fixed address, which captured graphs read.
    """

    def __init__(self, model_runner: ModelRunner) -> None:
        super().__init__(model_runner)
        # Links come from `set_tree`; SGLang's would be copied into its own buffers at every replay.
        self.topk = 1
        self.requests = int(self.req_to_token_pool.size)
        self.width = width = int(get_spec().speculative_num_draft_tokens)
        self.max_depth = int(get_spec().speculative_dflash_block_size) - 1
        self.plan = recurrent_plan(model_runner.server_args, model_runner.model_config)
        device = self.device
        self.record = _record_of(model_runner, self.plan, self.requests).in_rows(width)
        # As the tree of unused slots, which is what warm-ups and captures run on.
        own = torch.arange(width, dtype=torch.int32, device=device).view(1, width, 1)
        past = -torch.arange(self.plan.shape.conv_kernel, dtype=torch.int32, device=device)
        self.taps = torch.where(past == 0, own, past).repeat(self.requests, 1, 1)
        self.ancestors = torch.eye(width, dtype=torch.bool, device=device).repeat(self.requests, 1, 1)

    def set_tree(self, tree: DraftTree, topology: TreeTopology) -> None:
        """The links of the step's trees, before the verify forward."""
        batch = tree.batch_size
        ancestor_taps(tree, self.plan.shape.conv_kernel, out=self.taps[:batch])
        self.ancestors[:batch].copy_(topology.ancestor_mask)

    def forward_extend(
        self,
        layer: RadixLinearAttention,
        forward_batch: ForwardBatch,
        mixed_qkv: Any,
        a: torch.Tensor,
        b: torch.Tensor,
        **kwargs: Any,
    ) -> torch.Tensor:
        if not forward_batch.forward_mode.is_target_verify():
            return super().forward_extend(layer, forward_batch, mixed_qkv, a, b, **kwargs)
        batch = mixed_qkv.shape[0] // self.width
        slots = self.forward_metadata.mamba_cache_indices[:batch]
        pool = self.req_to_token_pool.mamba2_layer_cache(layer.layer_id)
        record = self.record.layer(self.req_to_token_pool.mamba_map[layer.layer_id])
        shape = self.plan.shape
        mixed = tree_conv(
            mixed_qkv,
            layer.conv_weights,
            layer.bias,
            layer.activation,
            pool.conv[0],
            slots,
            self.taps[:batch],
            record,
            shape,
        )
        return tree_delta_rule(
            mixed,
            a,
            b,
            layer.A_log,
            layer.dt_bias,
            pool.temporal,
            slots,
            self.ancestors[:batch],
            self.max_depth,
            record,
            shape,
        )

    def commit(
        self, accepted: Acceptance, track_slots: torch.Tensor | None, track_lens: torch.Tensor | None
    ) -> None:
        """Advance each request's state along its accepted path.

        Args:
            track_slots: int64 [batch], where the state goes at a radix checkpoint boundary on the path.
            track_lens: int32 [batch], accepted nodes up to that boundary; 0 where the path crosses none.
        """
        batch = accepted.accept_lens.shape[0]
        cache = self.req_to_token_pool.mamba_pool.mamba_cache
        commit_path(
            self.record,
            cache.conv[0],
            cache.temporal,
            self.forward_metadata.mamba_cache_indices[:batch],
            accepted.accept_index,
            accepted.accept_lens,
            self.plan.shape,
            track_slots,
            track_lens,
        )


_records: WeakKeyDictionary[Any, TreeRecord] = WeakKeyDictionary()


def _record_of(runner: ModelRunner, plan: RecurrentPlan, requests: int) -> TreeRecord:
    """The target's one record: a step's is used up when the step ends, so that all widths take the same memory."""
    if runner not in _records:
        _records[runner] = TreeRecord.allocate(
            plan.shape,
            plan.layers,
            plan.nodes(requests),
            1,
            plan.activation_dtype,
            plan.conv_dtype,
            runner.device,
        )
    return _records[runner]


def with_tree_verify(backend: HybridLinearAttnBackend, runner: ModelRunner) -> HybridLinearAttnBackend:
    """The same hybrid backend with its GDN side replaced.

    Raises:
        RuntimeError: SGLang chose another linear backend than its GDN one.
    """
    found = type(backend.linear_attn_backend)
    if found is not GDNAttnBackend:
        raise RuntimeError(f"DDTREE replaces SGLang's GDNAttnBackend, this server runs {found.__name__}")
    return type(backend)(backend.full_attn_backend, TreeGDNBackend(runner), backend.full_attn_layers)


def tree_backend(runner: ModelRunner) -> TreeGDNBackend | None:
    """The target's tree-capable GDN backend; None where the target has no GDN layers."""
    linear = getattr(runner.attn_backend, "linear_attn_backend", None)
    return linear if isinstance(linear, TreeGDNBackend) else None


def commit_recurrent(
    worker: DDTreeWorker,
    backend: TreeGDNBackend | None,
    batch: ScheduleBatch,
    accepted: Acceptance,
    rows: PathRows,
    prefix_lens: torch.Tensor,
) -> None:
    """Leave every request the recurrent state of its last accepted node; `backend` is the one that verified."""
    if backend is None:
        _commit_states(worker, batch, accepted)
        return
    track_slots = batch.mamba_track_indices
    track_lens = None
    if track_slots is not None:
        grid = mamba_track_grid(batch.tree_cache.page_size)
        boundary = rows.new_seq_lens // grid * grid
        track_lens = (boundary - prefix_lens).clamp(min=0).to(torch.int32)
    backend.commit(accepted, track_slots, track_lens)


def _commit_states(worker: DDTreeWorker, batch: ScheduleBatch, accepted: Acceptance) -> None:
    # Families served at the user's risk keep SGLang's states per node; without recurrent layers it does nothing.
    path = accepted.accept_index.to(torch.int64)
    width = worker.plan.verify_width
    rows = torch.arange(path.shape[0], device=path.device).unsqueeze(1) * width
    commit_mamba_states_after_verify(
        worker.target_worker,
        batch,
        accepted.accept_lens,
        torch.where(path >= 0, path + rows, -1),
        width,
    )

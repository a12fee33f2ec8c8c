"""The target's choice at every node, and the path that follows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from ..tree.accept import Acceptance, PathRows, WidthTally, settle_path
from ..tree.sample import sample_target

if TYPE_CHECKING:
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

    from ..tree.topology import TreeTopology
    from ..tree.tree import DraftTree
    from ..tree.window import StepWindow


def accept(
    tree: DraftTree,
    topology: TreeTopology,
    window: StepWindow,
    logits: torch.Tensor,
    sampling_info: SamplingBatchInfo,
    agree: Callable[[torch.Tensor, SamplingBatchInfo], torch.Tensor],
    tally: WidthTally | None = None,
) -> tuple[Acceptance, PathRows]:
    """logits: [batch * W, vocabulary]. Every emitted token is the target's own choice in its own context.

    `agree` makes the choices of all ranks one; equal trees and equal choices settle on equal paths.
    """
    target_tokens = agree(target_choice(topology.positions, logits, sampling_info), sampling_info)
    return settle_path(
        tree,
        topology.ancestor_mask,
        target_tokens.view(tree.tokens.shape),
        window.prefix_lens,
        window.slots,
        tally,
    )


def target_choice(
    positions: torch.Tensor, logits: torch.Tensor, sampling_info: SamplingBatchInfo
) -> torch.Tensor:
    """int64 [batch * W]: argmax, or a sample under the request's temperature, top-k, top-p and min-p."""
    return sample_target(
        logits,
        sampling_info.temperatures,
        sampling_info.top_ks,
        sampling_info.top_ps,
        sampling_info.min_ps,
        positions.shape[1],
        greedy=sampling_info.is_all_greedy,
        max_top_k=sampling_info.max_top_k,
        need_top_k=sampling_info.need_top_k_sampling,
        need_top_p=sampling_info.need_top_p_sampling,
        need_min_p=sampling_info.need_min_p_sampling,
        seeds=sampling_info.sampling_seed,
        positions=positions,
    )

"""Keep what the accepted path wrote, in the order of the text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..tree.accept import Acceptance, PathRows

if TYPE_CHECKING:
    from .worker import DDTreeWorker


def commit_target_kv(worker: DDTreeWorker, rows: PathRows) -> None:
    """Move the KV rows of the accepted path to the front of the window, at any page size.

    The path's sources never lie before their targets, and SGLang's move reads a tile's rows before it writes them,
    as it does for EAGLE's trees. Past the path a row is copied onto itself.
    """
    kv_cache = worker.model_runner.token_to_kv_pool_allocator.get_kvcache()
    kv_cache.move_kv_cache(rows.targets.view(-1), rows.sources.view(-1))


def commit_draft_kv(
    worker: DDTreeWorker, accepted: Acceptance, rows: PathRows, hidden_states: torch.Tensor
) -> None:
    """Write the draft's context KV from the target's hidden states at the accepted nodes.

    hidden_states: [batch * W, layers * hidden], shared by all graphs: read in the step that wrote it.
    """
    worker.write_draft_kv(
        hidden_states.index_select(0, rows.rows.view(-1)),
        rows.targets,
        rows.positions.view(-1),
        accepted.accept_lens,
    )

"""Keep what the accepted path wrote, in the order of the text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..tree.accept import Acceptance

if TYPE_CHECKING:
    from .window import StepWindow
    from .worker import DDTreeWorker


def commit_target_kv(worker: DDTreeWorker, accepted: Acceptance, window: StepWindow) -> None:
    """Move the KV rows of the accepted path to the front of the window, at any page size.

    The path's sources never lie before their targets, and SGLang's move reads a tile's rows before it writes them,
    as it does for EAGLE's trees.
    """
    path = accepted.accept_index.to(torch.int64)
    on_path = path >= 0
    sources = window.slots.gather(1, path.clamp(min=0))
    # Columns past the path copy the padding slot 0 onto itself.
    sources = torch.where(on_path, sources, 0)
    targets = torch.where(on_path, window.slots[:, : path.shape[1]], 0)
    kv_cache = worker.model_runner.token_to_kv_pool_allocator.get_kvcache()
    kv_cache.move_kv_cache(targets.reshape(-1), sources.reshape(-1))


def commit_draft_kv(
    worker: DDTreeWorker, accepted: Acceptance, window: StepWindow, hidden_states: torch.Tensor, width: int
) -> None:
    """Write the draft's context KV from the target's hidden states at the accepted nodes.

    hidden_states: [batch * width, layers * hidden], shared by all graphs: read in the step that wrote it.
    """
    batch_size, columns = accepted.accept_index.shape
    rows = accepted.accept_index.to(torch.int64).clamp(min=0)
    rows = rows + torch.arange(batch_size, device=rows.device).unsqueeze(1) * width
    positions = window.prefix_lens.unsqueeze(1) + torch.arange(columns, device=rows.device)
    slots = window.slots[:, :columns].contiguous()
    worker.write_draft_kv(
        hidden_states.index_select(0, rows.reshape(-1)), slots, positions.reshape(-1), accepted.accept_lens
    )

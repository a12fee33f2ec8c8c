"""The KV slots behind the committed prefix that a step writes, and the host's bounds on lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2


@dataclass(frozen=True)
class StepWindow:
    """The window of one step.

    Attributes:
        prefix_lens: int64 [batch], committed lengths on the device; the host's copy may lag by a step.
        slots: int64 [batch, window], KV slot of every position from the prefix on.
    """

    prefix_lens: torch.Tensor
    slots: torch.Tensor

    def head(self, width: int) -> torch.Tensor:
        """Flat int64 [batch * width]: the first `width` slots of every request."""
        return self.slots[:, :width].reshape(-1)


def open_window(batch: ScheduleBatch, req_to_token: torch.Tensor, width: int) -> StepWindow:
    """Gather the window from the slots that the scheduler reserved; no host round trip."""
    prefix_lens = batch.seq_lens
    columns = prefix_lens.unsqueeze(1) + torch.arange(width, device=prefix_lens.device)
    rows = batch.req_pool_indices.to(torch.int64).unsqueeze(1)
    return StepWindow(prefix_lens, req_to_token[rows, columns].to(torch.int64))


@dataclass(frozen=True)
class HostLengths:
    """An upper bound of prefix + window on the host, for planning only: positions come from the device."""

    lens: torch.Tensor
    total: int


def host_lengths(batch: ScheduleBatch, draft_input: DFlashDraftInputV2, window: int) -> HostLengths:
    if batch.seq_lens_cpu is not None:
        # The committed length, which lags by at most one accepted path, and the window behind it.
        lens = batch.seq_lens_cpu + window
    elif draft_input.nxt_kv_lens_cpu is not None:
        return HostLengths(draft_input.nxt_kv_lens_cpu, int(draft_input.nxt_kv_lens_sum or 0))
    else:
        lens = torch.tensor([req.kv.kv_allocated_len for req in batch.reqs], dtype=torch.int64)
    return HostLengths(lens, int(lens.sum()))

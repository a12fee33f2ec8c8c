"""The host's bounds on lengths, for planning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2


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

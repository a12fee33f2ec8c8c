"""The commit in plain torch: the CPU's path and the Triton kernels' oracle."""

from __future__ import annotations

import torch

from .delta_torch import normalise
from .record import TreeRecord
from .shape import GDNShape


def commit_path_torch(
    record: TreeRecord,
    conv_states: torch.Tensor,
    states: torch.Tensor,
    slots: torch.Tensor,
    path: torch.Tensor,
    lens: torch.Tensor,
    shape: GDNShape,
    track_slots: torch.Tensor | None = None,
    track_lens: torch.Tensor | None = None,
) -> None:
    """Arguments as in `commit.commit_path`."""
    real = (slots >= 0).nonzero().squeeze(1)
    if not real.numel():
        return
    rows, lens = slots[real].long(), lens[real]
    # A path that has ended replays its root again; the result is thrown away.
    nodes = path[real].long().clamp(min=0)
    steps = int(lens.max())
    tracked, track_rows, track_steps = _tracking(real, track_slots, track_lens)

    _commit_windows(record, conv_states, real, rows, nodes, lens, tracked, track_rows, track_steps)

    group = shape.num_v_heads // shape.num_k_heads
    current = states[:, rows].float()
    for step in range(steps):
        at = nodes[:, step]
        key = record.keys[:, real, at].float().unflatten(2, (shape.num_k_heads, shape.head_k_dim))
        key = normalise(key).repeat_interleave(group, dim=2)
        value = record.values[:, real, at].float().unflatten(2, (shape.num_v_heads, shape.head_v_dim))
        after = current * record.log_decay[:, real, at].exp()[..., None, None]
        delta = value - (after @ key.unsqueeze(4)).squeeze(4)
        delta *= record.beta[:, real, at].unsqueeze(3)
        after.addcmul_(delta.unsqueeze(4), key.unsqueeze(3))
        after = after.to(states.dtype).float()
        current = torch.where((step < lens)[None, :, None, None, None], after, current)
        now = (track_steps == step + 1).nonzero().squeeze(1)
        if now.numel():
            states[:, track_rows[now]] = current[:, tracked[now]].to(states.dtype)
    states[:, rows] = current.to(states.dtype)


def _tracking(
    real: torch.Tensor, track_slots: torch.Tensor | None, track_lens: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Which of the real rows are tracked, where to and after how many nodes."""
    if track_slots is None or track_lens is None:
        empty = real[:0]
        return empty, empty, empty
    rows, steps = track_slots[real].long(), track_lens[real].long()
    tracked = ((rows >= 0) & (steps > 0)).nonzero().squeeze(1)
    return tracked, rows[tracked], steps[tracked]


def _commit_windows(
    record: TreeRecord,
    conv_states: torch.Tensor,
    real: torch.Tensor,
    rows: torch.Tensor,
    nodes: torch.Tensor,
    lens: torch.Tensor,
    tracked: torch.Tensor,
    track_rows: torch.Tensor,
    track_steps: torch.Tensor,
) -> None:
    window = conv_states.shape[3]
    # [L, B, window + D + 1, conv_dim]: the last inputs after n nodes are the columns n .. n + window - 1.
    inputs = record.inputs[:, real.unsqueeze(1), nodes]
    history = torch.cat((conv_states[:, rows].transpose(2, 3), inputs.to(conv_states.dtype)), dim=2)
    offsets = torch.arange(window, device=rows.device)
    requests = torch.arange(len(rows), device=rows.device).unsqueeze(1)
    final = history[:, requests, lens.long().unsqueeze(1) + offsets]
    middle = history[:, tracked.unsqueeze(1), track_steps.unsqueeze(1) + offsets]
    conv_states[:, rows] = final.transpose(2, 3)
    conv_states[:, track_rows] = middle.transpose(2, 3)

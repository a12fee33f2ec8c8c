"""Bring the committed recurrent state and convolution window to the end of the accepted path."""

from __future__ import annotations

import torch

from .delta import check_states
from .record import TreeRecord
from .shape import GDNShape


def commit_path(
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
    """Replay the accepted nodes of every layer from the record, in place.

    As token-by-token decoding would leave it: float32 arithmetic, the state rounded to its own dtype after
    every token.

    Args:
        record: the verify's record; request b is its row b.
        conv_states: [L, S, conv_dim, T - 1] with any strides.
        states: [L, S, HV, V, K] float32 or bfloat16, each state contiguous.
        slots: integer [B], the request's row of both; negative for a padded row, which is skipped.
        path: int32 [B, D + 1], accepted slots in depth order, the root first, then -1.
        lens: int32 [B], accepted slots.
        shape: the layers' sizes.
        track_slots: integer [B] or None, a second row for the state after `track_lens` nodes; never a row
            of `slots`, negative for none.
        track_lens: int32 [B] or None, at most `lens`; 0 or less for none.

    Raises:
        ValueError: a shape does not fit, or only one of the track arguments is given.
    """
    layers, batch = record.inputs.shape[0], slots.shape[0]
    window = (shape.conv_dim, shape.conv_kernel - 1)
    if conv_states.shape[0] != layers or conv_states.shape[2:] != window:
        raise ValueError(f"conv_states is {list(conv_states.shape)}, expected [{layers}, S, *{list(window)}]")
    if states.dim() != 5 or states.shape[0] != layers:
        raise ValueError(f"states is {list(states.shape)}, expected [{layers}, S, HV, V, K]")
    check_states(states, shape)
    if path.dim() != 2 or path.shape[0] != batch or lens.shape != (batch,):
        raise ValueError(
            f"path is {list(path.shape)} and lens {list(lens.shape)}, expected [{batch}, D + 1] and [{batch}]"
        )
    if record.inputs.shape[1] < batch:
        raise ValueError(f"the record holds {record.inputs.shape[1]} requests, got {batch}")
    if (track_slots is None) != (track_lens is None):
        raise ValueError("track_slots and track_lens come together, got only one")
    for name, tensor in (("track_slots", track_slots), ("track_lens", track_lens)):
        if tensor is not None and tensor.shape != (batch,):
            raise ValueError(f"{name} is {list(tensor.shape)}, expected {[batch]}")
    if states.is_cuda:
        from .commit_triton import commit_path_triton

        commit_path_triton(record, conv_states, states, slots, path, lens, shape, track_slots, track_lens)
    else:
        from .commit_torch import commit_path_torch

        commit_path_torch(record, conv_states, states, slots, path, lens, shape, track_slots, track_lens)

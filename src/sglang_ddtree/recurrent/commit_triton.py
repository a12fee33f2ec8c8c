"""The commit in Triton: one launch for the states of all layers, one for the convolution windows."""

import torch
import triton
import triton.language as tl

from ..tree.triton_device import require_kernel_device, step_kernel
from .record import TreeRecord
from .shape import GDNShape

_CHANNELS = 512


def commit_path_triton(
    record: TreeRecord,
    conv_states: torch.Tensor,
    states: torch.Tensor,
    slots: torch.Tensor,
    path: torch.Tensor,
    lens: torch.Tensor,
    shape: GDNShape,
    track_slots: torch.Tensor | None = None,
    track_lens: torch.Tensor | None = None,
    config: tuple[int, int] = (8, 1),
) -> None:
    """The twin of `commit_path_torch` for CUDA; arguments as in `commit.commit_path`.

    Args:
        config: (value channels per program, warps) of the states' kernel.
    """
    for name, dim in (("head_k_dim", shape.head_k_dim), ("head_v_dim", shape.head_v_dim)):
        if dim != triton.next_power_of_2(dim):
            raise ValueError(f"{name} is {dim}, the kernel takes powers of two")
    require_kernel_device(_commit_states_kernel, states)
    layers, batch = record.inputs.shape[0], slots.shape[0]
    if not batch:
        return
    path, lens, slots = path.contiguous(), lens.contiguous(), slots.contiguous()
    has_track = track_slots is not None and track_lens is not None
    block_v, num_warps = config
    block_v = min(block_v, shape.head_v_dim)
    requests = (slots, path, lens, track_slots, track_lens)
    # The axis that has no limit for what grows with the load.
    _commit_states_kernel[(layers * batch, shape.num_v_heads, shape.head_v_dim // block_v)](
        record.keys,
        record.values,
        record.log_decay,
        record.beta,
        states,
        *requests,
        *record.keys.stride()[:2],
        *record.values.stride()[:2],
        *record.beta.stride()[:2],
        *states.stride()[:2],
        path.shape[1],
        batch,
        H=shape.num_k_heads,
        HV=shape.num_v_heads,
        K=shape.head_k_dim,
        V=shape.head_v_dim,
        BLOCK_V=block_v,
        HAS_TRACK=has_track,
        num_warps=num_warps,
    )
    _commit_windows_kernel[(layers * batch, triton.cdiv(shape.conv_dim, _CHANNELS))](
        record.inputs,
        conv_states,
        *requests,
        *record.inputs.stride()[:2],
        *conv_states.stride(),
        path.shape[1],
        batch,
        CONV_DIM=shape.conv_dim,
        WINDOW=shape.conv_kernel - 1,
        CHANNELS=_CHANNELS,
        HAS_TRACK=has_track,
        num_warps=4,
    )


@step_kernel(["path_len", "batch"], ("keys_ptr", "values_ptr", "log_decay_ptr", "beta_ptr", "states_ptr"))
def _commit_states_kernel(  # type: ignore[no-untyped-def]
    keys_ptr,
    values_ptr,
    log_decay_ptr,
    beta_ptr,
    states_ptr,
    slots_ptr,
    path_ptr,
    lens_ptr,
    track_slots_ptr,
    track_lens_ptr,
    keys_layer_stride,
    keys_row_stride,
    values_layer_stride,
    values_row_stride,
    gates_layer_stride,
    gates_row_stride,
    states_layer_stride,
    states_slot_stride,
    path_len,
    batch,
    H: tl.constexpr,  # noqa: N803
    HV: tl.constexpr,  # noqa: N803
    K: tl.constexpr,  # noqa: N803
    V: tl.constexpr,  # noqa: N803
    BLOCK_V: tl.constexpr,  # noqa: N803
    HAS_TRACK: tl.constexpr,  # noqa: N803
):
    head = tl.program_id(1)
    layer = (tl.program_id(0) // batch).to(tl.int64)
    request = (tl.program_id(0) % batch).to(tl.int64)
    slot = tl.load(slots_ptr + request).to(tl.int64)
    if slot < 0:
        return
    steps = tl.load(lens_ptr + request)
    track_slot = slot
    track_steps = tl.full((), 0, tl.int32)
    if HAS_TRACK:
        track_slot = tl.load(track_slots_ptr + request).to(tl.int64)
        track_steps = tl.where(track_slot >= 0, tl.load(track_lens_ptr + request).to(tl.int32), 0)

    value_channels = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    key_channels = tl.arange(0, K)
    path_ptr += request * path_len
    keys_ptr += layer * keys_layer_stride + request * keys_row_stride
    keys_ptr += (head // (HV // H)) * K + key_channels
    values_ptr += layer * values_layer_stride + request * values_row_stride + head * V + value_channels
    log_decay_ptr += layer * gates_layer_stride + request * gates_row_stride + head
    beta_ptr += layer * gates_layer_stride + request * gates_row_stride + head
    state_ptrs = states_ptr + layer * states_layer_stride + head * (K * V)
    state_ptrs += value_channels[:, None] * K + key_channels[None, :]

    state = tl.load(state_ptrs + slot * states_slot_stride).to(tl.float32)
    for step in range(steps):
        node = tl.load(path_ptr + step)
        key = tl.load(keys_ptr + node * (H * K)).to(tl.float32)
        value = tl.load(values_ptr + node * (HV * V)).to(tl.float32)
        key *= 1.0 / tl.sqrt(tl.sum(key * key, axis=0) + 1e-6)
        state *= tl.exp(tl.load(log_decay_ptr + node * HV))
        delta = (value - tl.sum(state * key[None, :], axis=1)) * tl.load(beta_ptr + node * HV)
        state += delta[:, None] * key[None, :]
        # Plain decoding stores the state after every token.
        rounded = state.to(states_ptr.dtype.element_ty)
        state = rounded.to(tl.float32)
        if step + 1 == track_steps:
            tl.store(state_ptrs + track_slot * states_slot_stride, rounded)
    tl.store(state_ptrs + slot * states_slot_stride, state.to(states_ptr.dtype.element_ty))


@step_kernel(["path_len", "batch"], ("inputs_ptr", "conv_states_ptr"))
def _commit_windows_kernel(  # type: ignore[no-untyped-def]
    inputs_ptr,
    conv_states_ptr,
    slots_ptr,
    path_ptr,
    lens_ptr,
    track_slots_ptr,
    track_lens_ptr,
    inputs_layer_stride,
    inputs_row_stride,
    states_layer_stride,
    states_slot_stride,
    states_channel_stride,
    states_tap_stride,
    path_len,
    batch,
    CONV_DIM: tl.constexpr,  # noqa: N803
    WINDOW: tl.constexpr,  # noqa: N803
    CHANNELS: tl.constexpr,  # noqa: N803
    HAS_TRACK: tl.constexpr,  # noqa: N803
):
    layer = (tl.program_id(0) // batch).to(tl.int64)
    request = (tl.program_id(0) % batch).to(tl.int64)
    slot = tl.load(slots_ptr + request).to(tl.int64)
    if slot < 0:
        return
    steps = tl.load(lens_ptr + request)
    channels = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channels < CONV_DIM
    path_ptr += request * path_len
    inputs_ptr += layer * inputs_layer_stride + request * inputs_row_stride + channels
    conv_states_ptr += layer * states_layer_stride + channels * states_channel_stride
    window_ptrs = conv_states_ptr + slot * states_slot_stride
    # The tracked window first, while the request's own still holds the old columns.
    if HAS_TRACK:
        track_slot = tl.load(track_slots_ptr + request).to(tl.int64)
        track_steps = tl.load(track_lens_ptr + request).to(tl.int32)
        if (track_slot >= 0) & (track_steps > 0):
            track_ptrs = conv_states_ptr + track_slot * states_slot_stride
            for column in tl.static_range(WINDOW):
                value = _window_column(
                    window_ptrs,
                    inputs_ptr,
                    path_ptr,
                    track_steps + column,
                    states_tap_stride,
                    inside,
                    CONV_DIM,
                    WINDOW,
                )
                tl.store(track_ptrs + column * states_tap_stride, value, mask=inside)
    # In place: a column is read only from the right of where it goes, by all threads before any writes it.
    for column in tl.static_range(WINDOW):
        value = _window_column(
            window_ptrs, inputs_ptr, path_ptr, steps + column, states_tap_stride, inside, CONV_DIM, WINDOW
        )
        tl.debug_barrier()
        tl.store(window_ptrs + column * states_tap_stride, value, mask=inside)


@triton.jit
def _window_column(  # type: ignore[no-untyped-def]
    window_ptrs,
    inputs_ptr,
    path_ptr,
    position,
    tap_stride,
    inside,
    CONV_DIM: tl.constexpr,  # noqa: N803
    WINDOW: tl.constexpr,  # noqa: N803
):
    """Input `position` of the old window followed by the path's inputs."""
    if position < WINDOW:
        value = tl.load(window_ptrs + position * tap_stride, mask=inside, other=0)
    else:
        node = tl.load(path_ptr + (position - WINDOW))
        new = tl.load(inputs_ptr + node * CONV_DIM, mask=inside, other=0)
        value = new.to(window_ptrs.dtype.element_ty)
    return value

"""The tree convolution in Triton, a tile of nodes and channels per program."""

import torch
import triton
import triton.language as tl

from ..tree.triton_device import require_kernel_device
from .record import LayerRecord
from .shape import GDNShape

_CHANNELS = 256
_NODES = 8


def tree_conv_triton(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    conv_states: torch.Tensor,
    slots: torch.Tensor,
    taps: torch.Tensor,
    record: LayerRecord,
    shape: GDNShape,
) -> torch.Tensor:
    """The twin of `tree_conv_torch` for CUDA; arguments as in `conv.tree_conv`."""
    require_kernel_device(_conv_kernel, x)
    batch, width, kernel = taps.shape
    out = torch.empty(batch * width, shape.conv_dim, dtype=x.dtype, device=x.device)
    if batch:
        _conv_kernel[(triton.cdiv(shape.conv_dim, _CHANNELS), triton.cdiv(width, _NODES), batch)](
            x,
            weight,
            bias,
            conv_states,
            slots,
            taps.contiguous(),
            out,
            record.inputs,
            record.keys,
            record.values,
            x.stride(0),
            *weight.stride(),
            *conv_states.stride(),
            record.inputs.stride(0),
            record.keys.stride(0),
            record.values.stride(0),
            width,
            KEY_DIM=shape.key_dim,
            VALUE_DIM=shape.value_dim,
            TAPS=kernel,
            HAS_BIAS=bias is not None,
            SILU=activation is not None,
            NODES=_NODES,
            CHANNELS=_CHANNELS,
            num_warps=4,
        )
    return out


@triton.jit
def _product(left, right):  # type: ignore[no-untyped-def]
    # Exact in float32 for two 16-bit floats, so that one rounding gives their own product.
    product = left.to(tl.float32) * right.to(tl.float32)
    if left.dtype == right.dtype:
        product = product.to(left.dtype).to(tl.float32)
    return product


@triton.jit(do_not_specialize=["width"])
def _conv_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    weight_ptr,
    bias_ptr,
    conv_states_ptr,
    slots_ptr,
    taps_ptr,
    out_ptr,
    inputs_ptr,
    keys_ptr,
    values_ptr,
    x_stride,
    weight_channel_stride,
    weight_tap_stride,
    state_slot_stride,
    state_channel_stride,
    state_tap_stride,
    inputs_stride,
    keys_stride,
    values_stride,
    width,
    KEY_DIM: tl.constexpr,  # noqa: N803
    VALUE_DIM: tl.constexpr,  # noqa: N803
    TAPS: tl.constexpr,  # noqa: N803
    HAS_BIAS: tl.constexpr,  # noqa: N803
    SILU: tl.constexpr,  # noqa: N803
    NODES: tl.constexpr,  # noqa: N803
    CHANNELS: tl.constexpr,  # noqa: N803
):
    conv_dim: tl.constexpr = 2 * KEY_DIM + VALUE_DIM
    request = tl.program_id(2).to(tl.int64)
    nodes = tl.program_id(1) * NODES + tl.arange(0, NODES)
    channels = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    node_ok = nodes < width
    channel_ok = channels < conv_dim
    inside = node_ok[:, None] & channel_ok[None, :]
    rows = request * width + nodes
    out_ptrs = out_ptr + rows[:, None] * conv_dim + channels[None, :]

    slot = tl.load(slots_ptr + request).to(tl.int64)
    if slot < 0:
        tl.store(out_ptrs, tl.zeros([NODES, CHANNELS], out_ptr.dtype.element_ty), mask=inside)
        return

    x_ptr += request * width * x_stride
    conv_states_ptr += slot * state_slot_stride
    taps_ptr += rows * TAPS
    weight_ptr += channels * weight_channel_stride
    acc = tl.zeros([NODES, CHANNELS], tl.float32)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + channels, mask=channel_ok, other=0).to(tl.float32)[None, :]
    # As SGLang's decode kernel does: oldest first, each product in the operands' own dtype, summed in float32.
    for column in tl.static_range(TAPS - 1):
        tap = tl.load(taps_ptr + (TAPS - 1 - column), mask=node_ok, other=0).to(tl.int64)
        is_node = (tap >= 0)[:, None]
        node_input = tl.load(
            x_ptr + tap[:, None] * x_stride + channels[None, :], mask=inside & is_node, other=0
        )
        state_offsets = (
            channels[None, :] * state_channel_stride + (TAPS - 1 + tap)[:, None] * state_tap_stride
        )
        committed = tl.load(conv_states_ptr + state_offsets, mask=inside & (tap < 0)[:, None], other=0)
        value = tl.where(is_node, node_input.to(committed.dtype), committed)
        weight = tl.load(weight_ptr + column * weight_tap_stride, mask=channel_ok, other=0)
        acc += _product(value, weight[None, :])
    own = tl.load(x_ptr + nodes.to(tl.int64)[:, None] * x_stride + channels[None, :], mask=inside, other=0)
    weight = tl.load(weight_ptr + (TAPS - 1) * weight_tap_stride, mask=channel_ok, other=0)
    acc += _product(own, weight[None, :])
    if SILU:
        acc = acc / (1 + tl.exp(-acc))

    result = acc.to(out_ptr.dtype.element_ty)
    tl.store(out_ptrs, result, mask=inside)
    inputs_ptrs = inputs_ptr + request * inputs_stride + nodes[:, None] * conv_dim + channels[None, :]
    tl.store(inputs_ptrs, own.to(inputs_ptr.dtype.element_ty), mask=inside)
    key = channels - KEY_DIM
    keys_ptrs = keys_ptr + request * keys_stride + nodes[:, None] * KEY_DIM + key[None, :]
    tl.store(keys_ptrs, result, mask=inside & ((key >= 0) & (key < KEY_DIM))[None, :])
    value = channels - 2 * KEY_DIM
    values_ptrs = values_ptr + request * values_stride + nodes[:, None] * VALUE_DIM + value[None, :]
    tl.store(values_ptrs, result, mask=inside & (value >= 0)[None, :])

"""The causal convolution along every node's own path."""

from __future__ import annotations

import torch

from .record import LayerRecord
from .shape import GDNShape

ACTIVATIONS = (None, "silu", "swish")


def tree_conv(
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
    """Convolve each node with its ancestors and, past the root, with the committed window.

    Writes the first B rows of the record's `inputs`, `keys` and `values`. The committed window is only read.

    Args:
        x: [B * W, conv_dim], channels contiguous, rows possibly apart.
        weight: [conv_dim, T]; the last column is the own token's.
        bias: [conv_dim] or None.
        activation: "silu", its other name "swish", or None.
        conv_states: [S, conv_dim, T - 1] with any strides; the last column is the newest input.
        slots: integer [B], the request's row of `conv_states`; negative for a padded row.
        taps: int32 [B, W, T] from `taps.ancestor_taps`.
        record: this layer's record.
        shape: this layer's sizes.

    Returns:
        [B * W, conv_dim] in x's dtype: products in their operands' dtype, the sum in float32, so that bf16 has the
        bits of SGLang's decode kernel (`causal_conv1d_update`). An ancestor's input is rounded to the window's
        dtype, as it would have been on its way through the window. A padded row's outputs are 0 and its
        record stays as it was.

    Raises:
        ValueError: a shape does not fit, or the activation is another.
    """
    if taps.dim() != 3 or taps.shape[2] != shape.conv_kernel:
        raise ValueError(f"taps is {list(taps.shape)}, expected [B, W, {shape.conv_kernel}]")
    batch, width, kernel = taps.shape
    if x.shape != (batch * width, shape.conv_dim) or x.stride(1) != 1:
        raise ValueError(
            f"x is {list(x.shape)} with strides {x.stride()}, expected {[batch * width, shape.conv_dim]} "
            "with contiguous channels"
        )
    if weight.shape != (shape.conv_dim, kernel):
        raise ValueError(f"weight is {list(weight.shape)}, expected {[shape.conv_dim, kernel]}")
    if bias is not None and bias.shape != (shape.conv_dim,):
        raise ValueError(f"bias is {list(bias.shape)}, expected {[shape.conv_dim]}")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}, allowed {ACTIVATIONS}")
    if conv_states.shape[1:] != (shape.conv_dim, kernel - 1):
        raise ValueError(
            f"conv_states is {list(conv_states.shape)}, expected [S, {shape.conv_dim}, {kernel - 1}]"
        )
    if slots.shape != (batch,):
        raise ValueError(f"slots is {list(slots.shape)}, expected {[batch]}")
    rows, record_width = record.inputs.shape[:2]
    if rows < batch or record_width < width:
        raise ValueError(f"the record holds {rows} requests of {record_width} slots, got {batch} of {width}")
    if x.is_cuda:
        from .conv_triton import tree_conv_triton

        return tree_conv_triton(x, weight, bias, activation, conv_states, slots, taps, record, shape)
    from .conv_torch import tree_conv_torch

    return tree_conv_torch(x, weight, bias, activation, conv_states, slots, taps, record, shape)

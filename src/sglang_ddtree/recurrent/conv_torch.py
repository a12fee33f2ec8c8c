"""The tree convolution in plain torch: the CPU's path and the Triton kernel's oracle."""

from __future__ import annotations

import torch

from .record import LayerRecord
from .shape import GDNShape


def tree_conv_torch(
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
    """Arguments as in `conv.tree_conv`."""
    batch, width, kernel = taps.shape
    inputs = x.unflatten(0, (batch, width))
    stored = inputs.to(conv_states.dtype)
    window = conv_states[slots.long().clamp(min=0)].transpose(1, 2)
    # Committed inputs lie before the nodes, so that a negative tap indexes them too.
    history = torch.cat((window, stored), dim=1)
    requests = torch.arange(batch, device=x.device).unsqueeze(1)
    columns = weight.unbind(1)
    acc = x.new_zeros(batch, width, shape.conv_dim, dtype=torch.float32)
    if bias is not None:
        acc += bias.float()
    # Each product in its operands' own dtype, as SGLang's decode kernel has it.
    for tap in range(kernel - 1, 0, -1):
        acc += history[requests, taps[:, :, tap].long() + (kernel - 1)] * columns[kernel - 1 - tap]
    acc += inputs * columns[-1]
    if activation is not None:
        acc = torch.nn.functional.silu(acc)

    real = slots >= 0
    out = torch.where(real[:, None, None], acc, 0.0).to(x.dtype)
    _, keys, values = out.split((shape.key_dim, shape.key_dim, shape.value_dim), dim=2)
    for buffer, part in ((record.inputs, stored), (record.keys, keys), (record.values, values)):
        buffer[:batch, :width][real] = part[real].to(buffer.dtype)
    return out.flatten(0, 1)

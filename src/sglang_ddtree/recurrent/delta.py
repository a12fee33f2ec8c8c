"""The gated delta rule over a tree, from the committed state alone."""

from __future__ import annotations

import torch

from .record import LayerRecord
from .shape import GDNShape


def tree_delta_rule(
    mixed: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    states: torch.Tensor,
    slots: torch.Tensor,
    ancestor_mask: torch.Tensor,
    max_depth: int,
    record: LayerRecord,
    shape: GDNShape,
) -> torch.Tensor:
    """Every node's output, as if its path had been decoded token by token.

    Along a path, with q and k normalised and q scaled by K ** -0.5:
    S = exp(g) S; u = beta (v - S k); S = S + u k^T; o = S q, in float32. The committed states are only read.
    Writes the first B rows of the record's `log_decay` and `beta`.

    Args:
        mixed: [B * W, conv_dim], `tree_conv`'s output.
        a: [B * W, HV], heads contiguous, rows possibly apart.
        b: as `a`.
        a_log: [HV], float.
        dt_bias: [HV], float.
        states: [S, HV, V, K] float32 or bfloat16, each state contiguous.
        slots: integer [B], the request's row of `states`; negative for a padded row.
        ancestor_mask: bool [B, W, W], from `topology.ancestor_mask`.
        max_depth: no node is deeper.
        record: this layer's record.
        shape: this layer's sizes.

    Returns:
        [1, B * W, HV, V] in mixed's dtype. A padded row's outputs are 0 and its record stays as it was. An
        unused slot's outputs are finite and mean nothing.

    Raises:
        ValueError: a shape does not fit; on CUDA also a width or a head size the kernel does not take.
    """
    if ancestor_mask.dim() != 3 or ancestor_mask.shape[1] != ancestor_mask.shape[2]:
        raise ValueError(f"ancestor_mask is {list(ancestor_mask.shape)}, expected [B, W, W]")
    batch, width = ancestor_mask.shape[:2]
    heads = shape.num_v_heads
    if mixed.shape != (batch * width, shape.conv_dim):
        raise ValueError(f"mixed is {list(mixed.shape)}, expected {[batch * width, shape.conv_dim]}")
    for name, tensor, expected in (
        ("a", a, (batch * width, heads)),
        ("b", b, (batch * width, heads)),
        ("a_log", a_log, (heads,)),
        ("dt_bias", dt_bias, (heads,)),
        ("slots", slots, (batch,)),
    ):
        if tensor.shape != expected:
            raise ValueError(f"{name} is {list(tensor.shape)}, expected {list(expected)}")
    check_states(states, shape)
    rows, record_width = record.beta.shape[:2]
    if rows < batch or record_width < width:
        raise ValueError(f"the record holds {rows} requests of {record_width} slots, got {batch} of {width}")
    if mixed.is_cuda:
        from .delta_triton import tree_delta_rule_triton

        return tree_delta_rule_triton(
            mixed, a, b, a_log, dt_bias, states, slots, ancestor_mask, max_depth, record, shape
        )
    from .delta_torch import tree_delta_rule_torch

    return tree_delta_rule_torch(
        mixed, a, b, a_log, dt_bias, states, slots, ancestor_mask, max_depth, record, shape
    )


def check_states(states: torch.Tensor, shape: GDNShape) -> None:
    """Raise ValueError unless the last dimensions are one contiguous [HV, V, K] state."""
    expected = (shape.num_v_heads, shape.head_v_dim, shape.head_k_dim)
    strides = (shape.head_v_dim * shape.head_k_dim, shape.head_k_dim, 1)
    if states.shape[-3:] != expected or states.stride()[-3:] != strides:
        raise ValueError(
            f"states is {list(states.shape)} with strides {states.stride()}, expected contiguous states of "
            f"{list(expected)}"
        )

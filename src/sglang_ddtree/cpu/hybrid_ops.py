"""What surrounds Gated DeltaNet in a hybrid model, in plain torch: projections, gated norms, copies of states.

The signatures are those of SGLang's Triton kernels. Nothing here imports SGLang.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from sglang_ddtree.cpu.kernel_arguments import refuse

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "swish": F.silu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
}


def fused_qkvzba_split_reshape_cat(
    mixed_qkvz: torch.Tensor,
    mixed_ba: torch.Tensor,
    num_heads_qk: int,
    num_heads_v: int,
    head_qk: int,
    head_v: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Take Qwen3-Next's projections apart, which hold q, k, v, z key head by key head.

    Returns:
        qkv ``[tokens, all]``, z ``[tokens, value heads, V]``, b and a ``[tokens, value heads]``.
    """
    tokens, group = mixed_qkvz.shape[0], num_heads_v // num_heads_qk
    sizes = [head_qk, head_qk, group * head_v, group * head_v]
    q, k, v, z = mixed_qkvz.view(tokens, num_heads_qk, -1).split(sizes, dim=2)
    b, a = mixed_ba.view(tokens, num_heads_qk, 2 * group).split(group, dim=2)
    qkv = torch.cat([part.reshape(tokens, -1) for part in (q, k, v)], dim=1)
    return (
        qkv,
        z.reshape(tokens, num_heads_v, head_v),
        b.reshape(tokens, num_heads_v),
        a.reshape(tokens, num_heads_v),
    )


def fused_qkvzba_split_reshape_cat_contiguous(
    mixed_qkvz: torch.Tensor,
    mixed_ba: torch.Tensor,
    num_heads_qk: int,
    num_heads_v: int,
    head_qk: int,
    head_v: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same for Qwen3.5, whose projections hold all of q, then all of k, v and z."""
    tokens, value_size = mixed_qkvz.shape[0], num_heads_v * head_v
    qkv, z = mixed_qkvz.split([2 * num_heads_qk * head_qk + value_size, value_size], dim=1)
    b, a = mixed_ba.split(num_heads_v, dim=1)
    z = z.contiguous().view(tokens, num_heads_v, head_v)
    return qkv.contiguous(), z, b.contiguous(), a.contiguous()


def layer_norm_fwd(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    z: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    group_size: int | None = None,
    norm_before_gate: bool = True,
    is_rms_norm: bool = False,
    activation: str = "swish",
    quant_heads: int = 0,
) -> tuple[torch.Tensor, None, None]:
    """``rmsnorm(x) * activation(z)``, rows of ``[rows, size]``; SGLang's statistics are not returned."""
    refuse(out=out, group_size=group_size, quant_heads=quant_heads or None)
    if not (norm_before_gate and is_rms_norm):
        raise NotImplementedError("the CPU platform serves norm_before_gate=True and is_rms_norm=True alone")
    return _gated_rms_norm(x, z, weight, bias, eps, activation), None, None


def rms_norm_gated(
    x: torch.Tensor,
    g: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    activation: str = "swish",
    residual: torch.Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    eps: float = 1e-6,
) -> torch.Tensor:
    """``rmsnorm(x) * activation(g)`` in the shape of `x`."""
    refuse(residual=residual, prenorm=prenorm)
    return _gated_rms_norm(x, g.reshape(x.shape), weight, bias, eps, activation)


def _gated_rms_norm(
    x: torch.Tensor,
    gate: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    activation: str,
) -> torch.Tensor:
    result = x.float()
    result = result * (result.square().mean(-1, keepdim=True) + eps).rsqrt()
    if weight is not None:
        result = result * weight.float()
    if bias is not None:
        result = result + bias.float()
    if gate is not None:
        result = result * _ACTIVATIONS[activation](gate.reshape(x.shape).float())
    return result.to(x.dtype)


def fused_sigmoid_mul(
    attn_output: torch.Tensor, gate: torch.Tensor, inplace: bool = False, quant: bool = False
) -> torch.Tensor:
    """``attn_output * sigmoid(gate)``; the gate may have its heads in a dimension of their own."""
    refuse(quant=quant)
    result = (attn_output.float() * gate.reshape(attn_output.shape).float().sigmoid()).to(attn_output.dtype)
    return attn_output.copy_(result) if inplace else result


def fused_gate_sigmoid_mul(
    hidden_states: torch.Tensor, gate_weight: torch.Tensor, shared_output: torch.Tensor
) -> torch.Tensor:
    """The shared expert's output, gated by ``sigmoid(hidden_states @ gate_weight)``."""
    gate = (hidden_states.float() @ gate_weight.float()).sigmoid().unsqueeze(-1)
    return (gate * shared_output.float()).to(shared_output.dtype)


def fused_gate_sigmoid_mul_add(
    hidden_states: torch.Tensor,
    gate_weight: torch.Tensor,
    shared_output: torch.Tensor,
    final_hidden_states: torch.Tensor,
) -> None:
    """Add the gated output of the shared expert to `final_hidden_states`, in place."""
    final_hidden_states += fused_gate_sigmoid_mul(hidden_states, gate_weight, shared_output)


# --- copies between the slots of the state pools, and from the rows that a verification left ---


def track_mamba_states_if_needed(
    conv_states: torch.Tensor,
    ssm_states: torch.Tensor,
    cache_indices: torch.Tensor,
    mamba_track_mask: torch.Tensor,
    mamba_track_indices: torch.Tensor,
    batch_size: int,
    check_freed_slots: bool = False,
) -> None:
    """In one layer's pools ``[slots, ...]``, copy the tracked requests' states to their tracking slots."""
    track_mamba_states_all_layers(
        conv_states[None],
        ssm_states[None],
        cache_indices,
        mamba_track_mask,
        mamba_track_indices,
        batch_size,
        check_freed_slots,
    )


def track_mamba_states_all_layers(
    conv_states_pool: torch.Tensor,
    ssm_states_pool: torch.Tensor,
    cache_indices: torch.Tensor,
    mamba_track_mask: torch.Tensor,
    mamba_track_indices: torch.Tensor,
    batch_size: int,
    check_freed_slots: bool = False,
) -> None:
    """The same in the pools ``[layers, slots, ...]`` of all layers."""
    tracked = mamba_track_mask[:batch_size].bool()
    source = cache_indices[:batch_size][tracked].long()
    target = mamba_track_indices[:batch_size][tracked].long()
    if check_freed_slots:
        present = (source >= 0) & (target >= 0)
        source, target = source[present], target[present]
    for pool in (conv_states_pool, ssm_states_pool):
        pool[:, target] = pool[:, source]


def scatter_states(
    dst: torch.Tensor,
    src: torch.Tensor,
    dst_indices_raw: torch.Tensor,
    step_indices_raw: torch.Tensor,
    src_indices_raw: torch.Tensor | None = None,
) -> None:
    """``dst[:, slot] = src[:, row, step]`` for every request whose step and slot are not negative.

    Serves SSM states and conv windows, also where the windows of `src` overlap in memory.

    Args:
        dst: ``[layers, slots, ...]``.
        src: ``[layers, rows, steps, ...]``, what the verification left behind every token.
        dst_indices_raw: the requests' slots; step_indices_raw: their last accepted tokens;
            src_indices_raw: their rows, ``0, 1, ...`` when None.
    """
    steps = step_indices_raw.long()
    rows = torch.arange(len(steps)) if src_indices_raw is None else src_indices_raw.long()
    slots = dst_indices_raw.long()
    valid = (steps >= 0) & (slots >= 0)
    dst[:, slots[valid]] = src[:, rows[valid], steps[valid]].to(dst.dtype)


def fused_conv_window_scatter_multi(
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]],
    dst_indices_raw: torch.Tensor,
    step_indices_raw: torch.Tensor,
    dst_indices2_raw: torch.Tensor | None = None,
    step_indices2_raw: torch.Tensor | None = None,
) -> None:
    """`scatter_states` over several (dst, src) pairs and up to two sets of requests."""
    for dst, src in pairs:
        scatter_states(dst, src, dst_indices_raw, step_indices_raw)
        if dst_indices2_raw is not None and step_indices2_raw is not None:
            scatter_states(dst, src, dst_indices2_raw, step_indices2_raw)

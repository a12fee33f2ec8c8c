"""The tree delta rule in plain torch: the CPU's path and the Triton kernel's oracle.

It keeps a state per node of two neighbouring depths and shares no algebra with the kernel.
"""

from __future__ import annotations

import torch

from .record import LayerRecord
from .shape import GDNShape

NORM_EPS = 1e-6


def tree_delta_rule_torch(
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
    """Arguments as in `delta.tree_delta_rule`."""
    batch, width = ancestor_mask.shape[:2]
    group = shape.num_v_heads // shape.num_k_heads
    parts = mixed.float().split((shape.key_dim, shape.key_dim, shape.value_dim), dim=1)
    query = normalise(parts[0].unflatten(1, (shape.num_k_heads, shape.head_k_dim))) * shape.head_k_dim**-0.5
    key = normalise(parts[1].unflatten(1, (shape.num_k_heads, shape.head_k_dim)))
    value = parts[2].unflatten(1, (shape.num_v_heads, shape.head_v_dim))
    log_decay = -a_log.float().exp() * torch.nn.functional.softplus(a.float() + dt_bias.float())
    beta = torch.sigmoid(b.float())

    real = slots >= 0
    for buffer, part in ((record.log_decay, log_decay), (record.beta, beta)):
        buffer[:batch, :width][real] = part.unflatten(0, (batch, width))[real]

    # A node's parent is its last ancestor, since parents come before children.
    own = torch.arange(width, device=mixed.device)
    depths = ancestor_mask.sum(dim=2).flatten() - 1
    parents = torch.where(ancestor_mask & (own < own[:, None]), own, -1).amax(dim=2)
    parents = (parents + width * torch.arange(batch, device=mixed.device)[:, None]).flatten()

    out = torch.zeros(batch * width, shape.num_v_heads, shape.head_v_dim, device=mixed.device)
    place = torch.zeros(batch * width, dtype=torch.int64, device=mixed.device)
    level_states = states[slots.long().clamp(min=0)].float()
    for depth in range(max_depth + 1):
        nodes = (depths == depth).nonzero().squeeze(1)
        if not nodes.numel():
            break
        # At depth 0, roots and unused slots, the level before is the committed states, one per request.
        before = nodes // width if depth == 0 else place[parents[nodes]]
        node_key = key[nodes].repeat_interleave(group, dim=1)
        node_query = query[nodes].repeat_interleave(group, dim=1)
        level_states = level_states[before].mul_(log_decay[nodes].exp()[:, :, None, None])
        delta = value[nodes] - (level_states @ node_key.unsqueeze(3)).squeeze(3)
        delta *= beta[nodes].unsqueeze(2)
        level_states.addcmul_(delta.unsqueeze(3), node_key.unsqueeze(2))
        out[nodes] = (level_states @ node_query.unsqueeze(3)).squeeze(3)
        place[nodes] = torch.arange(nodes.numel(), device=mixed.device)
    out = torch.where(real.repeat_interleave(width)[:, None, None], out, 0.0)
    return out.to(mixed.dtype).unsqueeze(0)


def normalise(x: torch.Tensor) -> torch.Tensor:
    """x / sqrt(sum(x^2) + 1e-6) over the last dimension."""
    return x / torch.sqrt(x.square().sum(dim=-1, keepdim=True) + NORM_EPS)

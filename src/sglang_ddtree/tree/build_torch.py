"""Batched torch builder: the CPU path, and the meaning of the Triton one."""

from __future__ import annotations

from functools import lru_cache

import torch

from .candidates import NEG_INF, DraftCandidates
from .capacity import tree_capacity
from .tree import DraftTree


def build_torch(candidates: DraftCandidates, root_tokens: torch.Tensor, budget: int, width: int) -> DraftTree:
    """The best `budget` prefixes as a tree; arguments as in `build.build_tree`.

    Depth by depth the best `budget` prefixes survive, then the best of all depths are taken. Both sorts are
    stable, so equal scores keep the order depth, parent, rank: a child whose log-probability is exactly 0
    stays behind its parent, and the result is prefix-closed.
    """
    batch, depths, topk = candidates.logprobs.shape
    device = candidates.logprobs.device
    nodes = min(budget, tree_capacity(depths, topk))

    # The pool holds every surviving prefix, depth after depth; parents are pool positions, -1 the root.
    beam = candidates.logprobs.new_zeros(batch, 1)
    beam_start = -1
    scores, tokens, parents, levels = [], [], [], []
    pool_size = 0
    for depth in range(depths):
        prefix, rank = _contenders(beam.shape[1], topk, nodes, device)
        children = beam[:, prefix] + candidates.logprobs[:, depth, rank]
        ranked, order = torch.sort(children, dim=1, descending=True, stable=True)
        beam, order = ranked[:, :nodes], order[:, :nodes]
        scores.append(beam)
        tokens.append(candidates.token_ids[:, depth].gather(1, rank[order]))
        parents.append(prefix[order] + beam_start)
        levels.append(torch.full((beam.shape[1],), depth + 1, dtype=torch.int64, device=device))
        beam_start = pool_size
        pool_size += beam.shape[1]

    ranked, order = torch.sort(torch.cat(scores, dim=1), dim=1, descending=True, stable=True)
    live, order = ranked[:, :nodes] > NEG_INF, order[:, :nodes]
    # slot_of[pool position + 1] is the slot of that prefix; entry 0 is the root's.
    slot_of = torch.zeros(batch, pool_size + 1, dtype=torch.int64, device=device)
    slot_of.scatter_(1, order + 1, torch.arange(1, nodes + 1, device=device).expand(batch, nodes))
    parent_slots = slot_of.gather(1, torch.cat(parents, dim=1).gather(1, order) + 1)

    def slots(root: torch.Tensor | int, values: torch.Tensor, unused: int) -> torch.Tensor:
        out = torch.full((batch, width), unused, dtype=torch.int64, device=device)
        out[:, 0] = root
        out[:, 1 : nodes + 1] = torch.where(live, values, unused)
        return out

    return DraftTree(
        tokens=slots(root_tokens, torch.cat(tokens, dim=1).gather(1, order), 0),
        parents=slots(-1, parent_slots, -1),
        depths=slots(0, torch.cat(levels)[order], 0),
        node_count=(live.sum(dim=1) + 1).to(torch.int32),
        max_depth=min(depths, nodes),
    )


@lru_cache(maxsize=256)
def _contenders(
    prefixes: int, topk: int, nodes: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """(prefix, rank) of the children that can be among the best `nodes` of their depth, int64 each.

    Prefixes and ranks are both in order, so child (i, k) comes after all (i', k') with i' <= i and k' <= k:
    beyond (i + 1) * (k + 1) = nodes it has no chance, and few pairs are left to sort.
    """
    pairs = [(i, k) for i in range(prefixes) for k in range(min(topk, nodes // (i + 1)))]
    prefix, rank = torch.tensor(pairs, dtype=torch.int64, device=device).unbind(1)
    return prefix.contiguous(), rank.contiguous()

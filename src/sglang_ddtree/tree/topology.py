"""From parents to what the verify forward reads: mask, positions and links."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .tree import DraftTree


@dataclass(frozen=True)
class TreeTopology:
    """What attention, recurrent layers and the host's kernels need to know of a tree.

    Attributes:
        positions: int64 [B, W], prefix length + depth.
        ancestor_mask: bool [B, W, W]; see `ancestor_mask`.
        retrieve_index: int64 [B, W]; see `links`.
        retrieve_next_token: int64 [B, W]; see `links`.
        retrieve_next_sibling: int64 [B, W]; see `links`.
    """

    positions: torch.Tensor
    ancestor_mask: torch.Tensor
    retrieve_index: torch.Tensor
    retrieve_next_token: torch.Tensor
    retrieve_next_sibling: torch.Tensor


def lay_out(
    tree: DraftTree,
    prefix_lens: torch.Tensor,
    width: int | None = None,
    flat_mask: torch.Tensor | None = None,
) -> tuple[DraftTree, TreeTopology]:
    """The trees cut to a width, and all that the verify forward reads of them: one Triton kernel on CUDA.

    Nodes are best first, so the first slots of a tree are the tree of a smaller budget.

    Args:
        tree: the batch's trees, in `tree.width` slots.
        prefix_lens: integer [B] on the tree's device, tokens in the KV cache before the root. It must be the
            device's own count: the host's copy is only an upper bound under overlap scheduling.
        width: slots to keep, W; all without it.
        flat_mask: bool, 1-d, laid out as `mask.write_tree_mask` says at width W. Only the cells between tree
            nodes are written: kernels that skip the mask on the prefix never read the others. Writes past the
            end are dropped on CUDA.

    Returns:
        The trees in W slots each (`tree` itself where nothing is cut; `max_depth` stays), and their topology.

    Raises:
        ValueError: `prefix_lens` has another shape, or `width` is out of range.
    """
    width = tree.width if width is None else width
    if prefix_lens.shape != (tree.batch_size,):
        raise ValueError(f"prefix_lens is {list(prefix_lens.shape)}, expected {[tree.batch_size]}")
    if not 1 <= width <= tree.width:
        raise ValueError(f"width must be in 1..{tree.width}, got {width}")
    if tree.tokens.is_cuda:
        from .topology_triton import lay_out_triton

        return lay_out_triton(tree, prefix_lens, width, flat_mask)
    return lay_out_torch(tree, prefix_lens, width, flat_mask)


def lay_out_torch(
    tree: DraftTree, prefix_lens: torch.Tensor, width: int, flat_mask: torch.Tensor | None = None
) -> tuple[DraftTree, TreeTopology]:
    """The plain twin of the Triton kernel; arguments as in `lay_out`. Reads the lengths on the host."""
    cut = cut_tree(tree, width)
    topology = TreeTopology(positions(cut, prefix_lens), ancestor_mask(cut), *links(cut))
    if flat_mask is not None:
        start = 0
        for request, length in enumerate(prefix_lens.tolist()):
            rows = flat_mask[start : start + width * (length + width)].view(width, length + width)
            rows[:, length:] = topology.ancestor_mask[request]
            start += rows.numel()
    return cut, topology


def cut_tree(tree: DraftTree, width: int) -> DraftTree:
    """The first `width` slots of every tree, contiguous."""
    if width == tree.width:
        return tree
    return DraftTree(
        tokens=tree.tokens[:, :width].contiguous(),
        parents=tree.parents[:, :width].contiguous(),
        depths=tree.depths[:, :width].contiguous(),
        node_count=tree.node_count.clamp(max=width),
        max_depth=tree.max_depth,
    )


def positions(tree: DraftTree, prefix_lens: torch.Tensor) -> torch.Tensor:
    """int64 [B, W]: prefix length + depth. An unused slot has the root's position."""
    return prefix_lens.to(torch.int64).unsqueeze(1) + tree.depths


def ancestor_mask(tree: DraftTree) -> torch.Tensor:
    """bool [B, W, W]: row i is true at i and at i's ancestors, the root included.

    An unused slot sees only itself, and nobody sees it.
    """
    batch, width = tree.tokens.shape
    own = torch.arange(width, device=tree.tokens.device).expand(batch, width)
    # The root and unused slots are their own parents, so a walk that ends early stays where it is.
    up = torch.where(tree.parents < 0, own, tree.parents)
    mask = torch.zeros(batch, width, width, dtype=torch.bool, device=tree.tokens.device)
    walk = own
    for _ in range(tree.max_depth + 1):
        mask.scatter_(2, walk.unsqueeze(2), True)
        walk = up.gather(1, walk)
    return mask


def links(tree: DraftTree) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(retrieve_index, retrieve_next_token, retrieve_next_sibling), int64 [B, W] each.

    EAGLE's names as SGLang's verify and GDN kernels read them: the flat row b * W + i, the first child in
    best-first order, the next child of the same parent; -1 where there is none. The last two are slots of
    the own request. Unused slots have no links and nobody links to them.
    """
    batch, width = tree.tokens.shape
    slots = torch.arange(batch * width, device=tree.tokens.device).view(batch, width)
    # A stable sort by parent lays siblings side by side, best first.
    parents, order = torch.sort(tree.parents, dim=1, stable=True)
    previous = torch.nn.functional.pad(parents[:, :-1], (1, 0), value=-1)
    related = (parents[:, 1:] == parents[:, :-1]) & (parents[:, 1:] >= 0)
    next_sibling = torch.full_like(order, -1)
    next_sibling.scatter_(1, order[:, :-1], torch.where(related, order[:, 1:], -1))
    # Who is nobody's first child goes to a column that is cut off.
    next_token = torch.full((batch, width + 1), -1, dtype=torch.int64, device=order.device)
    next_token.scatter_(1, torch.where(parents != previous, parents, width), order)
    return slots, next_token[:, :width].contiguous(), next_sibling

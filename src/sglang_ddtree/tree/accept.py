"""Walk the tree along the target's choices."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .tree import DraftTree


@dataclass(frozen=True)
class Acceptance:
    """The accepted path of every request, D being the tree's `max_depth`.

    Attributes:
        accept_index: int32 [B, D + 1], slots of the accepted path in depth order, the root (0) first, then
            -1. int32 as SGLang's accept_index; the slots need not ascend by one.
        accept_lens: int32 [B], accepted slots including the root: 1 to D + 1. It is also the number of
            tokens the step emits, since every accepted slot brings the target's choice after it.
        predict: int64 [B, D + 1], the emitted tokens, then 0.
        bonus_tokens: int64 [B], the last emitted token: the next step's root.
        last_node: int64 [B], the last accepted slot, whose recurrent state goes on.
    """

    accept_index: torch.Tensor
    accept_lens: torch.Tensor
    predict: torch.Tensor
    bonus_tokens: torch.Tensor
    last_node: torch.Tensor


def accept_path(tree: DraftTree, ancestor_mask: torch.Tensor, target_tokens: torch.Tensor) -> Acceptance:
    """Accept a node iff it is the target's choice after its parent and the parent is accepted.

    Exact at any temperature: each emitted token is a target sample in its own context (arXiv 2604.12989).

    Args:
        tree: the batch's trees.
        ancestor_mask: bool [B, W, W], from `topology.ancestor_mask`.
        target_tokens: int64 [B, W]; [b, i] is the target's choice after slot i, whatever in unused slots.

    Raises:
        ValueError: a shape does not fit the tree.
    """
    batch, width = tree.tokens.shape
    if target_tokens.shape != (batch, width):
        raise ValueError(f"target_tokens is {list(target_tokens.shape)}, expected {[batch, width]}")
    if ancestor_mask.shape != (batch, width, width):
        raise ValueError(f"ancestor_mask is {list(ancestor_mask.shape)}, expected {[batch, width, width]}")
    if tree.tokens.is_cuda:
        from .accept_triton import accept_path_triton

        return accept_path_triton(tree, target_tokens)
    return accept_path_torch(tree, ancestor_mask, target_tokens)


def accept_path_torch(
    tree: DraftTree, ancestor_mask: torch.Tensor, target_tokens: torch.Tensor
) -> Acceptance:
    """The plain twin of the Triton kernel; arguments as in `accept_path`."""
    batch, width = tree.tokens.shape
    slots = torch.arange(width, device=tree.tokens.device).expand(batch, width)
    chosen = tree.tokens == target_tokens.gather(1, tree.parents.clamp(min=0))
    fits = (chosen & (tree.parents >= 0)) | (slots == 0)
    accepted = ~(ancestor_mask & ~fits.unsqueeze(1)).any(dim=2)

    # At most one slot per depth is accepted: siblings differ. The rest lands in a column that is cut off.
    columns = tree.max_depth + 1
    path = torch.full((batch, columns + 1), -1, dtype=torch.int64, device=tree.tokens.device)
    path.scatter_(1, torch.where(accepted, tree.depths, columns), slots)
    path = path[:, :columns]
    accept_lens = accepted.sum(dim=1)
    predict = torch.where(path >= 0, target_tokens.gather(1, path.clamp(min=0)), 0)
    last = (accept_lens - 1).unsqueeze(1)
    return Acceptance(
        accept_index=path.to(torch.int32),
        accept_lens=accept_lens.to(torch.int32),
        predict=predict,
        bonus_tokens=predict.gather(1, last).squeeze(1),
        last_node=path.gather(1, last).squeeze(1),
    )

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
    """

    accept_index: torch.Tensor
    accept_lens: torch.Tensor
    predict: torch.Tensor
    bonus_tokens: torch.Tensor


@dataclass(frozen=True)
class PathRows:
    """Where the accepted path's rows lie and where they go, D being the tree's `max_depth`.

    Attributes:
        new_seq_lens: int64 [B], committed tokens after the step.
        targets: int64 [B, D + 1], the KV slots right behind the prefix, in the order of the text.
        sources: int64 [B, D + 1], the slot whose KV row belongs into each target: a node's, on the path; past
            it the target itself. A source never lies before its target.
        rows: int64 [B, D + 1], row b * W + slot in the verify forward's output; the root's past the path.
        positions: int64 [B, D + 1], of the targets.
    """

    new_seq_lens: torch.Tensor
    targets: torch.Tensor
    sources: torch.Tensor
    rows: torch.Tensor
    positions: torch.Tensor


@dataclass(frozen=True)
class WidthTally:
    """What other widths would have emitted, summed up on the device.

    The slots of an accepted path ascend, and the first slots of a tree are the tree of a smaller width: so a
    step says what every smaller width would have emitted.

    Attributes:
        widths: int32 [N], ascending.
        totals: int64 [N + 1], tokens that each width would have emitted, then the requests.
    """

    widths: torch.Tensor
    totals: torch.Tensor


def settle_path(
    tree: DraftTree,
    ancestor_mask: torch.Tensor,
    target_tokens: torch.Tensor,
    prefix_lens: torch.Tensor,
    slots: torch.Tensor,
    tally: WidthTally | None = None,
) -> tuple[Acceptance, PathRows]:
    """Accept a node iff it is the target's choice after its parent and the parent is accepted; one kernel on CUDA.

    Exact at any temperature: each emitted token is a target sample in its own context (arXiv 2604.12989).

    Args:
        tree: the batch's trees.
        ancestor_mask: bool [B, W, W], from `topology.ancestor_mask`.
        target_tokens: int64 [B, W]; [b, i] is the target's choice after slot i, whatever in unused slots.
        prefix_lens: integer [B], committed tokens before the step.
        slots: int64 [B, window], KV slot of every position from the prefix on; window >= W and > D.
        tally: added to, where given.

    Raises:
        ValueError: a shape does not fit the tree.
    """
    _check(tree, ancestor_mask, target_tokens)
    batch, window = tree.batch_size, max(tree.width, tree.max_depth + 1)
    if prefix_lens.shape != (batch,):
        raise ValueError(f"prefix_lens is {list(prefix_lens.shape)}, expected {[batch]}")
    if slots.dim() != 2 or slots.shape[0] != batch or slots.shape[1] < window:
        raise ValueError(f"slots is {list(slots.shape)}, expected {[batch, f'{window} or more']}")
    if tree.tokens.is_cuda:
        from .accept_triton import settle_path_triton

        return settle_path_triton(tree, target_tokens, prefix_lens, slots, tally)
    return settle_path_torch(tree, ancestor_mask, target_tokens, prefix_lens, slots, tally)


def _check(tree: DraftTree, ancestor_mask: torch.Tensor, target_tokens: torch.Tensor) -> None:
    batch, width = tree.tokens.shape
    if target_tokens.shape != (batch, width):
        raise ValueError(f"target_tokens is {list(target_tokens.shape)}, expected {[batch, width]}")
    if ancestor_mask.shape != (batch, width, width):
        raise ValueError(f"ancestor_mask is {list(ancestor_mask.shape)}, expected {[batch, width, width]}")


def _accepted(tree: DraftTree, ancestor_mask: torch.Tensor, target_tokens: torch.Tensor) -> Acceptance:
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
    )


def settle_path_torch(
    tree: DraftTree,
    ancestor_mask: torch.Tensor,
    target_tokens: torch.Tensor,
    prefix_lens: torch.Tensor,
    slots: torch.Tensor,
    tally: WidthTally | None = None,
) -> tuple[Acceptance, PathRows]:
    """The plain twin of the Triton kernel; arguments as in `settle_path`."""
    accepted = _accepted(tree, ancestor_mask, target_tokens)
    batch, columns = accepted.accept_index.shape
    path = accepted.accept_index.to(torch.int64)
    nodes = path.clamp(min=0)
    targets = slots[:, :columns].contiguous()
    prefix = prefix_lens.to(torch.int64)
    first_rows = torch.arange(batch, device=path.device).unsqueeze(1) * tree.width
    if tally is not None:
        inside = (path >= 0).unsqueeze(2) & (path.unsqueeze(2) < tally.widths)
        tally.totals[:-1] += inside.sum(dim=(0, 1))
        tally.totals[-1] += batch
    return accepted, PathRows(
        new_seq_lens=prefix + accepted.accept_lens,
        targets=targets,
        sources=torch.where(path >= 0, slots.gather(1, nodes), targets),
        rows=nodes + first_rows,
        positions=prefix.unsqueeze(1) + torch.arange(columns, device=path.device),
    )

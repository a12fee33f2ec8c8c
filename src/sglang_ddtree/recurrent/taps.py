"""Where each node's convolution finds its inputs."""

from __future__ import annotations

import torch

from ..tree.tree import DraftTree


def ancestor_taps(tree: DraftTree, taps: int, out: torch.Tensor | None = None) -> torch.Tensor:
    """The slots of every node's last `taps` inputs along its own path.

    Args:
        tree: the batch's trees.
        taps: inputs per node, the own one included: the convolution's kernel size.
        out: int32 [rows, W, taps], rows >= B: a static buffer whose first B rows are written.

    Returns:
        int32 [B, W, taps]. Entry m of a node is its m-th ancestor's slot, entry 0 itself. Past the root it is
        negative: -1 is the last committed input before the root, -2 the one before. An unused slot has no
        ancestors: itself, then -1, -2.

    Raises:
        ValueError: `taps` is below 1 or `out` does not fit.
    """
    batch, width = tree.parents.shape
    if taps < 1:
        raise ValueError(f"taps is {taps}, expected at least 1")
    if out is None:
        out = torch.empty(batch, width, taps, dtype=torch.int32, device=tree.parents.device)
    elif out.dtype != torch.int32 or out.shape[1:] != (width, taps) or out.shape[0] < batch:
        raise ValueError(
            f"out is {out.dtype} {list(out.shape)}, expected int32 [rows >= {batch}, {width}, {taps}]"
        )
    out = out[:batch]
    if tree.parents.is_cuda:
        from .taps_triton import ancestor_taps_triton

        return ancestor_taps_triton(tree, out)
    return ancestor_taps_torch(tree, out)


def ancestor_taps_torch(tree: DraftTree, out: torch.Tensor) -> torch.Tensor:
    """The plain twin of the Triton kernel: fills `out`, int32 [B, W, taps]."""
    batch, width, taps = out.shape
    walk = torch.arange(width, device=tree.parents.device).expand(batch, width)
    for tap in range(taps):
        out[:, :, tap] = walk
        up = tree.parents.gather(1, walk.clamp(min=0))
        walk = torch.where(walk >= 0, up, walk - 1)
    return out

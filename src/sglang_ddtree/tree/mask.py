"""The flattened attention mask of a batch, as SGLang's triton attention backend reads it."""

from __future__ import annotations

import torch


def flat_mask_numel(batch_size: int, width: int, max_prefix_len: int) -> int:
    """Cells that `write_tree_mask` touches at most: every request has W rows of prefix + W cells."""
    return batch_size * width * (max_prefix_len + width)


def write_tree_mask(
    out: torch.Tensor,
    tree_mask: torch.Tensor,
    prefix_lens: torch.Tensor,
    *,
    max_prefix_len: int | None = None,
) -> None:
    """Write every request's mask into one flat buffer, live cells only.

    Request b owns W rows of prefix_lens[b] + W cells, row-major, right after the cells of request b - 1. In a
    row the prefix is 1, then comes the node's row of `tree_mask`. Cells behind the last request keep what
    they hold: rewriting a buffer sized for the longest context would cost more than the step's attention.

    Args:
        out: bool or uint8, 1-d and contiguous, indexed in cells (bytes).
        tree_mask: bool [B, W, W], from `topology.ancestor_mask`.
        prefix_lens: integer [B] on the same device.
        max_prefix_len: a bound on `prefix_lens` known on the host, to check the buffer without reading the
            device. Without it nothing is checked on CUDA; writes past the end are dropped there.

    Raises:
        ValueError: a wrong dtype or shape, or a buffer that cannot hold the batch.
    """
    batch, width = tree_mask.shape[:2]
    if out.dtype not in (torch.bool, torch.uint8) or out.dim() != 1 or not out.is_contiguous():
        raise ValueError(
            f"out must be a contiguous 1-d bool or uint8 tensor, got {out.dtype} {list(out.shape)}"
        )
    if tree_mask.dtype != torch.bool or tree_mask.shape != (batch, width, width):
        raise ValueError(
            f"tree_mask must be bool [batch, W, W], got {tree_mask.dtype} {list(tree_mask.shape)}"
        )
    if prefix_lens.shape != (batch,):
        raise ValueError(f"prefix_lens is {list(prefix_lens.shape)}, expected {[batch]}")
    if max_prefix_len is not None and flat_mask_numel(batch, width, max_prefix_len) > out.numel():
        raise ValueError(
            f"the mask buffer has {out.numel()} cells; {batch} requests of width {width} with up to "
            f"{max_prefix_len} prefix tokens need {flat_mask_numel(batch, width, max_prefix_len)}"
        )
    if out.is_cuda:
        from .mask_triton import write_tree_mask_triton

        write_tree_mask_triton(out, tree_mask, prefix_lens)
    else:
        write_tree_mask_torch(out, tree_mask, prefix_lens)


def write_tree_mask_torch(out: torch.Tensor, tree_mask: torch.Tensor, prefix_lens: torch.Tensor) -> None:
    """The plain twin of the Triton kernel. Reads the lengths on the host: for the CPU and for tests."""
    width = tree_mask.shape[1]
    lengths: list[int] = prefix_lens.tolist()
    needed = sum(width * (length + width) for length in lengths)
    if needed > out.numel():
        raise ValueError(
            f"the mask buffer has {out.numel()} cells; prefixes {lengths} at width {width} need {needed}"
        )
    start = 0
    for request, length in enumerate(lengths):
        rows = out[start : start + width * (length + width)].view(width, length + width)
        rows[:, :length] = 1
        rows[:, length:] = tree_mask[request]
        start += rows.numel()

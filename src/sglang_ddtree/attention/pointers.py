"""Where each request's queries, context and mask begin in a batch's flat tensors."""

from __future__ import annotations

import torch


def write_pointers(
    context_lens: torch.Tensor, width: int, qo: torch.Tensor, kv: torch.Tensor, mask: torch.Tensor
) -> None:
    """Fill `qo`, `kv` and `mask` for B requests of `width` queries each, from their context lengths.

    Entry i is the sum over the requests before i: of W queries, of the contexts, of the mask's W rows of context + W
    cells. A CUDA graph can record it.

    Args:
        context_lens: integer [B].
        qo: integer [B + 1].
        kv: integer [B + 1].
        mask: integer [B + 1].

    Raises:
        ValueError: lengths that do not fit.
    """
    size = context_lens.shape[0] + 1
    if not size == qo.shape[0] == kv.shape[0] == mask.shape[0]:
        raise ValueError(
            f"{size - 1} requests need {size} entries, got qo {qo.shape[0]}, kv {kv.shape[0]}, mask {mask.shape[0]}"
        )
    if not context_lens.is_cuda:
        write_pointers_torch(context_lens, width, qo, kv, mask)
        return
    from .pointers_triton import write_pointers_triton

    write_pointers_triton(context_lens, width, qo, kv, mask)


def write_pointers_torch(
    context_lens: torch.Tensor, width: int, qo: torch.Tensor, kv: torch.Tensor, mask: torch.Tensor
) -> None:
    """The plain twin of the Triton kernel."""
    before = torch.arange(len(qo), device=qo.device)
    contexts = torch.nn.functional.pad(torch.cumsum(context_lens.long(), dim=0), (1, 0))
    qo.copy_(before * width)
    kv.copy_(contexts)
    mask.copy_(width * (contexts + width * before))

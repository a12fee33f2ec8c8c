"""The DFlash objective: cross-entropy of a block's slots against the text, weighted by their distance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

HEAD_CHUNK = 8192
"""Slots whose logits are in memory at once."""


@dataclass(frozen=True)
class Blocks:
    """A blocks per sequence.

    Attributes:
        anchors: int64 [B, A], positions of the known tokens; 0 where a sequence has fewer anchors than A.
        known: int64 [B, A], the tokens there.
        labels: int64 [B, A, S - 1], the tokens that follow.
        valid: bool [B, A, S - 1], false behind the sequence's end and in blocks that are none.
    """

    anchors: torch.Tensor
    known: torch.Tensor
    labels: torch.Tensor
    valid: torch.Tensor


@dataclass(frozen=True)
class BlockLoss:
    """`loss` is a scalar; `hits` is bool [B, A, S - 1], true where the drafter's best token is the label."""

    loss: torch.Tensor
    hits: torch.Tensor


def choose_blocks(
    tokens: torch.Tensor,
    lengths: torch.Tensor,
    prompt_lengths: torch.Tensor,
    count: int,
    slots: int,
    generator: torch.Generator,
) -> Blocks:
    """Random anchors without repetition, from the answer's first token to its last but one.

    Args:
        tokens: int64 [B, L] on the CPU, padded.
        lengths: int64 [B].
        prompt_lengths: int64 [B].
        count: A, at most L.
        slots: S.
    """
    at = torch.arange(tokens.shape[1])
    allowed = (at >= prompt_lengths[:, None]) & (at <= lengths[:, None] - 2)
    scores = torch.rand(tokens.shape, generator=generator).masked_fill(~allowed, -1.0)
    best, anchors = scores.topk(count, dim=1)
    anchors = torch.where(best >= 0, anchors, 0)
    places = anchors[:, :, None] + torch.arange(1, slots)
    valid = (places < lengths[:, None, None]) & (best >= 0)[:, :, None]
    labels = tokens.gather(1, places.clamp(max=tokens.shape[1] - 1).flatten(1)).view_as(places)
    return Blocks(anchors, tokens.gather(1, anchors), labels, valid)


def block_tokens(blocks: Blocks, slots: int, mask_token: int) -> torch.Tensor:
    """int64 [B, A, S]: the known token, then mask tokens."""
    tokens = torch.full((*blocks.known.shape, slots), mask_token, device=blocks.known.device)
    tokens[..., 0] = blocks.known
    return tokens


def slot_weights(slots: int, decay: float) -> torch.Tensor:
    """float32 [S - 1]: exp(-distance / decay), 1 for the first drafted slot.

    A slot counts only when all before it are right, so the far ones matter less.
    """
    return torch.exp(-torch.arange(slots - 1) / decay)


PartLoss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]


def block_loss(
    hidden: torch.Tensor, head: torch.Tensor, blocks: Blocks, decay: float, part: PartLoss | None = None
) -> BlockLoss:
    """The weighted mean over the valid slots.

    Args:
        hidden: [B, A, S, hidden], from `draft_blocks`.
        head: [vocabulary, hidden], the target's frozen head; the logits have its dtype.
        part: `part_loss`, or what it was compiled to.
    """
    weights = slot_weights(hidden.shape[2], decay).to(hidden.device) * blocks.valid
    weights = weights / weights.sum().clamp(min=1e-9)
    drafted = hidden[:, :, 1:].flatten(0, 2)
    loss, hits = _HeadLoss.apply(drafted, head, blocks.labels.flatten(), weights.flatten(), part or part_loss)
    return BlockLoss(loss, hits.view_as(blocks.valid) & blocks.valid)


def chain_length(hits: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Sum and number, float64 [2], of the tokens that a chain of the best drafts would commit, bonus included.

    Over the blocks that end before their sequence does, from anchors anywhere in the text: near the acceptance
    length of decoding, not equal to it.
    """
    whole = valid.all(dim=2)
    committed = hits.long().cumprod(dim=2).sum(dim=2) + 1
    return torch.stack([(committed * whole).sum(), whole.sum()]).double()


def part_loss(
    logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weighted cross-entropy of some slots, whether each one's best token is its label, and the logits' gradient."""
    values = logits.float()
    hits = values.argmax(dim=1) == labels
    logprobs = values.log_softmax(dim=1)
    loss = -(logprobs.gather(1, labels[:, None])[:, 0] * weights).sum()
    is_label = torch.arange(logits.shape[1], device=logits.device) == labels[:, None]
    slope = (logprobs.exp() - is_label.float()) * weights[:, None]
    return loss, hits, slope.to(logits.dtype)


class _HeadLoss(torch.autograd.Function):
    """Weighted cross-entropy through a frozen head, in chunks, so that the logits never lie in memory as a whole.

    The gradient is known as soon as the logits are: it is made in the forward.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        head: torch.Tensor,
        labels: torch.Tensor,
        weights: torch.Tensor,
        part_loss: PartLoss,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        loss = torch.zeros((), device=hidden.device)
        hits = torch.empty_like(labels, dtype=torch.bool)
        gradient = torch.empty_like(hidden)
        with torch.autocast(hidden.device.type, enabled=False):
            for begin in range(0, len(hidden), HEAD_CHUNK):
                part = slice(begin, begin + HEAD_CHUNK)
                logits = hidden[part].to(head.dtype) @ head.T
                added, hits[part], slope = part_loss(logits, labels[part], weights[part])
                loss += added
                gradient[part] = (slope @ head).to(hidden.dtype)
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(hits)
        return loss, hits

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * outer[0], None, None, None, None

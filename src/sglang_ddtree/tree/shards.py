"""Candidates from a vocabulary that is split among the ranks of a tensor-parallel group."""

from __future__ import annotations

import torch

from .candidates import NEG_INF, DraftCandidates, candidates_with_logsumexp


def pack_shard(logits: torch.Tensor, topk: int, first_token: int) -> torch.Tensor:
    """What the other ranks must know of one rank's part of the vocabulary.

    Args:
        logits: [B, L, columns], any floating dtype; the part may hold fewer than `topk` tokens, or none.
        topk: candidates per depth.
        first_token: token id of the first column.

    Returns:
        int32 [B, L, 2 * topk + 1]: token ids, then the bits of their float32 log-probabilities within the part,
        then those of the part's log-sum-exp.
    """
    missing = topk - logits.shape[2]
    if missing > 0:
        logits = torch.nn.functional.pad(logits, (0, missing), value=NEG_INF)
    found, logsumexp = candidates_with_logsumexp(logits, topk)
    bits = torch.cat((found.logprobs, logsumexp.unsqueeze(-1)), dim=-1).view(torch.int32)
    return torch.cat(((found.token_ids + first_token).to(torch.int32), bits), dim=-1)


def merge_shards(packed: torch.Tensor) -> DraftCandidates:
    """The candidates of the whole vocabulary, from what every rank packed.

    The same bits in give the same candidates out, so that every rank builds the same tree. Equal log-probabilities
    go by rank, lower first.

    Args:
        packed: int32 [ranks, B, L, 2 * topk + 1], `pack_shard`'s by ascending first token.
    """
    ranks, batch, depths, columns = packed.shape
    topk = columns // 2
    rows = packed.permute(1, 2, 0, 3)
    logsumexp = rows[..., 2 * topk :].contiguous().view(torch.float32)
    logprobs = rows[..., topk : 2 * topk].contiguous().view(torch.float32)
    # NaN in any part spreads to the whole row, which then proposes nothing, as in an undivided vocabulary.
    logprobs = logprobs + (logsumexp - torch.logsumexp(logsumexp, dim=2, keepdim=True))
    logprobs = torch.nan_to_num(logprobs, nan=NEG_INF, neginf=NEG_INF).clamp_(max=0.0)
    best, order = logprobs.reshape(batch, depths, ranks * topk).sort(dim=-1, descending=True, stable=True)
    token_ids = rows[..., :topk].reshape(batch, depths, ranks * topk).gather(-1, order[..., :topk])
    return DraftCandidates(token_ids.long(), best[..., :topk].contiguous())

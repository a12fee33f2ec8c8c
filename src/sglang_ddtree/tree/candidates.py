"""What the draft proposes at every depth: the top-k tokens with their log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import torch

NEG_INF = float("-inf")


@dataclass(frozen=True)
class DraftCandidates:
    """Candidates of B requests at L depths, K each, best first within a depth.

    Attributes:
        token_ids: int64 [B, L, K]; distinct within a depth.
        logprobs: float32 [B, L, K]; natural log, at most 0, descending within a depth. -inf marks a
            candidate that must not become a node; NaN does not occur.
    """

    token_ids: torch.Tensor
    logprobs: torch.Tensor

    @property
    def batch_size(self) -> int:
        return self.token_ids.shape[0]

    @property
    def depths(self) -> int:
        return self.token_ids.shape[1]

    @property
    def topk(self) -> int:
        return self.token_ids.shape[2]


def draft_candidates(logits: torch.Tensor, topk: int) -> DraftCandidates:
    """Top-k of the draft's distribution at every depth, normalised over the full vocabulary.

    No temperature is applied, whatever the request asks for: the tree only proposes (arXiv 2604.12989).

    Args:
        logits: [B, L, V], any floating dtype; read only.
        topk: candidates per depth, 1 to V.

    Raises:
        ValueError: `logits` is not a 3-d floating tensor, or `topk` is out of range.
    """
    return candidates_with_logsumexp(logits, topk)[0]


def candidates_with_logsumexp(logits: torch.Tensor, topk: int) -> tuple[DraftCandidates, torch.Tensor]:
    """`draft_candidates`, and what normalises them: float32 [B, L], NaN or -inf for a row without a distribution."""
    if logits.dim() != 3 or not logits.is_floating_point():
        raise ValueError(
            "logits must be a floating tensor [batch, depths, vocabulary], "
            f"got {logits.dtype} {list(logits.shape)}"
        )
    if not 1 <= topk <= logits.shape[-1]:
        raise ValueError(f"topk must be in 1..{logits.shape[-1]} (the vocabulary), got {topk}")
    if logits.is_cuda:
        from .candidates_triton import draft_candidates_triton

        return draft_candidates_triton(logits, topk)
    return draft_candidates_torch(logits, topk)


def draft_candidates_torch(logits: torch.Tensor, topk: int) -> tuple[DraftCandidates, torch.Tensor]:
    """The plain twin of the Triton kernels, as `candidates_with_logsumexp`. Any order of equal logits."""
    values, token_ids = torch.topk(logits, topk, dim=-1, sorted=True)
    logsumexp = torch.logsumexp(logits.float(), dim=-1)
    logprobs = values.float() - logsumexp.unsqueeze(-1)
    # A row with NaN or only -inf has no distribution: it proposes nothing instead of spreading NaN.
    logprobs = torch.nan_to_num(logprobs, nan=NEG_INF, neginf=NEG_INF).clamp_(max=0.0)
    return DraftCandidates(token_ids, logprobs), logsumexp

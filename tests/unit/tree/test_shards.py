"""Candidates of a vocabulary in parts against those of the whole one, in float64."""

from __future__ import annotations

import pytest
import torch

from sglang_ddtree.tree import DraftCandidates, draft_candidates
from sglang_ddtree.tree.shards import merge_shards, pack_shard


def merged(logits: torch.Tensor, sizes: list[int], topk: int) -> DraftCandidates:
    """As ranks with parts of these sizes find them."""
    first, packed = 0, []
    for size in sizes:
        packed.append(pack_shard(logits[..., first : first + size], topk, first))
        first += size
    assert first == logits.shape[-1]
    return merge_shards(torch.stack(packed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("sizes", "topk"),
    [
        ([500, 500], 16),
        ([250, 250, 250, 250], 64),
        ([64] * 15 + [40], 5),
        # Fewer tokens than candidates in a part, and none at all: a padded vocabulary ends early.
        ([990, 10], 16),
        ([996, 4, 0], 16),
        ([1000], 16),
    ],
    ids=str,
)
def test_parts_give_the_candidates_of_the_whole(sizes: list[int], topk: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(len(sizes))
    # A permutation per row: no equal logits, of which either token is right.
    ranks = torch.stack([torch.randperm(1000, generator=generator) for _ in range(12)]).view(3, 4, 1000)
    logits = (ranks.double().add(1).log() * -1.3).to(dtype)
    unique = torch.tensor([len(row.unique()) for row in logits.view(-1, 1000)])
    got = merged(logits, sizes, topk)
    logprobs = torch.log_softmax(logits.double(), dim=-1)
    order = logprobs.sort(dim=-1, descending=True, stable=True)
    assert (got.token_ids.dtype, got.logprobs.dtype) == (torch.int64, torch.float32)
    assert got.logprobs.double() == pytest.approx(order.values[..., :topk], abs=2e-6)
    if dtype == torch.float32:
        assert (unique == 1000).all()
        assert torch.equal(got.token_ids, order.indices[..., :topk])
    else:
        assert torch.equal(logprobs.gather(-1, got.token_ids), order.values[..., :topk])
    for row in got.token_ids.view(-1, topk):
        assert len(row.unique()) == topk
    # Control: one part alone proposes other tokens, or the same ones with other probabilities.
    if len(sizes) > 1:
        alone = draft_candidates(logits[..., : sizes[0]], min(topk, sizes[0])).logprobs
        assert not torch.allclose(alone.double(), order.values[..., : alone.shape[-1]], atol=1e-6)


def test_equal_candidates_go_by_the_smaller_token() -> None:
    logits = torch.zeros(1, 1, 8)
    logits[0, 0, [2, 6]] = 1.0
    got = merged(logits, [4, 4], 2)
    assert got.token_ids[0, 0].tolist() == [2, 6]
    assert got.logprobs[0, 0, 0] == got.logprobs[0, 0, 1]


@pytest.mark.parametrize("part", [0, 1])
def test_a_row_without_a_distribution_proposes_nothing_whichever_part_it_is_in(part: int) -> None:
    logits = torch.randn(1, 3, 20, generator=torch.Generator().manual_seed(0))
    logits[0, 0, 10 * part + 3] = float("nan")
    logits[0, 1] = float("-inf")
    got = merged(logits, [10, 10], 4).logprobs
    assert (got[0, :2] == float("-inf")).all()
    assert torch.isfinite(got[0, 2]).all()


def test_a_masked_part_leaves_the_other_its_distribution() -> None:
    logits = torch.full((1, 1, 12), float("-inf"))
    logits[0, 0, [7, 9]] = 0.0
    got = merged(logits, [6, 6], 4)
    assert got.token_ids[0, 0, :2].tolist() == [7, 9]
    assert got.logprobs[0, 0].exp().tolist() == pytest.approx([0.5, 0.5, 0.0, 0.0])


def test_no_logprob_exceeds_zero() -> None:
    logits = torch.full((1, 1, 10), -1e4)
    logits[0, 0, 7] = 50.0
    assert merged(logits, [5, 5], 5).logprobs[0, 0, 0] == 0.0


def test_large_token_ids_survive_the_packing() -> None:
    # Beyond 2**24 a float32 would round them.
    packed = pack_shard(torch.tensor([[[1.0, 3.0, 2.0]]]), 2, 2**24 + 1)
    assert merge_shards(packed.unsqueeze(0)).token_ids[0, 0].tolist() == [2**24 + 2, 2**24 + 3]

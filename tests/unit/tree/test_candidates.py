import math

import pytest
import torch

from sglang_ddtree.tree import draft_candidates


def test_logprobs_are_normalised_over_the_full_vocabulary() -> None:
    logits = torch.randn(2, 3, 40, generator=torch.Generator().manual_seed(0)) * 3
    got = draft_candidates(logits, 5)
    assert got.token_ids.dtype == torch.int64
    assert got.logprobs.dtype == torch.float32
    for b in range(2):
        for d in range(3):
            row = logits[b, d].double().tolist()
            total = math.fsum(math.exp(x) for x in row)
            best = sorted(range(40), key=lambda token, row=row: -row[token])[:5]
            assert got.token_ids[b, d].tolist() == best
            expected = [row[token] - math.log(total) for token in best]
            assert got.logprobs[b, d].tolist() == pytest.approx(expected, abs=1e-5)
            # Control: normalising over the candidates alone is something else.
            over_topk = math.log(math.fsum(math.exp(row[token]) for token in best))
            assert abs(got.logprobs[b, d, 0].item() - (row[best[0]] - over_topk)) > 1e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_normalised_in_float32(dtype: torch.dtype) -> None:
    logits = (torch.randn(1, 4, 3000, generator=torch.Generator().manual_seed(1)) * 4).to(dtype)
    expected = torch.log_softmax(logits.double(), dim=-1).topk(8, dim=-1).values
    got = draft_candidates(logits, 8).logprobs.double()
    assert torch.allclose(got, expected, atol=1e-5)
    assert not torch.allclose(torch.log_softmax(logits, -1).topk(8, -1).values.double(), expected, atol=1e-5)


def test_logprobs_descend_and_never_exceed_zero() -> None:
    logits = torch.full((1, 1, 10), -1e4)
    logits[0, 0, 7] = 50.0
    got = draft_candidates(logits, 10).logprobs
    assert got[0, 0, 0] == 0.0
    assert (got <= 0).all()
    assert (got[..., 1:] <= got[..., :-1]).all()


def test_a_row_without_a_distribution_proposes_nothing() -> None:
    logits = torch.randn(1, 3, 6)
    logits[0, 0, 2] = float("nan")
    logits[0, 1] = float("-inf")
    got = draft_candidates(logits, 4).logprobs
    assert (got[0, :2] == float("-inf")).all()
    assert torch.isfinite(got[0, 2]).all()


def test_masked_tokens_stay_at_minus_infinity() -> None:
    logits = torch.full((1, 1, 6), float("-inf"))
    logits[0, 0, [1, 4]] = 0.0
    got = draft_candidates(logits, 4).logprobs[0, 0].tolist()
    assert got == pytest.approx([math.log(0.5)] * 2 + [-math.inf] * 2)


def test_the_logits_are_left_alone() -> None:
    logits = torch.randn(1, 2, 9)
    before = logits.clone()
    draft_candidates(logits, 3)
    assert torch.equal(logits, before)


@pytest.mark.parametrize(
    ("logits", "topk", "message"),
    [
        (torch.zeros(2, 9), 3, r"\[batch, depths, vocabulary\], got torch.float32 \[2, 9\]"),
        (torch.zeros(1, 2, 9, dtype=torch.int64), 3, "got torch.int64"),
        (torch.zeros(1, 2, 9), 10, r"topk must be in 1\.\.9 \(the vocabulary\), got 10"),
        (torch.zeros(1, 2, 9), 0, r"topk must be in 1\.\.9"),
    ],
)
def test_bad_input_is_refused_with_what_was_got(logits: torch.Tensor, topk: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draft_candidates(logits, topk)

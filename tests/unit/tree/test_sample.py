from __future__ import annotations

import pytest
import torch

from sglang_ddtree.tree import sample_target
from unit.tree.distributions import (
    COMBINATIONS,
    LOGITS,
    NO_TOP_K,
    VOCAB,
    Request,
    assert_follows,
    distribution,
    p_value,
    parameters_of,
)


def _sample(logits: torch.Tensor, requests: list[Request], width: int, **kwargs: object) -> torch.Tensor:
    flags = {
        "greedy": False,
        "need_top_k": any(r.top_k != NO_TOP_K for r in requests),
        "need_top_p": any(r.top_p != 1.0 for r in requests),
        "need_min_p": any(r.min_p > 0 for r in requests),
    }
    return sample_target(
        logits,
        *parameters_of(requests),
        width,
        **(flags | kwargs),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("request_", COMBINATIONS, ids=str)
@pytest.mark.parametrize("seeded", [False, True], ids=["generator", "seeds"])
def test_draws_follow_the_renormalised_distribution(request_: Request, seeded: bool) -> None:
    width, batch = 2000, 4
    logits = torch.tensor(LOGITS).repeat(batch * width, 1)
    noise: dict[str, object] = {"generator": torch.Generator().manual_seed(11)}
    if seeded:
        noise = {
            "seeds": torch.tensor([1, 2, 3, 2**40]),
            "positions": torch.arange(width).repeat(batch, 1),
        }
    drawn = _sample(logits, [request_] * batch, width, **noise)
    assert_follows(drawn, request_, seeded)


def test_requests_of_one_batch_keep_their_own_parameters() -> None:
    width = 3000
    generator = torch.Generator().manual_seed(4)
    logits = torch.tensor(LOGITS).repeat(len(COMBINATIONS) * width, 1)
    drawn = _sample(logits, COMBINATIONS, width, generator=generator).view(-1, width)
    for row, request in zip(drawn, COMBINATIONS, strict=True):
        counts = torch.bincount(row, minlength=VOCAB).tolist()
        assert p_value(counts, distribution(LOGITS, request)) > 0.001


def test_a_bound_on_top_k_changes_no_draw() -> None:
    requests = [Request(top_k=5, top_p=0.8), Request(top_k=2), Request(top_k=5, min_p=0.2)]
    logits = torch.randn(3 * 50, 400, generator=torch.Generator().manual_seed(5))
    noise = torch.empty(150, 400).exponential_(generator=torch.Generator().manual_seed(6))
    full = _sample(logits, requests, 50, noise=noise)
    assert torch.equal(full, _sample(logits, requests, 50, noise=noise, max_top_k=5))


@pytest.mark.parametrize("seeded", [False, True], ids=["noise", "seeds"])
def test_large_batches_are_sampled_in_portions_without_a_difference(
    seeded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = COMBINATIONS[:7]
    generator = torch.Generator().manual_seed(10)
    logits = torch.randn(7 * 6, 90, generator=generator)
    source: dict[str, object] = {"noise": torch.empty(42, 90).exponential_(generator=generator)}
    if seeded:
        source = {"seeds": torch.arange(7), "positions": torch.arange(42).view(7, 6)}
    whole = _sample(logits, requests, 6, **source)
    for cells in (1, 2 * 6 * 90, 3 * 6 * 90 + 1):
        monkeypatch.setattr("sglang_ddtree.tree.sample._MAX_CELLS", cells)
        assert torch.equal(_sample(logits, requests, 6, **source), whole)


def test_greedy_rows_of_a_mixed_batch_are_the_argmax_even_with_equal_logits() -> None:
    generator = torch.Generator().manual_seed(7)
    logits = torch.randint(4, (3 * 40, 200), generator=generator).float()
    requests = [Request(top_k=1), Request(top_k=7), Request(top_k=1)]
    drawn = _sample(logits, requests, 40, generator=generator).view(3, 40)
    expected = logits.argmax(dim=-1).view(3, 40)
    assert torch.equal(drawn[[0, 2]], expected[[0, 2]])
    assert not torch.equal(drawn[1], expected[1])


def test_an_all_greedy_batch_reads_no_parameter() -> None:
    logits = torch.randn(6, 30)
    nothing = torch.empty(0)
    drawn = sample_target(
        logits,
        nothing,
        nothing,
        nothing,
        nothing,
        3,
        greedy=True,
        need_top_k=True,
        need_top_p=False,
        need_min_p=False,
    )
    assert drawn.dtype == torch.int64
    assert torch.equal(drawn, logits.argmax(dim=-1))


@pytest.mark.parametrize("parameters", [Request(), Request(top_k=9, top_p=0.9, min_p=0.02)], ids=str)
def test_a_seeded_draw_depends_on_seed_position_and_distribution_alone(parameters: Request) -> None:
    width, vocab = 5, 300
    generator = torch.Generator().manual_seed(8)
    logits = torch.randn(4 * width, vocab, generator=generator)
    seeds = torch.tensor([17, 42, 17, 2**50])
    positions = torch.randint(1000, (4, width), generator=generator)
    together = _sample(logits, [parameters] * 4, width, seeds=seeds, positions=positions).view(4, width)
    order = [2, 0, 3, 1]
    shuffled = _sample(
        logits.view(4, width, vocab)[order].reshape(-1, vocab),
        [parameters] * 4,
        width,
        seeds=seeds[order],
        positions=positions[order],
    )
    assert torch.equal(shuffled.view(4, width), together[order])
    # A node in another slot, in a batch of one, in another company of filters.
    alone = _sample(
        logits[width + 3 : width + 4], [parameters], 1, seeds=seeds[1:2], positions=positions[1:2, 3:4]
    )
    assert alone.item() == together[1, 3].item()
    company = _sample(
        torch.cat((logits[:width], logits[:width])),
        [parameters, Request(top_k=3, top_p=0.5, min_p=0.1)],
        width,
        seeds=seeds[[0, 0]],
        positions=positions[[0, 0]],
    )
    assert torch.equal(company[:width], together[0])
    other = _sample(logits, [parameters] * 4, width, seeds=seeds + 1, positions=positions)
    assert not torch.equal(other.view(4, width), together)
    later = _sample(logits, [parameters] * 4, width, seeds=seeds, positions=positions + 1)
    assert not torch.equal(later.view(4, width), together)


def test_a_seeded_draw_does_not_depend_on_the_bound_even_with_equal_logits() -> None:
    logits = torch.randint(3, (200, 300), generator=torch.Generator().manual_seed(12)).float()
    source = {"seeds": torch.tensor([5]), "positions": torch.arange(200).view(1, 200)}
    free, bounded = (_sample(logits, [Request(top_k=7)], 200, max_top_k=k, **source) for k in (None, 7))
    assert torch.equal(free, bounded)


def test_unseeded_draws_differ_from_call_to_call() -> None:
    logits = torch.zeros(64, 1000)
    first, second = (_sample(logits, [Request()], 64) for _ in range(2))
    assert not torch.equal(first, second)


def test_a_filtered_token_never_wins() -> None:
    logits = torch.zeros(2000, 50)
    logits[:, 7] = 30.0
    noise = torch.full((2000, 50), 0.0)
    drawn = _sample(logits, [Request(min_p=0.5)], 2000, noise=noise)
    assert (drawn == 7).all()


def test_half_precision_logits_are_sampled_in_float32() -> None:
    logits = torch.randn(8, 100).bfloat16()
    noise = torch.empty(8, 100).exponential_()
    assert torch.equal(
        _sample(logits, [Request()], 8, noise=noise), _sample(logits.float(), [Request()], 8, noise=noise)
    )


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"logits must be \[batch \* 4, vocabulary\], got \[6, 9\]"):
        _sample(torch.zeros(6, 9), [Request()], 4)
    with pytest.raises(ValueError, match="temperatures has 1 elements for 2 requests"):
        _sample(torch.zeros(6, 9), [Request()], 3)
    with pytest.raises(ValueError, match="seeds need positions"):
        _sample(torch.zeros(3, 9), [Request()], 3, seeds=torch.tensor([1]))

"""Which rows of the target's head a rank proposes from, and with whom it exchanges what it finds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_ddtree.tree import draft_candidates

pytestmark = pytest.mark.usefixtures("sglang_with_plugins")

VOCABULARY, HIDDEN, BLOCK, TOPK = 10, 4, 3, 3
WEIGHT = torch.randn(12, HIDDEN, generator=torch.Generator().manual_seed(3))
"""Padded to 12 rows, of which two have no token; they would win if they counted."""
WEIGHT[VOCABULARY:] = 100.0


def head(weight: torch.Tensor, first: int | None, last: int = 0, *, ranks: Any) -> Any:
    from sglang_ddtree.step.draft import CandidateHead

    lm_head = SimpleNamespace(weight=weight)
    if first is not None:
        lm_head.shard_indices = SimpleNamespace(
            org_vocab_start_index=first, num_org_elements=max(0, last - first)
        )
    return CandidateHead.of(lm_head, vocab_size=VOCABULARY, block_size=BLOCK, topk=TOPK, ranks=ranks)


def hidden_states() -> torch.Tensor:
    return torch.randn(2 * BLOCK, HIDDEN, generator=torch.Generator().manual_seed(4))


def expected() -> Any:
    rows = hidden_states().view(2, BLOCK, HIDDEN)[:, 1:]
    return draft_candidates(rows @ WEIGHT[:VOCABULARY].T, TOPK)


def alone() -> Any:
    return SimpleNamespace(count=1)


@pytest.mark.parametrize("first", [0, None])
def test_one_rank_proposes_from_every_token_and_no_padding(first: int | None) -> None:
    weight = WEIGHT if first == 0 else WEIGHT[:VOCABULARY]
    got = head(weight, first, VOCABULARY, ranks=alone()).candidates(hidden_states())
    assert torch.equal(got.token_ids, expected().token_ids)
    assert torch.allclose(got.logprobs, expected().logprobs)


def test_two_ranks_propose_what_one_would() -> None:
    packed: list[torch.Tensor] = []

    def gather(rows: torch.Tensor) -> torch.Tensor:
        packed.append(rows)
        return torch.stack(packed if len(packed) == 2 else [rows, rows])

    ranks = SimpleNamespace(count=2, gather=gather)
    for first, last in ((0, 6), (6, VOCABULARY)):
        got = head(WEIGHT[first : first + 6], first, last, ranks=ranks).candidates(hidden_states())
    # The second rank had both parts to merge.
    assert torch.equal(got.token_ids, expected().token_ids)
    assert torch.allclose(got.logprobs, expected().logprobs, atol=1e-6)


def test_of_a_head_that_every_rank_holds_whole_the_first_one_s_candidates_count() -> None:
    ranks = SimpleNamespace(count=2, gather=lambda rows: torch.stack([rows, rows + 1]))
    for made in (
        head(WEIGHT[:VOCABULARY], None, ranks=ranks),
        head(WEIGHT[:VOCABULARY], 0, VOCABULARY, ranks=ranks),
    ):
        assert torch.equal(made.candidates(hidden_states()).token_ids, expected().token_ids)


def test_a_part_of_a_head_that_does_not_say_which_it_is_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"on 2 ranks this SimpleNamespace has 5 of 10 rows.*--tensor-parallel"
    ):
        head(WEIGHT[:5], None, ranks=SimpleNamespace(count=2))


def test_a_verify_s_logits_come_whole() -> None:
    from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2

    from sglang_ddtree.step.worker import DDTreeWorker

    processor = _processor()
    model = torch.nn.Sequential(processor)
    worker = SimpleNamespace(target_worker=SimpleNamespace(model_runner=SimpleNamespace(model=model)))
    assert DDTreeWorker._defer_target_verify_gather(worker) is None  # type: ignore[arg-type]
    assert processor.defer_verify_gather is False
    # DFLASH's own takes them before the ranks exchange them.
    assert DFlashWorkerV2._defer_target_verify_gather(worker) is processor  # type: ignore[arg-type]
    assert processor.defer_verify_gather is True


def _processor() -> Any:
    from sglang.srt.layers.logits_processor import LogitsProcessor

    made = LogitsProcessor.__new__(LogitsProcessor)
    torch.nn.Module.__init__(made)
    made.defer_verify_gather = False
    return made

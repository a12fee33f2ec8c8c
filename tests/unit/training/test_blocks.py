"""Many blocks in one training forward are what inference drafts one by one, and none sees what it must not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from drafter_training.export import write_checkpoint
from drafter_training.model import block_mask, default_layer_ids, draft_blocks, drafter_config, start
from drafter_training.objective import (
    Blocks,
    block_loss,
    block_tokens,
    chain_length,
    choose_blocks,
    slot_weights,
)
from drafter_training.target import context_features, load_target, read_target

from e2e.oracle import Drafter as OracleDrafter
from sglang_ddtree.sketch.drafter import Drafter
from unit.training.conftest import VOCABULARY

SLOTS, MASK, LENGTH = 8, 199, 40
ANCHORS = torch.tensor([[7, 30, 12], [1, 38, 22]])


@pytest.fixture(scope="module")
def target(target_folder: Path) -> Any:
    return load_target(str(target_folder), torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def folder(target_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drafter with weights far from their first values, so that every part of it matters."""
    out = tmp_path_factory.mktemp("drafter") / "drafter"
    config = drafter_config(
        read_target(str(target_folder)), block_size=SLOTS, layers=3, layer_ids=[0, 1, 2], mask_token=MASK
    )
    drafter = start(config, out, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in drafter.parameters():
            weight += torch.randn(weight.shape, generator=generator) * 0.2
    write_checkpoint(out, config, drafter.state_dict())
    return out


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(0))


def embeds_of(target: Any, tokens: torch.Tensor) -> torch.Tensor:
    known = tokens.gather(1, ANCHORS)
    block = torch.full((*ANCHORS.shape, SLOTS), MASK)
    block[..., 0] = known
    return target.get_input_embeddings()(block)


@torch.no_grad()
def test_training_blocks_are_inference_s(target: Any, folder: Path, tokens: torch.Tensor) -> None:
    drafter, oracle = Drafter(folder).float(), OracleDrafter(folder)
    features = context_features(target, tokens, drafter.target_layer_ids)
    embeds = embeds_of(target, tokens)
    hidden = draft_blocks(drafter, features, ANCHORS, embeds)
    embedding, head = target.get_input_embeddings().weight, target.get_output_embeddings().weight
    for row in range(2):
        for block in range(3):
            anchor = int(ANCHORS[row, block])
            found = hidden[row, block, 1:] @ head.T
            token = int(tokens[row, anchor])
            expected = oracle.distributions(features[row], token, anchor, embedding, head)
            torch.testing.assert_close(found.double().log_softmax(-1), expected, atol=1e-4, rtol=0)
            alone = drafter(embeds[row, block][None], features[row : row + 1, :anchor])
            torch.testing.assert_close(hidden[row, block], alone[0], atol=1e-4, rtol=0)
            # The control: another anchor's context is another answer.
            other = oracle.distributions(features[row], token, anchor - 1, embedding, head)
            assert (other - expected).abs().max() > 1e-2


@torch.no_grad()
def test_no_block_sees_another_or_what_is_behind_its_anchor(
    target: Any, folder: Path, tokens: torch.Tensor
) -> None:
    drafter = Drafter(folder).float()
    features = context_features(target, tokens, drafter.target_layer_ids)
    embeds = embeds_of(target, tokens)
    before = draft_blocks(drafter, features, ANCHORS, embeds)

    changed = features.clone()
    changed[:, 12:] += 1.0
    after = draft_blocks(drafter, changed, ANCHORS, embeds)
    sees = ANCHORS > 12
    assert torch.equal(before[~sees], after[~sees])
    assert bool(((before - after)[sees].abs().amax(dim=(1, 2)) > 1e-3).all())

    for block in range(3):
        noisy = embeds.clone()
        noisy[:, block, 3] += 1.0
        after = draft_blocks(drafter, features, ANCHORS, noisy)
        others = [other for other in range(3) if other != block]
        assert torch.equal(before[:, others], after[:, others])
        # Not causal inside: the slots before the changed one see it, too.
        assert bool(((before - after)[:, block].abs().amax(dim=-1) > 1e-4).all())


@torch.no_grad()
def test_in_mixed_precision_blocks_stay_near(target: Any, folder: Path, tokens: torch.Tensor) -> None:
    drafter = Drafter(folder).float()
    features = context_features(target, tokens, drafter.target_layer_ids)
    embeds = embeds_of(target, tokens)
    exact = draft_blocks(drafter, features, ANCHORS, embeds)
    with torch.autocast("cpu", torch.bfloat16):
        near = draft_blocks(drafter, features.bfloat16(), ANCHORS, embeds)
    assert near.dtype == torch.float32
    assert not torch.equal(near, exact)
    assert (near - exact).norm() / exact.norm() < 0.05


def test_the_mask_by_hand() -> None:
    mask = block_mask(torch.tensor([[1, 3]]), length=3, slots=2)
    assert mask[0, 0].int().tolist() == [
        [1, 0, 0, 1, 1, 0, 0],
        [1, 0, 0, 1, 1, 0, 0],
        [1, 1, 1, 0, 0, 1, 1],
        [1, 1, 1, 0, 0, 1, 1],
    ]


def test_the_loss_and_its_gradient_are_plain_cross_entropy_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drafter_training.objective.HEAD_CHUNK", 5)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, 3, 4, 6, generator=generator, requires_grad=True)
    head = torch.randn(11, 6, generator=generator)
    labels = torch.randint(11, (2, 3, 3), generator=generator)
    valid = torch.rand(2, 3, 3, generator=generator) > 0.3
    blocks = Blocks(torch.zeros(2, 3).long(), torch.zeros(2, 3).long(), labels, valid)
    found = block_loss(hidden, head, blocks, decay=2.0)
    (mine,) = torch.autograd.grad(2 * found.loss, hidden)

    logits = hidden[:, :, 1:] @ head.T
    weights = torch.tensor([1.0, 2.718281828**-0.5, 2.718281828**-1.0]) * valid
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none")
    expected = (losses.view(2, 3, 3) * weights).sum() / weights.sum()
    torch.testing.assert_close(found.loss, expected)
    torch.testing.assert_close(mine, torch.autograd.grad(2 * expected, hidden)[0])
    assert torch.equal(found.hits, (logits.argmax(-1) == labels) & valid)


def test_far_slots_weigh_less() -> None:
    weights = slot_weights(16, 6.0)
    assert weights.shape == (15,)
    assert weights[0] == 1
    assert bool((weights.diff() < 0).all())


def test_anchors_lie_in_the_answer_and_labels_behind_them() -> None:
    tokens = torch.arange(100, 160).view(2, 30)
    lengths, prompts = torch.tensor([30, 12]), torch.tensor([5, 8])
    blocks = choose_blocks(tokens, lengths, prompts, 24, 4, torch.Generator().manual_seed(0))
    assert blocks.anchors.shape == (2, 24)
    # All that have a token behind them.
    assert sorted(blocks.anchors[0].tolist()) == list(range(5, 29))
    # The second answer has three tokens that have one behind them; the other blocks are none.
    real = blocks.valid[1].any(dim=1)
    assert sorted(blocks.anchors[1][real].tolist()) == [8, 9, 10]
    assert torch.equal(blocks.known, tokens.gather(1, blocks.anchors))
    for row in range(2):
        for block in range(24):
            for slot in range(3):
                place = int(blocks.anchors[row, block]) + 1 + slot
                inside = place < int(lengths[row]) and (row == 0 or bool(real[block]))
                assert bool(blocks.valid[row, block, slot]) == inside
                if inside:
                    assert blocks.labels[row, block, slot] == tokens[row, place]
    assert block_tokens(blocks, 4, 7)[0, 0].tolist() == [int(blocks.known[0, 0]), 7, 7, 7]


def test_a_chain_ends_at_its_first_miss() -> None:
    hits = torch.tensor([[[1, 1, 0], [0, 1, 1], [1, 1, 1]]]).bool()
    valid = torch.tensor([[[1, 1, 1], [1, 1, 1], [1, 1, 0]]]).bool()
    assert chain_length(hits, valid).tolist() == [3 + 1, 2]


@pytest.mark.parametrize(
    ("layers", "ids"),
    [(30, [1, 8, 14, 21, 27]), (36, [1, 9, 17, 25, 33]), (6, [1, 2, 3]), (4, [1]), (3, [1]), (2, [0])],
)
def test_default_layers_are_spread_over_the_target(layers: int, ids: list[int]) -> None:
    assert default_layer_ids(layers) == ids

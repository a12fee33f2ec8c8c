"""The shipped drafter: `measure` finds the acceptance that was measured elsewhere, training drafts the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from drafter_training import command
from drafter_training.model import draft_blocks
from drafter_training.target import context_features, load_target

from e2e.hf import GreedyOracle
from sglang_ddtree.bench.prompt_sets import read_file
from sglang_ddtree.bench.tokens import encode
from sglang_ddtree.demo import runner
from sglang_ddtree.demo.target import prepare
from sglang_ddtree.sketch.drafter import Drafter

DATA = Path(__file__).parents[2] / "data"
DRAFTER = Path(runner.__file__).parent / "drafter"
CHAT = 16
"""The first prompts of the set."""
STOP = 2

pytestmark = [pytest.mark.demo, pytest.mark.slow]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, dict[str, list[int]]]]:
    out = tmp_path_factory.mktemp("measured") / "steps.json"
    words = [
        "measure",
        "--model",
        prepare(),
        "--draft",
        DRAFTER,
        "--device",
        "cpu",
        "--limit",
        CHAT,
        "--out",
        out,
    ]
    assert command.main([str(word) for word in words]) == 0
    found: dict[str, dict[str, dict[str, list[int]]]] = json.loads(out.read_text())
    return found


@pytest.mark.parametrize(("name", "reference"), [("chain", "chain_T0"), ("tree 64", "tree64_T0")])
def test_it_is_the_measured_one(
    measured: dict[str, dict[str, dict[str, list[int]]]], name: str, reference: str
) -> None:
    expected = json.loads((DATA / "acceptance.json").read_text())["float32_H200"][reference]["chat"]
    assert measured[name]["mean"] == pytest.approx(expected["mean"], rel=0.01)


@torch.no_grad()
def test_training_blocks_accept_the_measured_steps(
    measured: dict[str, dict[str, dict[str, list[int]]]],
) -> None:
    target = load_target(str(prepare()), torch.device("cpu"), torch.float32)
    drafter = Drafter(DRAFTER).float()
    prompts = read_file(DATA / "eval_prompts.jsonl")[:2]
    for prompt, ids in zip(prompts, encode(str(prepare()), prompts, False)[0], strict=True):
        steps = measured["chain"]["steps"][prompt.name]
        text = GreedyOracle(prepare()).generate(ids, 1 + sum(steps), stop=STOP)
        starts = [len(ids) + sum(steps[:number]) for number in range(len(steps))]
        tokens = torch.tensor([ids + text])
        features = context_features(target, tokens, drafter.target_layer_ids)
        blocks = torch.full((1, len(starts), drafter.block_size), drafter.mask_token_id)
        blocks[0, :, 0] = tokens[0, starts]
        embeds = target.get_input_embeddings()(blocks)
        hidden = draft_blocks(drafter, features, torch.tensor([starts]), embeds)
        drafts = (hidden[0, :, 1:] @ target.get_output_embeddings().weight.T).argmax(dim=-1)
        found = []
        for start, draft in zip(starts, drafts.tolist(), strict=True):
            known = tokens[0, start + 1 :].tolist()
            right = 0
            while right < min(len(known), len(draft)) and known[right] == draft[right]:
                right += 1
            found.append(right + 1)
        # The last step ends with the known text.
        assert found[:-1] == steps[:-1]

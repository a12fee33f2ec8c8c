"""Stock SGLang serving hybrid models (Gated DeltaNet and full attention) on the CPU platform."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from e2e.conftest import Launch
from e2e.hf import GreedyOracle
from e2e.hybrid_checkpoints import EXACT, STATES, make_hybrid_target
from e2e.prompts import mixed_prompts
from e2e.serving import Server

NEW_TOKENS = 40
PROMPTS = [*mixed_prompts(8, longest=200), [77]]
TRACK_INTERVAL = 64  # SGLang's smallest: it keeps states where 64 divides the length


@pytest.fixture(scope="module")
def qwen3_next(checkpoint_root: Path) -> Path:
    return make_hybrid_target(checkpoint_root / "qwen3_next", "qwen3_next")


@pytest.fixture(scope="module")
def expected(hybrid_oracle: GreedyOracle) -> list[list[int]]:
    return [hybrid_oracle.generate(prompt, NEW_TOKENS) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def plain(launch: Launch, hybrid_target: Path) -> Iterator[Server]:
    with launch(
        hybrid_target,
        environment=EXACT,
        max_mamba_cache_size=STATES,
        chunked_prefill_size=160,
        mamba_track_interval=TRACK_INTERVAL,
    ) as server:
        yield server


def answer(server: Server, prompt: list[int], count: int) -> dict[str, Any]:
    params = {"temperature": 0, "max_new_tokens": count, "ignore_eos": True}
    return server.generate([{"input_ids": prompt, "sampling_params": params}])[0]


def test_plain_server_equals_hugging_face(plain: Server, expected: list[list[int]]) -> None:
    assert plain.greedy(PROMPTS, NEW_TOKENS) == expected
    assert plain.greedy(PROMPTS[::-1], NEW_TOKENS) == expected[::-1]  # in slots that were used before
    info = plain.server_info()
    assert (info["mamba_radix_cache_strategy"], info["disable_overlap_schedule"]) == ("extra_buffer", False)
    assert info["chunked_prefill_size"] == 160


@pytest.mark.parametrize(
    ("length", "generated", "cached"),
    [(150, 20, 128), (150, 100, 192), (128, 20, 128)],
    ids=["inside-the-prompt", "inside-the-text", "at-the-prompts-end"],
)
def test_prefix_hit_goes_on_from_the_kept_state(
    plain: Server, hybrid_oracle: GreedyOracle, length: int, generated: int, cached: int
) -> None:
    prompt = mixed_prompts(1, shortest=length, longest=length, seed=length + generated)[0]
    first = answer(plain, prompt, generated)
    second_turn = [*prompt, *first["output_ids"], *mixed_prompts(1, shortest=20, longest=20, seed=5)[0]]
    second = answer(plain, second_turn, NEW_TOKENS)
    assert (first["meta_info"]["cached_tokens"], second["meta_info"]["cached_tokens"]) == (0, cached)
    assert first["output_ids"] == hybrid_oracle.generate(prompt, generated)
    wanted = hybrid_oracle.generate(second_turn, NEW_TOKENS)
    assert second["output_ids"] == wanted
    for zeroed in (False, True):  # control: from zeroed states the text is another
        assert (continue_from(hybrid_oracle, second_turn, cached, zeroed) == wanted) == (not zeroed)


@torch.inference_mode()
def continue_from(oracle: GreedyOracle, prompt: list[int], kept: int, zeroed: bool) -> list[int]:
    """The greedy text by way of a cache of the first `kept` tokens, of which the recurrent states, and they
    alone, may be `zeroed`."""
    cache = oracle.model(torch.tensor([prompt[:kept]]), use_cache=True).past_key_values
    states = [state for layer in cache.layers for state in getattr(layer, "recurrent_states", {}).values()]
    assert len(states) == 3
    for state in states if zeroed else []:
        state.zero_()
    tokens: list[int] = []
    fresh = prompt[kept:]
    while len(tokens) < NEW_TOKENS:
        output = oracle.model(torch.tensor([fresh]), past_key_values=cache, use_cache=True)
        tokens.append(int(output.logits[0, -1].argmax()))
        fresh = tokens[-1:]
    return tokens


def test_the_state_matters_to_every_text(hybrid_target: Path, expected: list[list[int]]) -> None:
    """Control: when each token forgets the state before it, the texts differ."""
    forgetful = GreedyOracle(hybrid_target)
    for name, parameter in forgetful.model.named_parameters():
        if name.endswith("A_log"):
            parameter.data.fill_(10.0)
    changed = [
        forgetful.generate(prompt, NEW_TOKENS) != text for prompt, text in zip(PROMPTS, expected, strict=True)
    ]
    assert all(changed)


def test_no_buffer_and_experts_equal_hugging_face(launch: Launch, qwen3_next: Path) -> None:
    """Qwen3-Next, whose projections are packed head by head and whose layers have experts."""
    oracle = GreedyOracle(qwen3_next)
    with launch(
        qwen3_next,
        environment=EXACT,
        max_mamba_cache_size=STATES,
        mamba_radix_cache_strategy="no_buffer",
        disable_overlap_schedule=True,
    ) as server:
        info = server.server_info()
        assert (info["mamba_radix_cache_strategy"], info["disable_overlap_schedule"]) == ("no_buffer", True)
        assert server.greedy(PROMPTS, NEW_TOKENS) == [oracle.generate(one, NEW_TOKENS) for one in PROMPTS]
        first = answer(server, PROMPTS[1], NEW_TOKENS)["output_ids"]
        second_turn = [*PROMPTS[1], *first, 99, 98, 97]
        second = answer(server, second_turn, NEW_TOKENS)
        assert second["meta_info"]["cached_tokens"] >= len(PROMPTS[1])
        assert second["output_ids"] == oracle.generate(second_turn, NEW_TOKENS)


def test_dflash_equals_plain(
    launch: Launch,
    hybrid_target: Path,
    tiny_drafter_8: Path,
    hybrid_oracle: GreedyOracle,
    expected: list[list[int]],
) -> None:
    """A chain: SGLang commits the states behind the last accepted token."""
    with launch(
        hybrid_target,
        environment=EXACT,
        max_mamba_cache_size=STATES,
        mamba_track_interval=TRACK_INTERVAL,
        speculative_algorithm="DFLASH",
        speculative_draft_model_path=tiny_drafter_8,
    ) as server:
        assert server.greedy(PROMPTS, NEW_TOKENS) == expected
        first = answer(server, PROMPTS[1], 100)
        # More tokens than target forwards: some draft was accepted.
        assert first["meta_info"]["completion_tokens"] > first["meta_info"]["spec_verify_ct"] > 0
        second_turn = [*PROMPTS[1], *first["output_ids"], 99, 98, 97]
        second = answer(server, second_turn, NEW_TOKENS)
        kept = (len(PROMPTS[1]) + 100 - 1) // TRACK_INTERVAL * TRACK_INTERVAL
        assert second["meta_info"]["cached_tokens"] == kept
        assert second["output_ids"] == hybrid_oracle.generate(second_turn, NEW_TOKENS)

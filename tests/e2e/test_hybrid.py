"""DDTREE on targets with Gated DeltaNet layers: identity, and conversations that start from kept states."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from e2e import probing
from e2e.checkpoints import make_drafter
from e2e.conftest import Launch
from e2e.hf import GreedyOracle
from e2e.hybrid_checkpoints import EXACT, STATES, make_hybrid_target
from e2e.prompts import mixed_prompts
from e2e.serving import Server

BLOCK = 16
PROMPTS = mixed_prompts(40, seed=21)
LONG = 300


class Mode(NamedTuple):
    """A server; `prompts` of the forty run on it unless the slow tests are asked for."""

    budget: int | str
    strategy: str
    interval: int | None
    page_size: int
    prompts: int = 6
    whole: int = LONG
    """Tokens per text when all prompts run: so many that every text sees more than 100 rejections."""


AUTO = "auto"
NO_BUFFER, BUFFER, LAZY = "no_buffer", "extra_buffer", "extra_buffer_lazy"
MODES = [
    Mode(1, BUFFER, 64, 1, whole=400),
    Mode(7, LAZY, 64, 1),
    Mode(8, NO_BUFFER, None, 1),
    Mode(9, BUFFER, 128, 1),
    Mode(16, BUFFER, 256, 1, prompts=40),
    Mode(33, BUFFER, 64, 16, whole=450),
    Mode(64, BUFFER, 128, 16, whole=480),
    Mode(AUTO, BUFFER, 64, 16, whole=480),
]
WIDTHS = [8, 64, 16, 64, 32, 8]
"""What the steps of budget "auto" verify, over and over."""


@pytest.fixture(scope="module")
def mode(request: pytest.FixtureRequest) -> Mode:
    return request.param


@pytest.fixture(scope="module")
def server(
    mode: Mode,
    launch: Launch,
    hybrid_target: Path,
    tiny_drafter: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    drafter = tiny_drafter
    if mode.budget == 1:
        # A single node of the usual drafter is the right one too often to see a hundred rejections.
        drafter = make_drafter(tmp_path_factory.mktemp("drafter"), seed=3)
    widths = WIDTHS if mode.budget == AUTO else ()
    with launch(
        hybrid_target,
        environment=EXACT | probing.environment(widths=widths),
        max_mamba_cache_size=STATES,
        speculative_algorithm="DDTREE",
        speculative_draft_model_path=drafter,
        speculative_ddtree_budget=mode.budget,
        mamba_radix_cache_strategy=mode.strategy,
        mamba_track_interval=mode.interval,
        page_size=mode.page_size,
        disable_overlap_schedule=mode.strategy == NO_BUFFER,
        max_total_tokens=16384,
        chunked_prefill_size=64,
    ) as running:
        info = running.server_info()
        assert info["mamba_radix_cache_strategy"] == mode.strategy
        assert info["disable_overlap_schedule"] == (mode.strategy == NO_BUFFER)
        assert "DDTREE records the inputs of GDN layers" in running.log()
        yield running


@pytest.fixture(scope="module")
def texts(hybrid_oracle: GreedyOracle) -> list[list[int]]:
    """The first of them token by token; `assert_greedy` checks whole texts by one forward."""
    return [hybrid_oracle.generate(prompt, 60) for prompt in PROMPTS[:4]]


def assert_greedy(oracle: GreedyOracle, server: Server, prompts: list[list[int]], count: int) -> list[Any]:
    params = {"temperature": 0, "max_new_tokens": count, "ignore_eos": True}
    answers = server.generate([{"input_ids": prompt, "sampling_params": params} for prompt in prompts])
    for prompt, answer in zip(prompts, answers, strict=True):
        assert len(answer["output_ids"]) == count
        assert oracle.chooses(prompt, answer["output_ids"])
    return answers


def identity(
    server: Server,
    oracle: GreedyOracle,
    texts: list[list[int]],
    mode: Mode,
    prompts: list[list[int]],
    count: int,
) -> None:
    answers = assert_greedy(oracle, server, prompts, count)
    for text, answer in zip(texts, answers, strict=False):
        assert answer["output_ids"][: len(text)] == text
    # Every step has rejected a draft unless its path is as deep as a path can be.
    metas = [answer["meta_info"] for answer in answers]
    # Of "auto" the narrowest tree's path is the shortest that ends without a rejection.
    deepest = min(min(WIDTHS) - 1 if mode.budget == AUTO else int(mode.budget), BLOCK - 1)
    rejections = [meta["spec_verify_ct"] - meta["spec_num_correct_drafts"] // deepest for meta in metas]
    assert min(rejections) > (100 if count == mode.whole else 60), sorted(rejections)
    assert len({meta["spec_verify_ct"] for meta in metas}) > 1
    assert sum(meta["spec_num_correct_drafts"] for meta in metas) > LONG / 10


@pytest.mark.parametrize("mode", MODES, ids=str, indirect=True)
def test_ddtree_equals_plain_decoding(
    server: Server, mode: Mode, hybrid_oracle: GreedyOracle, texts: list[list[int]]
) -> None:
    identity(server, hybrid_oracle, texts, mode, PROMPTS[: mode.prompts], LONG)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES, ids=str, indirect=True)
def test_ddtree_equals_plain_decoding_on_all_prompts(
    server: Server, mode: Mode, hybrid_oracle: GreedyOracle, texts: list[list[int]]
) -> None:
    identity(server, hybrid_oracle, texts, mode, PROMPTS, mode.whole)


def ask(server: Server, prompt: list[int], count: int, **fields: Any) -> dict[str, Any]:
    params = {"temperature": 0, "max_new_tokens": count, "ignore_eos": True}
    return server.post("/generate", {"input_ids": prompt, "sampling_params": params, **fields})


LENGTHS = {256: (150, 180, 220)}


@pytest.mark.parametrize("mode", MODES, ids=str, indirect=True)
def test_turns_equal_those_of_a_cold_server(server: Server, mode: Mode, hybrid_oracle: GreedyOracle) -> None:
    """Three turns; turns two and three start from checkpoints taken while decoding, where the mode takes them."""
    decoded = 0
    for seed, length in enumerate(LENGTHS.get(mode.interval, (40, 75, 110))):
        history = mixed_prompts(1, shortest=length, longest=length, seed=seed)[0]
        asked = 0
        for turn in range(3):
            answer = ask(server, history, 180)
            cached = answer["meta_info"]["cached_tokens"]
            assert hybrid_oracle.chooses(history, answer["output_ids"]), (seed, turn, cached)
            if turn == 0:
                assert cached == 0
            else:
                assert cached > 0
                assert mode.interval is None or cached % mode.interval == 0
                decoded += cached > asked  # it lies behind what the last turn was asked
            asked = len(history)
            history = [*history, *answer["output_ids"], *mixed_prompts(1, shortest=9, longest=9)[0]]
    # SGLang keeps every such checkpoint, in its lazy mode those that were certain in time, and none without a
    # buffer.
    assert decoded == 6 if mode.strategy == BUFFER else decoded >= (mode.strategy == LAZY)
    # The same turn without its checkpoint.
    server.flush_cache()
    missed = ask(server, history, 60)
    assert missed["meta_info"]["cached_tokens"] == 0
    assert hybrid_oracle.chooses(history, missed["output_ids"])


@pytest.mark.parametrize("mode", [MODES[5]], ids=str, indirect=True)
def test_many_requests_on_one_prefix_some_aborted(
    server: Server, mode: Mode, hybrid_oracle: GreedyOracle
) -> None:
    prefix = mixed_prompts(1, shortest=140, longest=140, seed=31)[0]
    prompts = [[*prefix, *tail] for tail in mixed_prompts(20, shortest=3, longest=30, seed=32)]
    gone = {3, 7, 11, 12, 18}
    ask(server, prefix, 8)

    def one(number: int) -> dict[str, Any]:
        time.sleep(number * 0.05)
        return ask(server, prompts[number], 400 if number in gone else 120, rid=f"turn-{number:02d}")

    with ThreadPoolExecutor(25) as pool:
        answers = [pool.submit(one, number) for number in range(20)]
        for number in sorted(gone):
            pool.submit(lambda n=number: (time.sleep(1.0 + n * 0.1), server.abort(f"turn-{n:02d}")))
        done = [answer.result() for answer in answers]
    for number, answer in enumerate(done):
        assert hybrid_oracle.chooses(prompts[number], answer["output_ids"]), number
        if number not in gone:
            assert len(answer["output_ids"]) == 120
    finished = {n for n in gone if done[n]["meta_info"]["finish_reason"]["type"] != "abort"}
    assert finished != gone
    assert sum(answer["meta_info"].get("cached_tokens", 0) > 0 for answer in done) > 10
    # SGLang checks its pools whenever it is idle, and ends the server on a leak.
    server.flush_cache()
    assert server.settled_tokens() == 0
    time.sleep(2)
    assert hybrid_oracle.chooses(prefix, ask(server, prefix, 60)["output_ids"])
    assert "leak" not in server.log().lower()


def test_qwen3_next_without_a_checkpoint_buffer(
    launch: Launch, checkpoint_root: Path, tiny_drafter: Path
) -> None:
    target = make_hybrid_target(checkpoint_root / "next", "qwen3_next")
    with launch(
        target,
        environment=EXACT,
        max_mamba_cache_size=STATES,
        speculative_algorithm="DDTREE",
        speculative_draft_model_path=tiny_drafter,
        speculative_ddtree_budget=16,
        mamba_radix_cache_strategy="no_buffer",
        disable_overlap_schedule=True,
    ) as server:
        info = server.server_info()
        assert (info["mamba_radix_cache_strategy"], info["disable_overlap_schedule"]) == ("no_buffer", True)
        assert_greedy(GreedyOracle(target), server, PROMPTS[:8], 100)

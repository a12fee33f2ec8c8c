"""Greedy DDTREE emits the tokens that plain SGLang and Hugging Face emit, whatever mode the server runs in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from e2e import probing
from e2e.conftest import Launch
from e2e.hf import GreedyOracle
from e2e.prompts import mixed_prompts
from e2e.serving import RETRACTED

PROMPTS = mixed_prompts(40)
NEW_TOKENS = 24
BLOCK = 16


class Mode(NamedTuple):
    budget: int
    page_size: int
    overlap: bool
    radix: bool
    chunk: int | None

    @property
    def pool(self) -> int:
        """Large enough that nothing is retracted: running x (length + 2W), in whole pages."""
        window = max(self.budget + 1, BLOCK)
        longest = max(len(prompt) for prompt in PROMPTS) + NEW_TOKENS
        return len(PROMPTS) * (longest + 2 * window + 2 * self.page_size)


# Every value of each axis, and every pair of values of two axes other than the budget.
MODES = [
    Mode(1, 1, True, True, None),
    Mode(4, 16, False, True, 16),
    Mode(15, 1, True, False, 16),
    Mode(16, 16, True, False, None),
    Mode(33, 1, False, True, None),
    Mode(64, 16, True, True, 16),
    Mode(255, 16, False, False, None),
]


@pytest.fixture(scope="module")
def hugging_face(oracle: GreedyOracle) -> list[list[int]]:
    return [oracle.generate(prompt, NEW_TOKENS) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def plain(launch: Launch, tiny_target: Path) -> list[list[int]]:
    with launch(tiny_target, max_running_requests=40) as server:
        return server.greedy(PROMPTS, NEW_TOKENS)


def test_plain_server_equals_hugging_face(plain: list[list[int]], hugging_face: list[list[int]]) -> None:
    assert plain == hugging_face


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_ddtree_equals_plain(
    launch: Launch,
    tiny_target: Path,
    tiny_drafter: Path,
    hugging_face: list[list[int]],
    tmp_path: Path,
    mode: Mode,
) -> None:
    trace = tmp_path / "trace"
    with launch(
        tiny_target,
        environment=probing.environment(trace=trace),
        speculative_algorithm="DDTREE",
        speculative_draft_model_path=tiny_drafter,
        speculative_ddtree_budget=mode.budget,
        page_size=mode.page_size,
        disable_overlap_schedule=not mode.overlap,
        disable_radix_cache=not mode.radix,
        chunked_prefill_size=mode.chunk or -1,
        max_running_requests=40,
        max_total_tokens=mode.pool,
        mem_fraction_static=0.5,
    ) as server:
        assert server.greedy(PROMPTS, NEW_TOKENS) == hugging_face
        log = server.log()
    steps = [step for request in probing.read_trace(trace).values() for step in request]
    assert_mode_was_real(mode, steps, log)
    # The draft is of use: without it a step commits one token.
    assert sum(step["accept_len"] for step in steps) > 1.02 * len(steps)
    assert max(step["batch"] for step in steps) > 8


def assert_mode_was_real(mode: Mode, steps: list[dict], log: str) -> None:
    assert {step["width"] for step in steps} == {mode.budget + 1}
    assert {step["overlap"] for step in steps} == {mode.overlap}
    assert {step["page_size"] for step in steps} == {mode.page_size}
    assert {step["radix"] for step in steps} == {mode.radix}
    assert RETRACTED not in log
    prefills = [int(count) for count in re.findall(r"Prefill batch.*?#new-token: (\d+)", log)]
    assert prefills
    assert (max(prefills) <= 16) == (mode.chunk == 16)


def test_modes_cover_every_value_of_every_axis() -> None:
    axes = list(zip(*MODES, strict=True))
    assert set(axes[0]) == {1, 4, 15, 16, 33, 64, 255}
    assert [set(axis) for axis in axes[1:]] == [{1, 16}, {True, False}, {True, False}, {16, None}]
    for left in range(1, 5):
        for right in range(left + 1, 5):
            pairs = {(mode[left], mode[right]) for mode in MODES}
            assert len(pairs) == 4, (left, right)

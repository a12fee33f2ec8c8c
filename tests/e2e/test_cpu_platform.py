"""Stock SGLang on the CPU platform: plain decoding and DFLASH, without this package's algorithm."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.conftest import Launch
from e2e.hf import GreedyOracle
from e2e.prompts import mixed_prompts
from e2e.serving import Server

NEW_TOKENS = 24
PROMPTS = mixed_prompts(12)


@pytest.fixture(scope="module")
def expected(oracle: GreedyOracle) -> list[list[int]]:
    return [oracle.generate(prompt, NEW_TOKENS) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def plain(launch: Launch, tiny_target: Path) -> Iterator[Server]:
    with launch(tiny_target, chunked_prefill_size=16, page_size=4) as server:
        yield server


def test_plain_server_equals_hugging_face(plain: Server, expected: list[list[int]]) -> None:
    assert plain.greedy(PROMPTS, NEW_TOKENS) == expected
    info = plain.server_info()
    assert (info["attention_backend"], info["disable_overlap_schedule"]) == ("ddtree_cpu", False)
    assert (info["chunked_prefill_size"], info["page_size"]) == (16, 4)


def test_prefix_hit_changes_nothing(plain: Server, oracle: GreedyOracle) -> None:
    prompt = mixed_prompts(1, shortest=100, longest=100, seed=7)[0]
    payload = {"input_ids": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": NEW_TOKENS}}
    first, second = plain.generate([payload])[0], plain.generate([payload])[0]
    assert first["meta_info"]["cached_tokens"] == 0
    assert second["meta_info"]["cached_tokens"] >= 96
    assert first["output_ids"] == second["output_ids"] == oracle.generate(prompt, NEW_TOKENS, stop=2)


def test_plain_sampling_follows_the_softmax(plain: Server, oracle: GreedyOracle) -> None:
    prompt, samples, temperature, top_k = PROMPTS[0], 1000, 3.0, 4
    params = {"temperature": temperature, "top_k": top_k, "max_new_tokens": 1, "ignore_eos": True}
    answer = plain.post("/generate", {"input_ids": [prompt] * samples, "sampling_params": params})
    counts = Counter(one["output_ids"][0] for one in answer)

    best = oracle.next_token_probabilities(prompt, temperature).topk(top_k)
    assert set(counts) == set(best.indices.tolist())
    expected = (best.values / best.values.sum()).tolist()
    for token, p in zip(best.indices.tolist(), expected, strict=True):
        sigma = (samples * p * (1 - p)) ** 0.5
        assert abs(counts[token] - samples * p) < 4.5 * sigma, (
            f"{token}: {counts[token]} of {samples}, p={p:.4f}"
        )


@pytest.mark.parametrize(
    ("block", "page_size", "overlap"), [(16, 1, True), (8, 4, False)], ids=["overlap", "no-overlap"]
)
def test_dflash_equals_plain(
    launch: Launch,
    tiny_target: Path,
    tiny_drafters: dict[int, Path],
    expected: list[list[int]],
    block: int,
    page_size: int,
    overlap: bool,
) -> None:
    with launch(
        tiny_target,
        speculative_algorithm="DFLASH",
        speculative_draft_model_path=tiny_drafters[block],
        page_size=page_size,
        disable_overlap_schedule=not overlap,
    ) as server:
        info = server.server_info()
        assert (info["page_size"], info["disable_overlap_schedule"]) == (page_size, not overlap)
        assert server.greedy(PROMPTS, NEW_TOKENS) == expected
        params = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
        again = server.generate([{"input_ids": PROMPTS[0], "sampling_params": params}])[0]["meta_info"]
        # More tokens than target forwards: some draft was accepted.
        assert again["completion_tokens"] > again["spec_verify_ct"] > 0


def test_a_streamed_answer_equals_a_whole_one(plain: Server) -> None:
    payload = {"input_ids": PROMPTS[1], "sampling_params": {"temperature": 0, "max_new_tokens": NEW_TOKENS}}
    events = list(plain.stream(payload))
    assert len(events) > 1
    assert events[-1]["text"] == plain.generate([payload])[0]["text"]


def _python(code: str, **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SGLANG_")}
    result = subprocess.run(
        [sys.executable, "-c", code], env=clean | environment, text=True, capture_output=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


REPORT = """
import torch
before = torch.Tensor.record_stream
from sglang.srt.plugins import load_plugins
from sglang.srt.platforms import current_platform
from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES
from sglang_ddtree.cpu import absent_torchvision
from sglang_ddtree.cpu.shims import shim_status
load_plugins()
print(type(current_platform).__name__)
patched = torch.Tensor.record_stream is not before
print("ddtree_cpu" in ATTENTION_BACKEND_CHOICES, absent_torchvision.is_installed(), patched)
print(sorted({row["status"] for row in shim_status()}))
"""


def test_platform_is_inactive_unless_named() -> None:
    name, effects, statuses = _python(REPORT).splitlines()
    assert name != "DDTreeCpuPlatform"
    assert effects == "False False False"
    assert statuses == "['not needed']"


def test_platform_is_active_when_named() -> None:
    name, effects, statuses = _python(REPORT, SGLANG_PLATFORM="ddtree_cpu").splitlines()
    assert name == "DDTreeCpuPlatform"
    assert effects.split()[0] == "True"
    assert effects.split()[2] == "True"
    assert "applied" in statuses
    assert "refused" not in statuses

"""Budget "auto": a step's width changes nothing but the number of tokens that it verifies."""

from __future__ import annotations

import re
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from e2e import probing
from e2e.conftest import Launch
from e2e.hf import GreedyOracle
from e2e.prompts import mixed_prompts
from e2e.serving import Server

PROMPTS = mixed_prompts(24, seed=5)
NEW_TOKENS = 48
AUTO = {
    "speculative_algorithm": "DDTREE",
    "speculative_ddtree_budget": "auto",
    "max_running_requests": 24,
    "max_total_tokens": 16384,
}


@pytest.fixture(scope="module")
def hugging_face(oracle: GreedyOracle) -> list[list[int]]:
    return [oracle.generate(prompt, NEW_TOKENS) for prompt in PROMPTS]


def test_text_is_plain_whatever_widths_the_steps_take(
    launch: Launch,
    tiny_target: Path,
    tiny_drafter: Path,
    hugging_face: list[list[int]],
    tmp_path: Path,
) -> None:
    trace, widths = tmp_path / "trace", [8, 64, 16, 64, 32, 8]
    with launch(
        tiny_target,
        environment=probing.environment(trace=trace, widths=widths),
        speculative_draft_model_path=tiny_drafter,
        page_size=16,
        **AUTO,
    ) as server:
        assert server.greedy(PROMPTS, NEW_TOKENS) == hugging_face
        (state,) = server.server_info()["internal_states"]
        assert server.settled_tokens() == 0
    steps = probing.read_trace(trace)
    taken: dict[int, list[int]] = {width: [] for width in set(widths)}
    for request in steps.values():
        for before, after in pairwise(request):
            assert after["prefix"] == before["prefix"] + before["accept_len"]
        for step in request:
            taken[step["width"]].append(step["accept_len"])
            # A tree has no slot outside its width, and fills it: the drafter has candidates enough.
            assert len(step["tokens"]) == step["width"]
            assert max(step["path"]) < step["width"]
    assert all(len(lens) > 20 for lens in taken.values()), taken
    # The wide steps are of use: nodes beyond the narrow width are accepted.
    paths = [step["path"] for request in steps.values() for step in request if step["width"] == 64]
    assert sum(max(path) >= 8 for path in paths) > 5
    # What the server expects of each width is what its steps emitted.
    expected = state["ddtree_widths"]["expected_tokens"]
    assert [expected[str(width)] for width in (8, 16, 32, 64)] == sorted(expected.values())
    narrow = [sum(slot < 8 for slot in step["path"]) for request in steps.values() for step in request]
    assert expected["8"] == pytest.approx(sum(narrow) / len(narrow), rel=0.15)


def settled_metrics(server: Server) -> dict[tuple[str, str], dict[str, float]]:
    """(DDTREE's metric, its own label) -> label value -> value, once an idle scheduler has published the last steps."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    deadline = time.monotonic() + 20
    while ("refused_requests_total", "field") not in found and time.monotonic() < deadline:
        time.sleep(0.5)
        found, samples = {}, server.metrics()
        (sglang,) = (sample.labels for sample in samples if sample.name == "sglang:spec_accept_length")
        for sample in samples:
            if sample.name.startswith("sglang:ddtree_"):
                own = sample.labels.keys() - sglang.keys()
                assert {name: value for name, value in sample.labels.items() if name not in own} == sglang
                label = "".join(own)
                name = sample.name.removeprefix("sglang:ddtree_")
                found.setdefault((name, label), {})[sample.labels.get(label, "")] = sample.value
    return found


def test_the_policy_chooses_and_shows_what_it_chose(
    launch: Launch,
    tiny_target: Path,
    tiny_drafter: Path,
    hugging_face: list[list[int]],
    tmp_path: Path,
) -> None:
    trace = tmp_path / "trace"
    with launch(
        tiny_target,
        environment=probing.environment(trace=trace),
        speculative_draft_model_path=tiny_drafter,
        enable_metrics=True,
        decode_log_interval=5,
        **AUTO,
    ) as server:
        start = time.perf_counter()
        assert server.greedy(PROMPTS, NEW_TOKENS) == hugging_face
        assert server.greedy(PROMPTS[:1], NEW_TOKENS) == hugging_face[:1]
        # Enough steps that some are timed, and the lengths of each on demand.
        params = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
        params |= {"custom_params": {"ddtree_accept_lengths": True}}
        asking = [{"rid": f"asks-{n}", "input_ids": PROMPTS[n], "sampling_params": params} for n in range(4)]
        asked = {payload["rid"]: server.post("/generate", payload)["meta_info"] for payload in asking}
        refused = {"input_ids": PROMPTS[0], "sampling_params": {"regex": "a+", "min_new_tokens": 4}}
        assert server.refusal(refused)[0] == 400
        assert server.settled_tokens() == 0
        info, told = server.server_info(), settled_metrics(server)
        seconds, log = time.perf_counter() - start, server.log()
        assert "DDTREE ready. block_size=16, budget=auto up to 63" in log
    assert info["speculative_ddtree_budget"] == "auto"
    (state,) = info["internal_states"]
    shown = state["ddtree_widths"]
    steps = [step for request in probing.read_trace(trace).values() for step in request]
    assert {step["width"] for step in steps} <= {8, 16, 32, 64}
    ran = {int(width) for width, count in shown["steps"].items() if count}
    assert ran == {step["width"] for step in steps}
    assert sum(shown["steps"].values()) > 20

    # The metrics tell the same, and what the trace tells of every step.
    assert told["steps_total", "width"] == shown["steps"]
    assert told["expected_tokens", "width"] == pytest.approx(shown["expected_tokens"])
    assert told["width_switches_total", ""] == {"": shown["switches"]}
    assert told["verified_trees_total", ""] == {"": len(steps)}
    kept = [step["accept_len"] - 1 for step in steps]
    assert told["accepted_drafts_total", "depth"] == {
        str(depth): sum(number >= depth for number in kept) for depth in range(1, 16)
    }
    # Every 64th step is timed, and read by the one after it.
    timed = (sum(shown["steps"].values()) - 1) // 64
    assert told["timed_steps_total", ""] == {"": timed}
    assert timed >= 1
    phases = told["phase_seconds_total", "phase"]
    assert list(phases) == ["window", "draft", "layout", "verify", "accept", "commit"]
    assert min(phases.values()) > 0
    assert 0 < sum(phases.values()) < seconds
    assert max(phases, key=lambda phase: phases[phase]) in ("draft", "verify")
    # Accept lengths are the trace's, up to the end of the answer.
    trees = probing.read_trace(trace)
    for rid, info in asked.items():
        lengths = info["ddtree_accept_lengths"]
        assert sum(lengths) == NEW_TOKENS - 1
        traced = [step["accept_len"] for step in trees[rid]][: len(lengths)]
        assert lengths[:-1] == traced[:-1]
        assert 0 < lengths[-1] <= traced[-1]
    assert told["refused_requests_total", "field"] == {"regex": 1, "min_new_tokens": 1}
    # So do the lines of the log, up to the last report.
    lines = [line for line in log.splitlines() if "Decode batch" in line]
    assert all("accept len: " in line for line in lines)
    logged: Counter[str] = Counter()
    for line in lines:
        for width, count in re.findall(r"(\d+) x (\d+)", line.partition("verify width: ")[2]):
            logged[width] += int(count)
    assert set(logged) == {str(width) for width in ran}
    assert all(0 <= shown["steps"][width] - count <= 5 for width, count in logged.items())

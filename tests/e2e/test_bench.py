"""The bench command as a user runs it, on the CPU platform."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_ddtree.demo.server import cpu_environment


@pytest.mark.parametrize("flags", [[], ["--in-turns"]], ids=["one by one", "in turns"])
def test_bench_measures_plain_decoding_and_the_tree(
    tiny_target: Path, tiny_drafter: Path, tmp_path: Path, flags: list[str]
) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out"
    rows = [{"prompt": "Count to ten."}, {"question": "What is 2 + 3?"}, {"turns": ["Hello!", "Bye."]}]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-m", "sglang_ddtree.cli", "bench"]
    command += ["--model", str(tiny_target), "--draft", str(tiny_drafter), "--arm", "AR", "--arm", "DDTREE 8"]
    command += ["--prompts", str(prompts), "--concurrency", "2", "--runs", "1", "--max-new-tokens", "16"]
    command += ["--temperature", "0"]
    command += ["--server-arg", "--dtype float32 --max-total-tokens 8192 --max-running-requests 8"]
    command += ["--server-arg", "--skip-server-warmup --sleep-on-idle", "--out", str(out), *flags]
    result = subprocess.run(command, text=True, capture_output=True, check=False, env=cpu_environment(1))
    assert result.returncode == 0, result.stdout + result.stderr

    found = json.loads((out / "bench.json").read_text())
    assert [(arm["name"], arm["failure"], arm["mode"]) for arm in found["arms"]] == [
        ("AR", None, "CPU"),
        ("DDTREE 8", None, "CPU"),
    ]
    plain, tree = (arm["cells"][0] for arm in found["arms"])
    assert tree["output_ids"] == plain["output_ids"]
    assert tree["identity"] == {
        "compared": 3,
        "identical": 3,
        "earliest_difference": None,
        "differences": {},
        "must_be_identical": True,
    }
    (tokens,) = tree["figures"]["tokens"]["values"]
    (steps,) = tree["figures"]["verify_steps"]["values"]
    assert 0 < steps < tokens - len(rows)  # a token of each answer is its prompt's
    assert plain["figures"]["verify_steps"]["values"] == [tokens - len(rows)]
    for request in tree["requests"][0]:
        histogram = request["correct_drafts_histogram"]
        assert sum(histogram) == request["verify_steps"]
        assert sum(kept * steps for kept, steps in enumerate(histogram)) == request["correct_drafts"]
        # The last step may keep drafts beyond the answer's end.
        kept = 1 + request["verify_steps"] + request["correct_drafts"]
        assert request["tokens"] <= kept < request["tokens"] + 8
    # The mean of a count is the sum over d of the probability that it is at least d.
    depths = [depth["median"] for depth in tree["acceptance_by_depth"]]
    assert depths[0] > 0
    assert depths == sorted(depths, reverse=True)
    assert 1 + sum(depths) == pytest.approx(tree["figures"]["acceptance_length"]["median"])
    assert plain["acceptance_by_depth"] == []
    # The tree's server counted, but its warm-up and run are fewer steps than the 64 up to the first timed one.
    assert (tree["timed_steps"], tree["parts_ms"]) == (0, None)
    assert (plain["timed_steps"], plain["parts_ms"]) == (None, None)
    assert "d=1" in result.stdout
    assert "Run on the CPU" in result.stdout
    assert found["settings"]["in_turns"] is bool(flags)
    assert "<svg" in (out / "bench.html").read_text()
    assert json.loads((out / "bench.json").read_text())["chat_template"] is True

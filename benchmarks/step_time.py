"""Milliseconds per decode step with dummy weights in a real model's shape.

    python benchmarks/step_time.py --model benchmarks/shapes/qwen3.5-27b \
      --draft benchmarks/shapes/qwen3.5-27b-dflash-b16 --arm DFLASH --arm "DDTREE 16" --out FILE

An arm is AR, DFLASH or DDTREE with a budget, served by an engine of its own, one after the other, all with the
same flags. Dummy weights accept next to nothing: the step's time is real, tokens per second would not be.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

COMMON = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "attention_backend": "triton",
    "mem_fraction_static": 0.75,
    "max_running_requests": 16,
    "cuda_graph_max_bs_decode": 8,
    "disable_prefill_cuda_graph": True,
    "disable_radix_cache": True,
    "context_length": 8192,
    "random_seed": 1,
}
PROMPT, NEW_TOKENS, REPEATS = 256, 128, 5


def options(arm: str, model: Path, draft: Path, changes: dict[str, Any]) -> dict[str, Any]:
    algorithm, _, budget = arm.partition(" ")
    found: dict[str, Any] = {"model_path": str(model), **COMMON}
    if algorithm != "AR":
        found |= {
            "speculative_algorithm": algorithm,
            "speculative_draft_model_path": str(draft),
            "speculative_draft_load_format": "dummy",
        }
    if budget:
        found["speculative_ddtree_budget"] = int(budget)
    return found | changes


def run_arm(arm: str, arguments: argparse.Namespace) -> None:
    import sglang

    start = time.perf_counter()
    engine = sglang.Engine(**options(arm, arguments.model, arguments.draft, json.loads(arguments.flags)))
    result: dict[str, Any] = {"startup_s": round(time.perf_counter() - start, 1), "ms_per_step": {}}
    sampling = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    for batch in arguments.batch:
        prompts = [[(7 * row + 13 * col) % 150_000 for col in range(PROMPT)] for row in range(batch)]
        engine.generate(input_ids=prompts, sampling_params={**sampling, "max_new_tokens": 16})
        times = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            answers = engine.generate(input_ids=prompts, sampling_params=sampling)
            seconds = time.perf_counter() - start
            meta = answers[0]["meta_info"]
            times.append(1000 * seconds / (meta.get("spec_verify_ct") or meta["completion_tokens"]))
        result["ms_per_step"][str(batch)] = [round(value, 3) for value in sorted(times)]
        print(arm, batch, round(statistics.median(times), 3), file=sys.stderr, flush=True)
    print("RESULT " + json.dumps(result), flush=True)
    engine.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--arm", action="append", required=True, help='AR, DFLASH or "DDTREE BUDGET"')
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--flags", default="{}", help="JSON of engine keywords, the same for every arm")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        run_arm(arguments.run, arguments)
        return
    results: dict[str, Any] = {}
    for arm in arguments.arm:
        log = arguments.out.with_name(f"log-{arm.replace(' ', '-')}.txt")
        with log.open("w") as stream:
            run = subprocess.run(
                [sys.executable, __file__, *sys.argv[1:], "--run", arm],
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                check=False,
            )
        lines = [line for line in run.stdout.splitlines() if line.startswith("RESULT ")]
        results[arm] = json.loads(lines[0].removeprefix("RESULT ")) if lines else {"error": f"see {log}"}
        print(arm, results[arm], flush=True)
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Milliseconds per decode step with dummy weights in a real model's shape.

    python benchmarks/step_time.py --model benchmarks/shapes/qwen3-8b \
      --draft benchmarks/shapes/qwen3-8b-dflash-b16 --arm DFLASH --arm "DDTREE 63" --arm "DDTREE auto" --out FILE

An arm is AR, DFLASH or DDTREE with a budget, an engine with the same flags as the others; they start side by side
and measure in turn, so they must fit on the GPU together (--max-total-tokens). --profile keeps SGLang's own profile
of some steps at the first batch size, which `step_profile.py` reads. Dummy weights accept next to nothing: the step's
time is real, tokens per second would not be.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import side_by_side

COMMON = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "attention_backend": "triton",
    "mem_fraction_static": 0.95,
    "max_running_requests": 16,
    "cuda_graph_max_bs_decode": 8,
    "disable_prefill_cuda_graph": True,
    "disable_radix_cache": True,
    "context_length": 8192,
    "random_seed": 1,
}
REPEATS = 5


def options(arm: str, arguments: argparse.Namespace) -> dict[str, Any]:
    algorithm, _, budget = arm.partition(" ")
    found: dict[str, Any] = {"model_path": str(arguments.model), **COMMON}
    found["max_total_tokens"] = arguments.max_total_tokens
    if algorithm != "AR":
        found |= {
            "speculative_algorithm": algorithm,
            "speculative_draft_model_path": str(arguments.draft),
            "speculative_draft_load_format": "dummy",
        }
    if budget:
        found["speculative_ddtree_budget"] = budget if budget == "auto" else int(budget)
    return found | json.loads(arguments.flags)


def run_arm(arm: str, arguments: argparse.Namespace) -> None:
    import sglang

    start = time.perf_counter()
    engine = sglang.Engine(**options(arm, arguments))
    result: dict[str, Any] = {"startup_s": round(time.perf_counter() - start, 1), "ms_per_step": {}}
    side_by_side.ready()
    sampling = {"temperature": 0, "max_new_tokens": arguments.new_tokens, "ignore_eos": True}
    for batch in arguments.batch:
        size, tokens = arguments.prompt_tokens, arguments.vocabulary
        prompts = [[(7 * row + 13 * col) % tokens for col in range(size)] for row in range(batch)]
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
        if arguments.profile and batch == arguments.batch[0]:
            folder = arguments.profile / f"{arm.replace(' ', '-')}-{batch}"
            engine.start_profile(output_dir=str(folder), activities=["CPU", "GPU"])
            engine.generate(input_ids=prompts, sampling_params={**sampling, "max_new_tokens": 20})
            engine.stop_profile()
    widths = [state.get("ddtree_widths") for state in engine.get_server_info()["internal_states"]]
    if any(widths):
        result["widths"] = widths
    side_by_side.report(result)
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
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--vocabulary", type=int, default=150_000, help="prompt token ids stay below it")
    parser.add_argument("--max-total-tokens", type=int, default=16_384, help="KV pool of each engine")
    parser.add_argument("--profile", type=Path, help="a folder for profiles")
    parser.add_argument("--flags", default="{}", help="JSON of engine keywords, the same for every arm")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        run_arm(arguments.run, arguments)
        return
    side_by_side.run_arms(__file__, arguments.arm, arguments.out, shown=lambda result: result)


if __name__ == "__main__":
    main()

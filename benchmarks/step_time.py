"""Milliseconds per decode step with dummy weights in a real model's shape.

    python benchmarks/step_time.py --model benchmarks/shapes/qwen3-8b \
      --draft benchmarks/shapes/qwen3-8b-dflash-b16 --arm DFLASH --arm "DDTREE 63" --arm "DDTREE auto" --out FILE

An arm is AR, DFLASH (on another attention backend: "DFLASH fa3") or DDTREE with a budget, an engine with the same
flags as the others; they start side by side and measure in turn, so they must fit on the GPU together
(--max-total-tokens). --profile keeps SGLang's own profile of some steps at the first batch size, which
`step_profile.py` reads. Dummy weights accept next to nothing: the step's time is real, tokens per second would not be.
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
    "context_length": 16384,
    "random_seed": 1,
}
REPEATS = 5
PREFILL = 6


def options(arm: str, arguments: argparse.Namespace) -> dict[str, Any]:
    algorithm, _, detail = arm.partition(" ")
    found: dict[str, Any] = {"model_path": str(arguments.model), **COMMON}
    found["max_total_tokens"] = arguments.max_total_tokens
    if algorithm != "AR":
        found |= {
            "speculative_algorithm": algorithm,
            "speculative_draft_model_path": str(arguments.draft),
            "speculative_draft_load_format": "dummy",
        }
    found |= json.loads(arguments.flags)
    if detail and algorithm == "DDTREE":
        found["speculative_ddtree_budget"] = detail if detail == "auto" else int(detail)
    elif detail:
        found["attention_backend"] = detail
    return found


def run_arm(arm: str, arguments: argparse.Namespace) -> None:
    import sglang

    start = time.perf_counter()
    engine = sglang.Engine(**options(arm, arguments))
    result: dict[str, Any] = {"startup_s": round(time.perf_counter() - start, 1), "ms_per_step": {}}
    side_by_side.wait_for_turn()
    for context in arguments.prompt_tokens:
        found = result["ms_per_step"][str(context)] = {}
        for batch in arguments.batch:
            if batch * (context + 2 * arguments.new_tokens) > arguments.max_total_tokens:
                continue  # some would wait for others' memory
            tokens = arguments.vocabulary
            prompts = [[(7 * row + 13 * col) % tokens for col in range(context)] for row in range(batch)]
            _timed(engine, prompts, PREFILL)
            _timed(engine, prompts, arguments.new_tokens)
            times = [_step_ms(engine, prompts, arguments.new_tokens) for _ in range(REPEATS)]
            found[str(batch)] = [round(value, 3) for value in sorted(times)]
            print(arm, context, batch, round(statistics.median(times), 3), file=sys.stderr, flush=True)
            if arguments.profile and batch == arguments.batch[0]:
                folder = arguments.profile / f"{arm.replace(' ', '-')}-{context}"
                engine.start_profile(output_dir=str(folder), activities=["CPU", "GPU"])
                _timed(engine, prompts, 20)
                engine.stop_profile()
    widths = [state.get("ddtree_widths") for state in engine.get_server_info()["internal_states"]]
    if any(widths):
        result["widths"] = widths
    side_by_side.report(result)
    engine.shutdown()


def _step_ms(engine: Any, prompts: list[list[int]], new_tokens: int) -> float:
    """Of a decode step alone: the difference between a long answer and a short one, which both hold a prefill."""
    short_seconds, short_steps = _timed(engine, prompts, PREFILL)
    seconds, steps = _timed(engine, prompts, new_tokens)
    return 1000 * (seconds - short_seconds) / (steps - short_steps)


def _timed(engine: Any, prompts: list[list[int]], new_tokens: int) -> tuple[float, int]:
    """Seconds and decode steps; the prompts are in the radix cache after the first call."""
    sampling = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
    start = time.perf_counter()
    answers = engine.generate(input_ids=prompts, sampling_params=sampling)
    seconds = time.perf_counter() - start
    metas = [answer["meta_info"] for answer in answers]
    return seconds, max(meta.get("spec_verify_ct") or meta["completion_tokens"] for meta in metas)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--arm", action="append", required=True, help='AR, DFLASH, "DFLASH BACKEND", "DDTREE BUDGET"'
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[256])
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

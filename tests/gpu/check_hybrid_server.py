"""On a GPU: a small random hybrid target served by plain decoding, DFLASH and DDTREE, in bf16 or fp16.

    python tests/gpu/check_hybrid_server.py --out FILE [--dtype float16] [--turns 0]

CUDA graphs, overlap scheduling and radix cache are on. Near ties turn in 16 bits, for DFLASH's chain as well, so texts
are compared by how many of their first tokens agree, and by the gap between plain decoding's two best tokens (in
nats) where a text leaves plain decoding's: a state that follows the wrong node shows at once. Turns that start from a
kept state are compared with the same turn on an emptied cache. Exit code 1 when a tree agrees less than the chain.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from e2e import checkpoints, hybrid_checkpoints  # noqa: E402
from e2e.prompts import mixed_prompts  # noqa: E402

TREE = {"speculative_algorithm": "DDTREE"}
ARMS: dict[str, dict[str, Any]] = {
    "AR": {},
    "DFLASH": {"speculative_algorithm": "DFLASH"},
    "DDTREE 16": {**TREE, "speculative_ddtree_budget": 16},
    "DDTREE 64": {**TREE, "speculative_ddtree_budget": 64},
    "DDTREE auto": {**TREE, "speculative_ddtree_budget": "auto"},
    "DDTREE 16, graphs up to 4, lazy": {
        **TREE,
        "speculative_ddtree_budget": 16,
        "cuda_graph_max_bs_decode": 4,
        "mamba_radix_cache_strategy": "extra_buffer_lazy",
    },
}
PROMPTS = mixed_prompts(40, seed=41)
NEW_TOKENS, TURN_TOKENS = 120, 180


def run_arm(name: str, folder: Path, dtype: str, turns: int) -> dict[str, Any]:
    import os

    os.environ["SGLANG_MAMBA_CONV_DTYPE"] = dtype
    import sglang

    options = {
        "model_path": str(folder / "target"),
        "dtype": dtype,
        "attention_backend": "triton",
        "max_total_tokens": 32768,
        "max_mamba_cache_size": 256,
        "max_running_requests": 16,
        "mem_fraction_static": 0.5,
        "cuda_graph_max_bs_decode": 16,
        "mamba_track_interval": 128,
        "skip_tokenizer_init": True,
        "disable_prefill_cuda_graph": True,
        "random_seed": 1,
        **ARMS[name],
    }
    if name != "AR":
        options["speculative_draft_model_path"] = str(folder / "drafter")
    engine = sglang.Engine(**options)
    params = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    ranked = {"return_logprob": True, "top_logprobs_num": 2} if name == "AR" else {}
    answers = engine.generate(input_ids=PROMPTS, sampling_params=params, **ranked)
    meta = [answer["meta_info"] for answer in answers]
    found: dict[str, Any] = {"texts": [answer["output_ids"] for answer in answers], "turns": []}
    if ranked:
        found["gaps"] = [[best[0] - second[0] for best, second in m["output_top_logprobs"]] for m in meta]
    if "spec_verify_ct" in meta[0]:
        steps = sum(m["spec_verify_ct"] for m in meta)
        found["tokens_per_forward"] = 1 + sum(m["spec_num_correct_drafts"] for m in meta) / steps
    params["max_new_tokens"] = TURN_TOKENS
    for prompt in mixed_prompts(turns, shortest=60, longest=100, seed=42):
        first = engine.generate(input_ids=prompt, sampling_params=params)
        turn = [*prompt, *first["output_ids"], 7, 8, 9]
        warm = engine.generate(input_ids=turn, sampling_params=params)
        engine.flush_cache()
        cold = engine.generate(input_ids=turn, sampling_params=params)
        found["turns"].append(
            {
                "cached": [warm["meta_info"]["cached_tokens"], cold["meta_info"]["cached_tokens"]],
                "agree": agreeing(warm["output_ids"], cold["output_ids"]),
            }
        )
    engine.shutdown()
    return found


def agreeing(one: list[int], other: list[int]) -> int:
    """How many of the first tokens are equal."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--arm", action="append", choices=list(ARMS), help="only these arms")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--run", choices=list(ARMS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        arguments.out.write_text(
            json.dumps(run_arm(arguments.run, arguments.folder, arguments.dtype, arguments.turns))
        )
        return
    # Head sizes as released models have them.
    hybrid_checkpoints.KEY_DIM = hybrid_checkpoints.VALUE_DIM = 128
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        hybrid_checkpoints.make_hybrid_target(folder / "target")
        checkpoints.make_drafter(folder / "drafter")
        runs = {}
        for number, name in enumerate(arguments.arm or ARMS):
            command = [sys.executable, __file__, "--folder", scratch, "--run", name]
            command += ["--dtype", arguments.dtype, "--turns", str(arguments.turns)]
            log = arguments.out.with_name(f"log-hybrid-{number}.txt").open("w")
            runs[name] = subprocess.Popen(
                [*command, "--out", f"{scratch}/{number}"], stdout=log, stderr=subprocess.STDOUT
            )
        results = {}
        for number, (name, run) in enumerate(runs.items()):
            failed = run.wait() != 0
            results[name] = None if failed else json.loads((folder / str(number)).read_text())
    summary: dict[str, Any] = {}
    for name, result in results.items():
        if result is None:
            summary[name] = "failed; see its log"
            continue
        agree = [
            agreeing(text, plain) for text, plain in zip(result["texts"], results["AR"]["texts"], strict=True)
        ]
        gaps = sorted(
            row[count] for row, count in zip(results["AR"]["gaps"], agree, strict=True) if count < len(row)
        )
        summary[name] = {
            "gaps_where_texts_part": [round(gap, 4) for gap in gaps],
            "tokens_per_forward": result.get("tokens_per_forward", 1.0),
            "equal_texts": sum(count == NEW_TOKENS for count in agree),
            "agreeing_tokens": sum(agree),
            "turns": result["turns"],
        }
    arguments.out.write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps(summary))
    good = [
        isinstance(row, dict) and row["agreeing_tokens"] >= 0.9 * summary["DFLASH"]["agreeing_tokens"]
        for row in summary.values()
    ]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()

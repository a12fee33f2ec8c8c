"""The demo pair on a GPU: acceptance and speed of plain decoding, DFLASH and DDTREE from one call.

    python benchmarks/demo_pair.py --target DIR --drafter DIR --prompts tests/data/eval_prompts.jsonl --out FILE

Every arm is an engine in a process of its own. They start side by side and measure one after the other, so that
no arm is timed while another works. Dummy weights would accept nothing: this needs the real pair.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TREE = {"speculative_algorithm": "DDTREE"}
TREE_32 = {**TREE, "speculative_ddtree_budget": 32}
ARMS: dict[str, dict[str, Any]] = {
    "AR": {},
    "DFLASH": {"speculative_algorithm": "DFLASH"},
    "DDTREE 16": {**TREE, "speculative_ddtree_budget": 16},
    "DDTREE 32": TREE_32,
    "DDTREE 64": {**TREE, "speculative_ddtree_budget": 64},
    # The same tree on other paths: what they accept must not differ.
    "DDTREE 32, page 16": {**TREE_32, "page_size": 16},
    "DDTREE 32, graphs up to 4": {**TREE_32, "cuda_graph_max_bs_decode": 4},
    "DDTREE 32, no overlap": {**TREE_32, "disable_overlap_schedule": True},
}
COMMON = {
    "attention_backend": "triton",
    "max_running_requests": 48,
    "max_total_tokens": 65536,
    "mem_fraction_static": 0.1,
    "cuda_graph_max_bs_decode": 48,
    "disable_prefill_cuda_graph": True,
    "random_seed": 1,
    "log_level": "info",
}
NEW_TOKENS = 128
STOP = 2
REPEATS = 3


def read_prompts(path: Path, target: Path) -> list[list[int]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": row["prompt"]}], add_generation_prompt=True, return_dict=False
        )
        for row in rows
    ]


def run_arm(name: str, target: Path, drafter: Path, prompts_path: Path) -> None:
    """One engine: says READY, waits for a line, measures, prints RESULT."""
    import sglang

    options = {"model_path": str(target), "dtype": "bfloat16", **COMMON, **ARMS[name]}
    if "speculative_algorithm" in options:
        options["speculative_draft_model_path"] = str(drafter)
    prompts = read_prompts(prompts_path, target)
    start = time.perf_counter()
    engine = sglang.Engine(**options)
    startup = time.perf_counter() - start
    print("READY", flush=True)
    sys.stdin.readline()
    result = {"startup_s": round(startup, 1), **measure(engine, prompts)}
    print("RESULT " + json.dumps(result), flush=True)
    engine.shutdown()


def measure(engine: Any, prompts: list[list[int]]) -> dict[str, Any]:
    greedy = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "stop_token_ids": [STOP]}
    engine.generate(input_ids=prompts[:4], sampling_params=greedy)
    answers = engine.generate(input_ids=prompts, sampling_params=greedy)
    meta = [answer["meta_info"] for answer in answers]
    found: dict[str, Any] = {
        "tokens": sum(m["completion_tokens"] for m in meta),
        "output_ids": [answer["output_ids"] for answer in answers],
        "tokens_per_s": {},
    }
    if "spec_verify_ct" in meta[0]:
        found["forwards"] = sum(m["spec_verify_ct"] for m in meta)
        found["tokens_per_forward"] = 1 + sum(m["spec_num_correct_drafts"] for m in meta) / found["forwards"]
    for batch in (1, 8):
        groups = [prompts[first : first + batch] for first in range(0, 48, 3 * batch)]
        rates = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            done = [engine.generate(input_ids=group, sampling_params=greedy) for group in groups]
            seconds = time.perf_counter() - start
            rates.append(sum(a["meta_info"]["completion_tokens"] for group in done for a in group) / seconds)
        found["tokens_per_s"][str(batch)] = [round(rate, 1) for rate in sorted(rates)]
    sampled = engine.generate(
        input_ids=prompts,
        sampling_params={"temperature": 1.0, "max_new_tokens": NEW_TOKENS, "stop_token_ids": [STOP]},
    )
    meta = [answer["meta_info"] for answer in sampled]
    if "spec_verify_ct" in meta[0]:
        forwards = sum(m["spec_verify_ct"] for m in meta)
        found["tokens_per_forward_t1"] = 1 + sum(m["spec_num_correct_drafts"] for m in meta) / forwards
    return found


def run_all(arguments: argparse.Namespace) -> dict[str, Any]:
    names = [name for name in ARMS if not arguments.arm or name in arguments.arm]
    processes = {}
    for name in names:
        command = [sys.executable, __file__, *sys.argv[1:], "--run", name]
        log = (
            arguments.out.with_suffix("")
            .with_name(f"log-{'-'.join(name.replace(',', '').split())}.txt")
            .open("w")
        )
        processes[name] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        time.sleep(arguments.stagger)
    for name, process in processes.items():
        print(name, "ready" if wait_for(process, "READY") is not None else "failed to start", flush=True)
    results: dict[str, Any] = {}
    for name, process in processes.items():
        if process.poll() is not None:
            results[name] = {"error": "did not start; see its log"}
            continue
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        line = wait_for(process, "RESULT ")
        results[name] = json.loads(line) if line else {"error": "stopped; see its log"}
        print(name, {k: v for k, v in results[name].items() if k != "output_ids"}, flush=True)
        arguments.out.write_text(json.dumps(results))
        process.kill()
    return results


def wait_for(process: subprocess.Popen[str], start: str) -> str | None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("ddtree_probe"):
            print(line.strip(), flush=True)
        if line.startswith(start):
            return line[len(start) :].strip()
    return None


def compare(results: dict[str, Any]) -> dict[str, Any]:
    """Without the texts, but with how many of them equal plain decoding's; near ties differ in bf16."""
    summary: dict[str, Any] = {}
    for name, result in results.items():
        row = {key: value for key, value in result.items() if key != "output_ids"}
        plain = results.get("AR", {}).get("output_ids")
        if plain and "output_ids" in result:
            row["same_as_plain"] = sum(a == b for a, b in zip(plain, result["output_ids"], strict=True))
        summary[name] = row
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--drafter", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--arm", action="append", choices=list(ARMS), help="only these arms")
    parser.add_argument("--stagger", type=float, default=2.0, help="seconds between two starts")
    parser.add_argument("--run", choices=list(ARMS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        run_arm(arguments.run, arguments.target, arguments.drafter, arguments.prompts)
        return
    results = run_all(arguments)
    arguments.out.write_text(json.dumps(results))
    summary = compare(results)
    arguments.out.with_name(arguments.out.stem + "-summary.json").write_text(json.dumps(summary, indent=1))
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()

"""The demo pair on a GPU: acceptance, speed and texts of plain decoding, DFLASH and DDTREE from one call.

    python benchmarks/demo_pair.py --target DIR --drafter DIR --prompts tests/data/eval_prompts.jsonl --out FILE

Arms are engines that start side by side and measure in turns: a first one for acceptance and texts, then one for every
batch size in each of `--rounds`, so that what is compared was measured within seconds. Ratios are the medians over the
rounds of what two arms did in the same round. Dummy weights would accept nothing: this needs the real pair. Texts of 16
bits part where the target's two best tokens are nearly tied, for the chain's verify as for the tree's, since both
compute in other shapes than plain decoding. So every parting is kept with the gap, in nats, between plain decoding's
two best tokens there, and whether the other text took the second of them. A text parts once, which gives few partings:
`--restarts N` starts anew behind every N tokens of plain decoding's texts, whose first arm must be AR, and counts how
often the next N tokens differ.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import side_by_side

from sglang_ddtree.bench.checks import first_difference

TREE = {"speculative_algorithm": "DDTREE"}
TREE_32 = {**TREE, "speculative_ddtree_budget": 32}
ARMS: dict[str, dict[str, Any]] = {
    "AR": {},
    "DFLASH": {"speculative_algorithm": "DFLASH"},
    **{
        f"DDTREE {budget}": {**TREE, "speculative_ddtree_budget": budget}
        for budget in (7, 15, 16, 31, 32, 63, 64, "auto")
    },
    # Any wait for the device inside a decode step ends this one; needs tests/e2e/probe on PYTHONPATH.
    "DDTREE auto, no round trips": {**TREE, "speculative_ddtree_budget": "auto"},
    # The widest tree there is: logits and mask of W tokens per request leave room for few requests.
    "DDTREE 1024, up to 4 requests": {
        **TREE,
        "speculative_ddtree_budget": 1024,
        "max_running_requests": 4,
        "cuda_graph_bs_decode": [1, 2, 4],
    },
    # The same tree on other paths: what they accept must not differ.
    "DDTREE 32, page 16": {**TREE_32, "page_size": 16},
    "DDTREE 32, graphs up to 4": {**TREE_32, "cuda_graph_bs_decode": [1, 2, 4]},
    "DDTREE 32, no overlap": {**TREE_32, "disable_overlap_schedule": True},
}
COMMON = {
    "attention_backend": "triton",
    "max_running_requests": 64,
    "max_total_tokens": 65536,
    "mem_fraction_static": 0.9,
    "cuda_graph_bs_decode": [1, 2, 4, 8, 16, 32, 64],
    "disable_prefill_cuda_graph": True,
    "random_seed": 1,
    "log_level": "info",
}
NEW_TOKENS = 128
TEXT_TOKENS = 256
STOP = 2


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


def run_arm(name: str, arguments: argparse.Namespace) -> None:
    if name.endswith("no round trips"):
        os.environ["DDTREE_PROBE_SYNC"] = "200"
    import sglang

    options = {"model_path": str(arguments.target), "dtype": "bfloat16", **COMMON, **ARMS[name]}
    if "speculative_algorithm" in options:
        options["speculative_draft_model_path"] = str(arguments.drafter)
    prompts = read_prompts(arguments.prompts, arguments.target)
    start = time.perf_counter()
    engine = sglang.Engine(**options)
    startup = time.perf_counter() - start
    side_by_side.wait_for_turn()
    most = int(options["max_running_requests"])
    cells = [(temperature, batch) for temperature, batch in cells_of(arguments) if batch <= most]
    found: dict[str, dict[str, list[float]]] = {"0.0": {}, "1.0": {}}
    result: dict[str, Any] = {
        "startup_s": round(startup, 1),
        "acceptance": acceptance(engine, prompts[:48]),
        "tokens_per_s": found,
    }
    if arguments.profile:
        profile(engine, prompts[0], arguments.profile / name.replace(",", "").replace(" ", "-"))
    if arguments.texts:
        result["texts"] = texts(engine, prompts[: arguments.texts], ranked=name == "AR")
    if arguments.restarts:
        # Arms take their first turns one after the other, AR before all.
        plain = arguments.out.with_suffix(".plain.json")
        if name == "AR":
            plain.write_text(json.dumps([text["ids"] for text in result["texts"]]))
        result["restarts"] = restarts(engine, prompts, json.loads(plain.read_text()), arguments.restarts)
    for temperature, batch in cells:
        rate(engine, prompts, batch, temperature)  # with its prompts in the prefix cache from here on
    for _ in range(arguments.rounds):
        for temperature, batch in cells:
            side_by_side.wait_for_turn(result)
            wake_up(engine, prompts, batch)
            row = found[str(temperature)].setdefault(str(batch), [])
            row.append(round(rate(engine, prompts, batch, temperature), 1))
    widths = [state.get("ddtree_widths") for state in engine.get_server_info()["internal_states"]]
    if any(widths):
        result["widths"] = widths
    side_by_side.report(result)
    engine.shutdown()


def acceptance(engine: Any, prompts: list[list[int]]) -> dict[str, float]:
    """Tokens per target forward, the bonus token included."""
    found = {}
    for temperature in (0, 1):
        sampling = {"temperature": temperature, "max_new_tokens": NEW_TOKENS, "stop_token_ids": [STOP]}
        meta = [a["meta_info"] for a in engine.generate(input_ids=prompts, sampling_params=sampling)]
        if "spec_verify_ct" in meta[0]:
            forwards = sum(m["spec_verify_ct"] for m in meta)
            found[str(temperature)] = 1 + sum(m["spec_num_correct_drafts"] for m in meta) / forwards
    return found


def rate(engine: Any, prompts: list[list[int]], batch: int, temperature: float) -> float:
    """Tokens per second of `batch` requests at a time."""
    sampling = {"temperature": temperature, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    order = (prompts * (1 + batch // len(prompts)))[: max(batch, 4)]
    groups = [order[first : first + batch] for first in range(0, len(order), batch)]
    start = time.perf_counter()
    for group in groups:
        engine.generate(input_ids=group, sampling_params=sampling)
    return len(order) * NEW_TOKENS / (time.perf_counter() - start)


def wake_up(engine: Any, prompts: list[list[int]], batch: int) -> None:
    """Some steps after having been stopped, which are not timed."""
    engine.generate(
        input_ids=(prompts * batch)[:batch],
        sampling_params={"temperature": 0, "max_new_tokens": 16, "ignore_eos": True},
    )


def profile(engine: Any, prompt: list[int], folder: Path) -> None:
    """SGLang's own profile of one request's steps at temperature 0 and 1, for `step_profile.py`."""
    for temperature in (0, 1):
        engine.start_profile(output_dir=f"{folder}-T{temperature}", activities=["CPU", "GPU"])
        sampling = {"temperature": temperature, "max_new_tokens": 60, "ignore_eos": True}
        engine.generate(input_ids=prompt, sampling_params=sampling)
        engine.stop_profile()


def texts(engine: Any, prompts: list[list[int]], *, ranked: bool) -> list[dict[str, Any]]:
    """Greedy texts, eight at a time; with plain decoding's two best tokens at every position."""
    sampling = {"temperature": 0, "max_new_tokens": TEXT_TOKENS, "ignore_eos": True}
    extra = {"return_logprob": True, "top_logprobs_num": 2} if ranked else {}
    found = []
    for first in range(0, len(prompts), 8):
        group = prompts[first : first + 8]
        for answer in engine.generate(input_ids=group, sampling_params=sampling, **extra):
            row: dict[str, Any] = {"ids": answer["output_ids"]}
            if ranked:
                tops = answer["meta_info"]["output_top_logprobs"]
                row["second"] = [second[1] for _, second in tops]
                row["gap"] = [round(best[0] - second[0], 5) for best, second in tops]
            found.append(row)
    return found


def restarts(engine: Any, prompts: list[list[int]], plain: list[list[int]], every: int) -> dict[str, Any]:
    """How often `every` tokens differ from plain decoding's, begun behind every `every` tokens of it.

    The first token is the prefill's in every arm, and comes from no verify: where it differs nothing is counted.
    """
    asked, expected, owners = [], [], []
    for owner, (prompt, text) in enumerate(zip(prompts, plain, strict=False)):
        for begin in range(0, len(text) - every + 1, every):
            asked.append(prompt + text[:begin])
            expected.append(text[begin : begin + every])
            owners.append(owner)
    sampling = {"temperature": 0, "max_new_tokens": every, "ignore_eos": True}
    starts, by_text = 0, [[0, 0] for _ in plain]
    for first in range(0, len(asked), 64):
        some = slice(first, first + 64)
        answers = engine.generate(input_ids=asked[some], sampling_params=sampling)
        for answer, right, owner in zip(answers, expected[some], owners[some], strict=True):
            position = first_difference(answer["output_ids"], right)
            if position == 0:
                continue
            starts += 1
            by_text[owner][0] += position is not None
            # Positions at which it could have parted, the one where it did included.
            by_text[owner][1] += every - 1 if position is None else position
    parted, tokens = (sum(column) for column in zip(*by_text, strict=True))
    return {
        "starts": starts,
        "parted": parted,
        "tokens": tokens,
        "per_1000": round(1000 * parted / tokens, 2),
        "by_text": by_text,
    }


def rate_difference(mine: list[list[int]], theirs: list[list[int]]) -> dict[str, float]:
    """Partings per 1,000 tokens, mine less theirs, and its standard error; both are [parted, tokens] of the same texts.

    The error is that of leaving out one text after the other (jackknife): a text's starts are not independent.
    """

    def difference(left_out: int | None) -> float:
        rates = []
        for rows in (mine, theirs):
            kept = [row for number, row in enumerate(rows) if number != left_out]
            parted, tokens = (sum(column) for column in zip(*kept, strict=True))
            rates.append(1000 * parted / tokens)
        return rates[0] - rates[1]

    without = [difference(number) for number in range(len(mine))]
    error = math.sqrt((len(without) - 1) * statistics.pvariance(without))
    return {"per_1000": round(difference(None), 2), "standard_error": round(error, 2)}


def partings(plain: list[dict[str, Any]], other: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Where each text leaves plain decoding's: position, gap in nats, whether it took the second best token."""
    found = []
    for mine, theirs in zip(plain, other, strict=True):
        position = first_difference(mine["ids"], theirs["ids"])
        if position is not None:
            found.append(
                {
                    "position": position,
                    "gap": mine["gap"][position],
                    "took_second": theirs["ids"][position] == mine["second"][position],
                }
            )
    return found


def compare(results: dict[str, Any]) -> dict[str, Any]:
    """Without the texts, but with how they part from plain decoding's."""
    summary: dict[str, Any] = {}
    plain = results.get("AR", {}).get("texts")
    for name, result in results.items():
        row = {key: value for key, value in result.items() if key != "texts"}
        if plain and "texts" in result and name != "AR":
            found = partings(plain, result["texts"])
            row["partings"] = {
                "texts": len(plain),
                "parted": len(found),
                "tokens_before": sum(p["position"] for p in found) + TEXT_TOKENS * (len(plain) - len(found)),
                "largest_gap": max((p["gap"] for p in found), default=0.0),
                "median_gap": statistics.median([p["gap"] for p in found] or [0.0]),
                "took_second": sum(p["took_second"] for p in found),
                "each": found,
            }
        chain = results.get("DFLASH", {}).get("restarts")
        if "restarts" in row:
            row["restarts"] = without_texts(row["restarts"])
        if chain and "restarts" in result and name != "DFLASH":
            row["restarts less DFLASH's"] = rate_difference(result["restarts"]["by_text"], chain["by_text"])
        for other in ("AR", "DFLASH"):
            if other in results and "tokens_per_s" in row and other != name:
                row[f"against {other}"] = ratios(row["tokens_per_s"], results[other].get("tokens_per_s", {}))
        fixed = [
            one["tokens_per_s"]
            for arm, one in results.items()
            if re.fullmatch(r"DDTREE \d+", arm) and "tokens_per_s" in one
        ]
        if name == "DDTREE auto" and fixed and "tokens_per_s" in row:
            row["against the best fixed"] = ratios(row["tokens_per_s"], best(fixed))
        summary[name] = row
    return summary


Rates = dict[str, dict[str, list[float]]]


def ratios(mine: Rates, theirs: Rates) -> dict[str, dict[str, float]]:
    """By temperature and batch: the median over the rounds."""
    return {
        temperature: {
            batch: round(
                statistics.median(a / b for a, b in zip(rates, theirs[temperature][batch], strict=False)), 3
            )
            for batch, rates in cells.items()
            if rates and theirs.get(temperature, {}).get(batch)
        }
        for temperature, cells in mine.items()
    }


def best(arms: list[Rates]) -> Rates:
    """In every cell the rates of the arm with the highest median."""
    return {
        temperature: {
            batch: max((arm[temperature].get(batch, [0.0]) for arm in arms), key=statistics.median)
            for batch in cells
        }
        for temperature, cells in arms[0].items()
    }


def shown(result: dict[str, Any]) -> dict[str, Any]:
    row = {key: value for key, value in result.items() if key not in ("texts", "widths")}
    return row | {"restarts": without_texts(row["restarts"])} if "restarts" in row else row


def without_texts(restarts: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in restarts.items() if key != "by_text"}


def pair_parser(
    description: str | None, batch: list[int], batch_sampled: list[int]
) -> argparse.ArgumentParser:
    """What every script that runs the pair asks for; `batch` and `batch_sampled` are defaults."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--drafter", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch", type=int, nargs="+", default=batch)
    parser.add_argument(
        "--batch-sampled", type=int, nargs="*", default=batch_sampled, help="at temperature 1"
    )
    return parser


def cells_of(arguments: argparse.Namespace) -> list[tuple[float, int]]:
    """Temperature and batch of everything that is timed."""
    return [(0.0, batch) for batch in arguments.batch] + [(1.0, batch) for batch in arguments.batch_sampled]


def main() -> None:
    parser = pair_parser(__doc__, batch=[1, 8], batch_sampled=[1, 8])
    parser.add_argument("--arm", action="append", choices=list(ARMS), help="only these arms")
    parser.add_argument("--profile", type=Path, help="a folder for profiles")
    parser.add_argument("--texts", type=int, default=0, help="greedy texts to compare with plain decoding's")
    parser.add_argument(
        "--restarts", type=int, default=0, help="tokens from one start in plain's texts to the next"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--run", choices=list(ARMS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.restarts and not (arguments.texts and (arguments.arm or list(ARMS))[0] == "AR"):
        parser.error("--restarts needs --texts and AR as its first arm: it starts in plain decoding's texts")
    if arguments.run:
        run_arm(arguments.run, arguments)
        return
    results = side_by_side.run_arms(__file__, arguments.arm or list(ARMS), arguments.out, shown=shown)
    summary = compare(results)
    arguments.out.write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps({name: shown(row) for name, row in summary.items()}), file=sys.stderr)


if __name__ == "__main__":
    main()

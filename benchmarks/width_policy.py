"""`auto` against every fixed width in one server: the widths take turns within a second, on the same prompts.

    PYTHONPATH=tests/e2e/probe python benchmarks/width_policy.py --target DIR --drafter DIR --prompts FILE --out FILE

The host's pace changes by a third within seconds, and processes differ; a choice among widths is worth some per cent.
So one engine runs them all: tests/e2e/probe pins the width between two calls, and the policy neither chooses nor learns
while it is pinned. A round is one call per width and one of `auto`, in an order that changes, each `--batch` requests
of the same prompts. What is compared are the tokens per second over all rounds. Standard errors are those of drawing
the rounds anew.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from demo_pair import ARMS, COMMON, NEW_TOKENS, cells_of, pair_parser, read_prompts

WARM_ROUNDS = 2
DRAWS = 500
Seconds = dict[str, list[float]]


def main() -> None:
    parser = pair_parser(__doc__, batch=[1, 2, 4, 8, 16, 32, 64], batch_sampled=[1])
    parser.add_argument(
        "--rounds", type=int, default=4, help="of a batch size, one after the other, in a pass"
    )
    parser.add_argument("--minutes", type=float, default=3.0, help="passes end after that time")
    parser.add_argument("--times", type=Path, help="a file for the steps' times, one line each")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pin = Path(folder) / "width"
        pin.write_bytes(bytes(1))
        os.environ["DDTREE_PROBE_PIN"] = str(pin)
        if arguments.times:
            os.environ["DDTREE_PROBE_TIMES"] = str(arguments.times)
        run(arguments, pin)


def run(arguments: argparse.Namespace, pin: Path) -> None:
    import sglang

    engine = sglang.Engine(
        model_path=str(arguments.target),
        dtype="bfloat16",
        speculative_draft_model_path=str(arguments.drafter),
        **COMMON,
        **ARMS["DDTREE auto"],
    )
    prompts = read_prompts(arguments.prompts, arguments.target)
    widths = sorted(int(width) for width in counters(engine)["expected_tokens"])
    cells = cells_of(arguments)
    found: dict[str, Seconds] = {name_of(cell): {} for cell in cells}
    draw = random.Random(1)
    engine.generate(input_ids=prompts, sampling_params={"temperature": 0, "max_new_tokens": 8})
    deadline, passes = time.monotonic() + 60 * arguments.minutes, 0
    while time.monotonic() < deadline:
        for cell in cells:
            for number in range(arguments.rounds + (0 if passes else WARM_ROUNDS)):
                modes = [0, *widths]
                draw.shuffle(modes)
                first = draw.randrange(len(prompts))
                for mode in modes:
                    set_pin(pin, mode)
                    seconds = timed(engine, prompts, first, cell)
                    if passes or number >= WARM_ROUNDS:
                        found[name_of(cell)].setdefault(str(mode or "auto"), []).append(round(seconds, 4))
            if time.monotonic() > deadline:
                break
        passes += 1
        set_pin(pin, 0)
        summary = {name: summed(rounds, name) for name, rounds in found.items() if rounds}
        content = {"summary": summary, "seconds": found, "counters": counters(engine)}
        arguments.out.write_text(json.dumps(content, indent=1) + "\n")
    for name, row in summary.items():
        print(name, json.dumps(row), flush=True)
    engine.shutdown()


def set_pin(pin: Path, width: int) -> None:
    """In place: the server has the file mapped, which must never be shorter."""
    with pin.open("r+b") as file:
        file.write(bytes([width]))


def name_of(cell: tuple[float, int]) -> str:
    return f"T={cell[0]:g} batch {cell[1]}"


def counters(engine: Any) -> dict[str, Any]:
    (state,) = engine.get_server_info()["internal_states"]
    found: dict[str, Any] = state["ddtree_widths"]
    return found


def timed(engine: Any, prompts: list[list[int]], first: int, cell: tuple[float, int]) -> float:
    temperature, batch = cell
    group = [prompts[(first + at) % len(prompts)] for at in range(batch)]
    sampling = {"temperature": temperature, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    start = time.perf_counter()
    engine.generate(input_ids=group, sampling_params=sampling)
    return time.perf_counter() - start


def summed(rounds: Seconds, name: str) -> dict[str, Any]:
    """Tokens per second by width, and `auto` as a share of the best fixed width's."""
    tokens = int(name.rsplit(" ", 1)[1]) * NEW_TOKENS
    count = min(map(len, rounds.values()))

    def share(picked: list[int]) -> float:
        totals = {width: sum(seconds[at] for at in picked) for width, seconds in rounds.items()}
        return min(total for width, total in totals.items() if width != "auto") / totals["auto"]

    draw = random.Random(2)
    draws = [share(draw.choices(range(count), k=count)) for _ in range(DRAWS)]
    return {
        "rounds": count,
        "tokens_per_s": {
            width: round(tokens * count / math.fsum(seconds[:count])) for width, seconds in rounds.items()
        },
        "auto_share_of_best": round(share(list(range(count))), 3),
        "standard_error": round(statistics.stdev(draws), 3),
    }


if __name__ == "__main__":
    main()

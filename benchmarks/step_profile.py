"""Where a decode step's time goes, from the profiles that `step_time.py --profile` keeps.

    python benchmarks/step_profile.py FOLDER [--out FILE]

For every profile: decode steps, wall time of one, GPU time in the draft's and the target's CUDA graph and outside of
them, how long the GPU idled, launches by kind, the kernels outside the graphs and the longest inside them.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx")
LONGEST = 16


def summary(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures of one profile; a decode step is a draft graph and a target graph (plain decoding: one graph)."""
    runtime = {
        event["args"]["correlation"]: event
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    graphs = sorted(
        (e["ts"], number) for number, e in runtime.items() if e["name"].startswith("cudaGraphLaunch")
    )
    work: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            work[event["args"]["correlation"]].append(event)
    busy = {number: sum(e["dur"] for e in work[number]) for _, number in graphs}
    per_step = 2 if len({round(value, -2) for value in busy.values()}) > 1 and len(graphs) > 3 else 1
    # The first and the last steps are left out: a prefill is beside them.
    kept = graphs[2 * per_step : len(graphs) - 2 * per_step]
    kept = kept[: len(kept) // per_step * per_step]
    steps = len(kept) // per_step
    if steps < 2:
        return {"steps": steps}
    first, last = kept[0][0], kept[(steps - 1) * per_step][0]
    inside = {number for _, number in graphs}
    launches: Counter[str] = Counter()
    outside: dict[str, list[float]] = defaultdict(list)
    for number, event in runtime.items():
        if not first <= event["ts"] < last:
            continue
        name = event["name"]
        if name in LAUNCHES or name.startswith(
            ("cudaMemcpy", "cudaMemset", "cudaGraphLaunch", "cudaStreamS")
        ):
            launches[name] += 1
        if number not in inside:
            for kernel in work[number]:
                outside[kernel["name"][:90]].append(kernel["dur"])
    counted = steps - 1
    in_graphs = [sum(busy[number] for _, number in kept[at::per_step]) / steps for at in range(per_step)]
    out_us = sum(sum(durations) for durations in outside.values()) / counted
    wall = (last - first) / counted
    within = [_by_name([work[number] for _, number in kept[at::per_step]]) for at in range(per_step)]
    top = sorted(outside.items(), key=lambda item: -len(item[1]))
    return {
        "steps": counted,
        "wall_us": round(wall, 1),
        "graphs_us": [round(value, 1) for value in in_graphs],
        "outside_us": round(out_us, 1),
        "idle_us": round(wall - sum(in_graphs) - out_us, 1),
        "launches_per_step": {name: round(count / counted, 2) for name, count in launches.most_common()},
        "kernels_outside": {
            name: [round(len(durations) / counted, 2), round(sum(durations) / counted, 1)]
            for name, durations in top
        },
        "kernels_in_graphs": within,
    }


def _by_name(replays: list[list[dict[str, Any]]]) -> dict[str, list[float]]:
    """The kernels that take most of a graph: how many a replay, and their microseconds in all."""
    found: dict[str, list[float]] = defaultdict(list)
    for replay in replays:
        for kernel in replay:
            found[kernel["name"][:90]].append(kernel["dur"])
    longest = sorted(found.items(), key=lambda item: -sum(item[1]))[:LONGEST]
    count = len(replays)
    return {
        name: [round(len(durations) / count, 2), round(sum(durations) / count, 1)]
        for name, durations in longest
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found = {}
    for path in sorted(arguments.folder.rglob("*.json.gz")):
        with gzip.open(path) as stream:
            found[path.parent.name] = summary(json.load(stream)["traceEvents"])
    text = json.dumps(found, indent=1)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()

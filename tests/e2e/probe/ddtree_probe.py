"""A test-only SGLang plugin: looks into DDTREE's step and, on demand, scripts the draft.

It is found by putting this folder on PYTHONPATH. Environment variables steer it, since the step runs in a process
of SGLang's own:

DDTREE_PROBE_TRACE    a file; one JSON line per decode step and request: rid, prefix, accept_len, path, positions,
                      the tree as tokens and parents, and the modes that the scheduler really runs in. Ranks
                      but the first write to FILE.1, FILE.2, ...
DDTREE_PROBE_SCRIPT   a JSON file {"texts": {rid: [tokens]}, "accept": [lengths], "ranks": [r], "nodes": n}: request
                      number i drafts its own known text for accept[i] - 1 depths, at rank ranks[depth] among the
                      siblings, and wrong tokens elsewhere. With "nodes", the tree is cut to n real nodes.
DDTREE_PROBE_SYNC     n: after n decode steps on CUDA, every host round trip inside a step raises.
DDTREE_PROBE_PROFILE  a file; the CUDA copies and kernels of decode steps 40 to 44, one JSON line each.
DDTREE_PROBE_LOGITS   "1": the trace also has the logits of the last node at depth 2, `deep_logits`, and its slot.
DDTREE_PROBE_ARGMAX   "1": the target's choice is its argmax at any temperature, which is wrong on purpose.
DDTREE_PROBE_STRAY    "1": every rank but the first chooses the token after the target's choice, and measures ten times
                      the time of a step above 16 tokens, before ranks agree.
DDTREE_PROBE_UNPROVEN "1": every recurrent target is taken for one of an unproven family.
DDTREE_PROBE_WIDTHS   "8,64,16": the steps of a server with budget "auto" take these verify widths, over and over.
DDTREE_PROBE_PIN      a file of one byte; while that is not 0, it is the verify width of every step of a server with
                      budget "auto", and its policy learns nothing.
DDTREE_PROBE_TIMES    a file; one line "batch width milliseconds" per step that the policy was or would have been told.
DDTREE_PROBE_WATCH    "1": on CUDA, a line for every Triton kernel compiled after startup, and for every timed step its
                      milliseconds by phase.
DDTREE_PROBE_CHAIN    "1": convolutions read the nodes before, not the ancestors, which is wrong on purpose.
"""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path
from typing import Any

TRACE = os.environ.get("DDTREE_PROBE_TRACE")
SCRIPT = os.environ.get("DDTREE_PROBE_SCRIPT")
PROFILE = os.environ.get("DDTREE_PROBE_PROFILE")
SYNC = int(os.environ.get("DDTREE_PROBE_SYNC", "0"))
LOGITS = os.environ.get("DDTREE_PROBE_LOGITS") == "1"
ARGMAX = os.environ.get("DDTREE_PROBE_ARGMAX") == "1"
STRAY = os.environ.get("DDTREE_PROBE_STRAY") == "1"
UNPROVEN = os.environ.get("DDTREE_PROBE_UNPROVEN") == "1"
WIDTHS = [int(width) for width in os.environ.get("DDTREE_PROBE_WIDTHS", "").split(",") if width]
PIN = os.environ.get("DDTREE_PROBE_PIN")
TIMES = os.environ.get("DDTREE_PROBE_TIMES")
WATCH = os.environ.get("DDTREE_PROBE_WATCH") == "1"
CHAIN = os.environ.get("DDTREE_PROBE_CHAIN") == "1"


def load() -> None:
    if not any((TRACE, SCRIPT, ARGMAX, STRAY, UNPROVEN, CHAIN, SYNC, PROFILE, WIDTHS, PIN, TIMES, WATCH)):
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if SCRIPT:
        HookRegistry.register("sglang_ddtree.step.draft.draft", scripted_candidates, HookType.AFTER)
        HookRegistry.register("sglang_ddtree.step.worker.DDTreeWorker.build_tree", cut_tree, HookType.AFTER)
    if ARGMAX:
        HookRegistry.register("sglang_ddtree.step.accept.target_choice", argmax_choice, HookType.REPLACE)
    if STRAY:
        HookRegistry.register("sglang_ddtree.step.accept.target_choice", stray_choice, HookType.AFTER)
        HookRegistry.register("sglang_ddtree.step.widths._Meter.tell", stray_time, HookType.AROUND)
    if UNPROVEN:
        HookRegistry.register("sglang_ddtree.host.recurrent.recurrent_family", unproven, HookType.AFTER)
    if WIDTHS:
        HookRegistry.register("sglang_ddtree.width.policy.WidthPolicy.choose", next_width, HookType.REPLACE)
    if PIN:
        pin = Pin(Path(PIN))
        HookRegistry.register("sglang_ddtree.width.policy.WidthPolicy.choose", pin.choose, HookType.AROUND)
        for learner in ("cost.CostTable", "gain.GainEstimator"):
            HookRegistry.register(f"sglang_ddtree.width.{learner}.observe", pin.learn, HookType.AROUND)
    if TIMES:
        HookRegistry.register("sglang_ddtree.width.cost.CostTable.observe", note_time, HookType.BEFORE)
    if CHAIN:
        HookRegistry.register("sglang_ddtree.recurrent.taps.ancestor_taps", chain_taps, HookType.REPLACE)
    if PROFILE:
        HookRegistry.register("sglang_ddtree.step.worker.DDTreeWorker._decode", profile_step, HookType.AROUND)
    if SYNC:
        HookRegistry.register("sglang_ddtree.step.worker.DDTreeWorker._decode", forbid_syncs, HookType.AROUND)
    if WATCH:
        HookRegistry.register(
            "sglang_ddtree.step.worker.DDTreeWorker.prewarm_sampling", watch_steps, HookType.AFTER
        )
    if TRACE:
        HookRegistry.register("sglang_ddtree.step.verify.verify", remember_batch, HookType.BEFORE)
        HookRegistry.register("sglang_ddtree.step.accept.accept", trace_step, HookType.AFTER)
    # The step's modules bind each other's functions when imported; SGLang rebinds what is loaded by now.
    import sglang_ddtree.step.worker  # noqa: F401


_batch: dict[str, Any] = {}


def remember_batch(
    worker: Any, batch: Any, tree: Any, topology: Any, window: Any, host: Any, mask: Any
) -> None:
    _batch.update(
        rids=[req.rid for req in batch.reqs],
        prefix=window.prefix_lens.tolist(),
        modes={
            "overlap": bool(batch.enable_overlap),
            "page_size": batch.token_to_kv_pool_allocator.page_size,
            "radix": "Radix" in type(batch.tree_cache).__name__
            and not getattr(batch.tree_cache, "disable", False),
            "row": worker.model_runner.req_to_token_pool.req_to_token.shape[1],
        },
    )


_steps = [0]


def forbid_syncs(original: Any, *args: Any, **kwargs: Any) -> Any:
    import torch

    _steps[0] += 1
    if _steps[0] <= SYNC:  # kernels compile in the first ones
        return original(*args, **kwargs)
    if _steps[0] == SYNC + 1:
        print("ddtree_probe: host round trips inside a decode step raise from now on", flush=True)
    if _steps[0] % 100 == 0:
        print(f"ddtree_probe: {_steps[0] - SYNC} steps without a host round trip", flush=True)
    torch.cuda.set_sync_debug_mode("error")
    try:
        return original(*args, **kwargs)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def watch_steps(result: Any, worker: Any) -> None:
    import torch
    import triton

    from sglang_ddtree.step.phases import PHASES, PhaseClock, marks_of

    def compiled(*, fn: Any, **more: Any) -> None:
        print(f"ddtree_probe: compiled after startup: {fn.name} {more.get('repr', '')[:600]}", flush=True)

    class Told(PhaseClock):
        def _read(self) -> None:
            before = dict(self.seconds)
            super()._read()
            spent = {phase: round(1000 * (self.seconds[phase] - before[phase]), 3) for phase in PHASES}
            print(f"ddtree_probe: step {self._begun}: {json.dumps(spent)}", flush=True)

    triton.knobs.runtime.jit_post_compile_hook = compiled
    worker.phases = Told(marks_of(torch.device(worker.device)), 16)


def profile_step(original: Any, *args: Any, **kwargs: Any) -> Any:
    import torch

    _steps[0] += 1
    if not 40 <= _steps[0] < 45:
        return original(*args, **kwargs)
    torch.cuda.synchronize()  # nothing of an earlier launch may show up in this step's profile
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        result = original(*args, **kwargs)
        torch.cuda.synchronize()
    counts: dict[str, int] = {}
    for event in profile.events():
        name = event.name.split("(")[0].strip() if event.name.startswith("Mem") else event.name
        is_launch = name in ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx")
        if name.startswith(("Memcpy", "Memset", "cudaGraphLaunch", "cudaStreamSynchronize")) or is_launch:
            counts[event.name if name.startswith("Mem") else name] = counts.get(event.name, 0) + 1
    with Path(str(PROFILE)).open("a") as out:
        print(json.dumps({"step": _steps[0], **counts}), file=out)
    return result


def unproven(result: str | None, model_config: Any) -> str | None:
    return None if result is None else f"unproven {result}"


def next_width(policy: Any, batch_size: int) -> int:
    _steps[0] += 1
    return WIDTHS[_steps[0] % len(WIDTHS)]


class Pin:
    """The width that a benchmark asks for, without a system call in the step."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self.byte = mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ)

    def choose(self, original: Any, policy: Any, batch_size: int) -> int:
        return self.byte[0] or original(policy, batch_size)

    def learn(self, original: Any, *args: Any, **kwargs: Any) -> None:
        if not self.byte[0]:
            original(*args, **kwargs)


_times: list[str] = []


def note_time(costs: Any, batch_size: int, width: int, ms: float) -> None:
    _times.append(f"{batch_size} {width} {ms:.3f}\n")
    if len(_times) == 100:
        with Path(str(TIMES)).open("a") as out:
            out.writelines(_times)
        _times.clear()


def chain_taps(tree: Any, taps: int, out: Any = None) -> Any:
    import torch

    batch, width = tree.parents.shape
    rows = torch.arange(width, dtype=torch.int32).unsqueeze(1) - torch.arange(taps, dtype=torch.int32)
    out[:batch] = rows
    return out[:batch]


def argmax_choice(positions: Any, logits: Any, sampling_info: Any) -> Any:
    return logits.argmax(dim=-1)


def stray_choice(chosen: Any, positions: Any, logits: Any, sampling_info: Any) -> Any:
    from sglang.srt.runtime_context import get_parallel

    return (chosen + (get_parallel().tp_rank > 0)) % logits.shape[-1]


def stray_time(original: Any, meter: Any, batch_size: int, width: int, ms: float) -> None:
    from sglang.srt.runtime_context import get_parallel

    original(meter, batch_size, width, ms * (10 if get_parallel().tp_rank and width > 16 else 1))


def trace_step(
    settled: Any,
    tree: Any,
    topology: Any,
    window: Any,
    logits: Any,
    sampling_info: Any,
    agree: Any,
    tally: Any = None,
) -> None:
    from sglang.srt.runtime_context import get_parallel

    result, _ = settled
    rank = get_parallel().tp_rank
    with Path(f"{TRACE}.{rank}" if rank else str(TRACE)).open("a") as out:
        for row, rid in enumerate(_batch["rids"]):
            accepted = int(result.accept_lens[row])
            count = int(tree.node_count[row])
            record = {
                "rid": rid,
                "prefix": _batch["prefix"][row],
                "batch": len(_batch["rids"]),
                "accept_len": accepted,
                "path": result.accept_index[row, :accepted].tolist(),
                "tokens": tree.tokens[row, :count].tolist(),
                "parents": tree.parents[row, :count].tolist(),
                "positions": topology.positions[row, :count].tolist(),
                "width": tree.width,
                **_batch["modes"],
            }
            deep = (tree.depths[row] == 2).nonzero()
            if LOGITS and len(deep):
                record["deep_slot"] = int(deep[-1])
                record["deep_logits"] = logits.view(*tree.tokens.shape, -1)[row, int(deep[-1])].tolist()
            print(json.dumps(record), file=out)


def script() -> dict[str, Any]:
    """Read anew at every step, so that one server can play several scripts."""
    content: dict[str, Any] = json.loads(Path(str(SCRIPT)).read_text())
    return content


def scripted_candidates(result: Any, worker: Any, batch: Any, bonus: Any, window: Any, host: Any) -> Any:
    """Replace the tree by one with which request i accepts exactly accept[i] tokens while its text lasts."""
    import torch

    from sglang_ddtree.tree.candidates import DraftCandidates

    plan = script()
    if not plan:
        return None
    requests, depths, topk = list(plan["texts"]), worker.plan.block_size - 1, worker.plan.topk
    ids = torch.empty(len(batch.reqs), depths, topk, dtype=torch.int64)
    # A step in rank costs far more than a step in depth: the tree holds every path with one later sibling in it.
    falling = -1.0 * torch.arange(topk) - 0.05
    logprobs = (falling + torch.arange(depths)[:, None] * 1e-3).repeat(len(batch.reqs), 1, 1)
    for row, req in enumerate(batch.reqs):
        text = plan["texts"].get(req.rid, [])
        ids[row] = torch.tensor([token for token in range(100, 500) if token not in text][:topk])
        if req.rid not in plan["texts"]:
            continue
        length = plan["accept"][requests.index(req.rid) % len(plan["accept"])]
        done = int(window.prefix_lens[row]) - len(req.origin_input_ids) + 1
        for depth, token in enumerate(text[done : done + length - 1][:depths]):
            rank = min(plan["ranks"][depth % len(plan["ranks"])], topk - 1)
            ids[row, depth, rank] = token
    device = result.tokens.device
    return worker.build_tree(DraftCandidates(ids.to(device), logprobs.float().to(device)), bonus)


def cut_tree(result: Any, worker: Any, candidates: Any, bonus_tokens: Any) -> Any:
    """Keep the first n real nodes and mark the rest of the width unused."""
    import dataclasses

    nodes = script().get("nodes")
    if nodes is None:
        return None
    tokens, parents, depths = result.tokens.clone(), result.parents.clone(), result.depths.clone()
    for tensor, unused in ((tokens, 0), (parents, -1), (depths, 0)):
        tensor[:, nodes + 1 :] = unused
    count = result.node_count.clamp(max=nodes + 1)
    return dataclasses.replace(result, tokens=tokens, parents=parents, depths=depths, node_count=count)

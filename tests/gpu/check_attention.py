"""Check and time the attention kernel of verifies and drafts on a CUDA device.

    python tests/gpu/check_attention.py [--quick] [--tilings] [--flashinfer]

Against the torch twin in float32, against SGLang's extend kernel, replayed from a CUDA graph with contexts of other
lengths, and the same bits on every run. Then microseconds of one layer beside SGLang's extend kernel, which is what
DFLASH runs on the triton backend. `--tilings` times other tile sizes too, `--flashinfer` flashinfer's masked paged
kernel, which is built at its first use. Prints one JSON object as its last line; exit code 1 when a check failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import device_time  # noqa: E402
import torch  # noqa: E402
import triton  # noqa: E402

from sglang_ddtree.attention import Workspace  # noqa: E402
from sglang_ddtree.attention.verify_triton import tree_attention_triton  # noqa: E402
from sglang_ddtree.attention.workspace import Tiling  # noqa: E402
from unit.attention.attention_twins import Case, check, make_case, pointer_cases, random_cases  # noqa: E402

SHAPES = {"8B": (8, 4, 128), "135M": (3, 3, 64), "27B": (4, 6, 256)}
"""KV heads, query heads to each, head size."""
PARTS = ("twin", "sglang", "graph", "flashinfer_build_s", "compile", "times_us")
WIDTHS = ((16, False), (16, True), (64, True))
"""Of the timed calls, and whether there is a mask: the draft's block has none."""


def workspace_for(head: int) -> Workspace:
    return Workspace.allocate(head, torch.cuda.get_device_properties(0).multi_processor_count, "cuda")


def cases(quick: bool) -> list[tuple[str, Case]]:
    found = []
    for name, (kv_heads, group, head) in SHAPES.items():
        for width, masked in (
            ((16, False), (64, True)) if quick else ((8, True), (16, False), (17, True), (64, True))
        ):
            for lens in ([300], [8000], [1, 257, 0, 4000], [600] * 8):
                generator = torch.Generator().manual_seed(1)
                case = make_case(
                    generator, lens, width, kv_heads, group, head, masked=masked, dtype=torch.bfloat16
                )
                found.append((f"{name} W={width} {lens}", case))
    return found


def check_twin(quick: bool) -> dict[str, Any]:
    done = random_cases("cuda", 20 if quick else 200)
    for label, case in cases(quick):
        check(case, "cuda", workspace_for(case.q.shape[2]), label, least_split=256)
        done += 1
    return {"cases": done, "pointers": pointer_cases("cuda", 60)}


def run(case: Case, workspace: Workspace, **options: Any) -> torch.Tensor:
    out = torch.empty_like(case.q)
    tree_attention_triton(case.q, case.k, case.v, out, *case.args, workspace=workspace, **options)
    return out


def sglang_extend(case: Case) -> torch.Tensor:
    from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd

    out = torch.empty_like(case.q)
    batch = case.kv_indptr.shape[0] - 1
    width = case.q.shape[0] // batch
    k_buffer, v_buffer, kv_indptr, kv_indices, mask, mask_indptr, scaling = case.args
    qo_indptr = torch.arange(0, (batch + 1) * width, width, dtype=torch.int32, device=case.q.device)
    extend_attention_fwd(
        case.q,
        case.k,
        case.v,
        out,
        k_buffer,
        v_buffer,
        qo_indptr,
        kv_indptr,
        kv_indices,
        mask,
        mask is not None,
        mask_indptr,
        width,
        1.0,
        1.0,
        scaling,
    )
    return out


def check_sglang(quick: bool) -> dict[str, Any]:
    largest = 0.0
    for label, case in cases(quick):
        there = case.to("cuda")
        difference = (
            (run(there, workspace_for(there.q.shape[2])).float() - sglang_extend(there).float())
            .abs()
            .max()
            .item()
        )
        assert difference <= 2e-2, f"{label}: {difference}"
        largest = max(largest, difference)
    return {"largest_difference": largest}


def check_graph() -> dict[str, Any]:
    """One capture, replayed with contexts that split otherwise; every replay twice, the same bits."""
    generator = torch.Generator().manual_seed(3)
    kv_heads, group, head = SHAPES["8B"]
    lengths = ([4000, 10], [1, 1], [300, 8000], [0, 2000], [5000, 5000])
    found = [
        make_case(generator, lens, 64, kv_heads, group, head, dtype=torch.bfloat16).to("cuda")
        for lens in lengths
    ]
    largest = {name: max((vars(case)[name] for case in found), key=len).clone() for name in vars(found[0])}
    static = Case(**largest)
    workspace, out = workspace_for(head), torch.empty_like(static.q)

    def attend() -> None:
        tree_attention_triton(static.q, static.k, static.v, out, *static.args, workspace=workspace)

    attend()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attend()
    for case, lens in zip(found, lengths, strict=True):
        for name, value in vars(case).items():
            getattr(static, name)[: len(value)].copy_(value)
        before = None
        for _ in range(20):
            out.fill_(float("nan"))
            graph.replay()
            assert before is None or torch.equal(out, before), f"{lens}: not the same bits"
            before = out.clone()
        difference = (out.float() - run(case, workspace).float()).abs().max().item()
        assert difference == 0.0, f"{lens}: {difference}"
    return {"replays": 20 * len(lengths)}


def microseconds(function: Callable[[], Any], repeat: int = 20, rounds: int = 9) -> float:
    return round(device_time.microseconds(function, repeat=repeat, rounds=rounds), 2)


def flashinfer_paged(case: Case) -> Callable[[], torch.Tensor]:
    """The same attention by flashinfer, planned: what a layer would run. It wants the new rows in the cache."""
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    rows, heads, head = case.q.shape
    lengths = case.kv_indptr.diff()
    batch, slots, device = len(lengths), case.k_buffer.shape[0], case.q.device
    width = rows // batch
    cache = tuple(
        torch.cat([buffer, new]).unsqueeze(1)  # pages of one slot
        for buffer, new in ((case.k_buffer, case.k), (case.v_buffer, case.v))
    )
    context = case.kv_indices[: int(case.kv_indptr[-1])].int().split(lengths.tolist())
    own = torch.arange(slots, slots + rows, dtype=torch.int32, device=device).view(batch, width)
    indices = torch.cat([part for pair in zip(context, own, strict=True) for part in pair])
    starts = torch.arange(batch + 1, dtype=torch.int32, device=device)
    cells = int((width * (lengths + width)).sum())
    wrapper = BatchPrefillWithPagedKVCacheWrapper(
        torch.empty(256 << 20, dtype=torch.uint8, device=device), "NHD", backend="fa2"
    )
    wrapper.plan(
        starts * width,
        case.kv_indptr.int() + starts * width,
        indices,
        torch.ones(batch, dtype=torch.int32, device=device),
        heads,
        case.k.shape[1],
        head,
        1,
        custom_mask=None if case.mask is None else case.mask[:cells].bool(),
        sm_scale=head**-0.5,
        q_data_type=case.q.dtype,
        kv_data_type=case.k.dtype,
    )
    return lambda: wrapper.run(case.q, cache)


def build_flashinfer(shapes: list[str]) -> dict[str, float]:
    """Seconds until its kernels have run, with and without a mask."""
    found = {}
    for name in shapes:
        kv_heads, group, head = SHAPES[name]
        for width, masked in WIDTHS[:2]:
            generator, start = torch.Generator().manual_seed(1), time.perf_counter()
            case = make_case(
                generator, [300], width, kv_heads, group, head, masked=masked, dtype=torch.bfloat16
            )
            flashinfer_paged(case.to("cuda"))()
            torch.cuda.synchronize()
            found[f"{name} {'tree' if masked else 'block'}"] = round(time.perf_counter() - start, 1)
    return found


def time_flashinfer(case: Case, label: str) -> float:
    attend = flashinfer_paged(case)
    difference = (attend().float() - run(case, workspace_for(case.q.shape[2])).float()).abs().max().item()
    assert difference <= 2e-2, f"{label}: flashinfer differs by {difference}"
    return microseconds(attend)


def measure(quick: bool, shapes: list[str], with_tilings: bool, with_flashinfer: bool) -> dict[str, Any]:
    table: dict[str, Any] = {}
    grid = (
        [(1, 256), (1, 8000), (8, 256), (8, 8000)]
        if quick
        else [(batch, context) for batch in (1, 4, 8, 32) for context in (256, 2000, 8000)]
    )
    for name in shapes:
        kv_heads, group, head = SHAPES[name]
        workspace = workspace_for(head)
        for width, masked in WIDTHS:
            for batch, context in grid:
                case = make_case(
                    torch.Generator().manual_seed(1),
                    [context] * batch,
                    width,
                    kv_heads,
                    group,
                    head,
                    masked=masked,
                    dtype=torch.bfloat16,
                ).to("cuda")
                row = {
                    "ours": microseconds(lambda c=case, w=workspace: run(c, w)),
                    "sglang": microseconds(lambda c=case: sglang_extend(c), repeat=4),
                }
                if with_tilings:
                    row |= time_tilings(case, workspace, tilings(batch, kv_heads, group, width, head))
                label = f"{name} W={width}{'' if masked else ' block'} batch {batch} context {context}"
                if with_flashinfer:
                    row["flashinfer"] = time_flashinfer(case, label)
                table[label] = row
                print(label, json.dumps(row), file=sys.stderr, flush=True)
    return table


def tilings(batch: int, kv_heads: int, group: int, width: int, head: int) -> dict[str, Tiling]:
    """Tile sizes to compare, by name."""
    workspace = workspace_for(head)
    found = {}
    for rows in (32, 64, 128) if head <= 128 else (16, 32, 64):
        if rows >= 2 * width * group:
            continue
        blocks = -(-width * group // rows)
        splits = max(1, min(16, workspace.programs // (batch * kv_heads * blocks)))
        for columns in (32, 64, 128) if head <= 128 else (32, 64):
            for warps in (4, 8):
                for stages in (2, 3, 4):
                    name = f"{rows}x{columns} w{warps} s{stages}"
                    found[name] = Tiling(rows, columns, warps, stages, blocks, splits)
    return found


def time_tilings(case: Case, workspace: Workspace, found: dict[str, Tiling]) -> dict[str, float]:
    times = {}
    for name, tiling in found.items():
        try:
            times[name] = microseconds(lambda t=tiling: run(case, workspace, tiling=t), repeat=8, rounds=5)
        except triton.runtime.errors.OutOfResources:
            continue
    return dict(sorted(times.items(), key=lambda item: item[1])[:6])


def compile_one(job: tuple[tuple[int, int, int], int, bool, Tiling]) -> None:
    (kv_heads, group, head), width, masked, tiling = job
    generator = torch.Generator().manual_seed(1)
    case = make_case(generator, [300], width, kv_heads, group, head, masked=masked, dtype=torch.bfloat16).to(
        "cuda"
    )
    with contextlib.suppress(triton.runtime.errors.OutOfResources):
        run(case, workspace_for(head), tiling=replace(tiling, splits=1))


def compile_tilings(shapes: list[str]) -> dict[str, Any]:
    """Into Triton's cache, by many processes: one alone would take minutes."""
    jobs = [
        (shape, width, masked, tiling)
        for shape in (SHAPES[name] for name in shapes)
        for width, masked in WIDTHS
        for tiling in tilings(1, shape[0], shape[1], width, shape[2]).values()
    ]
    with multiprocessing.get_context("spawn").Pool(14) as pool:
        pool.map(compile_one, jobs, chunksize=4)
    return {"variants": len(jobs)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer cases, fewer times")
    parser.add_argument("--tilings", action="store_true", help="time other tile sizes too")
    parser.add_argument("--flashinfer", action="store_true", help="time flashinfer's masked kernel too")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES), help="to time")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device", file=sys.stderr)
        return 1
    quick = arguments.quick
    report: dict[str, Any] = {"device": torch.cuda.get_device_name(), "failed": []}
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "twin": lambda: check_twin(quick),
        "sglang": lambda: check_sglang(quick),
        "graph": lambda: check_graph(),
        "flashinfer_build_s": lambda: build_flashinfer(arguments.shapes) if arguments.flashinfer else {},
        "compile": lambda: compile_tilings(arguments.shapes) if arguments.tilings else {},
        "times_us": lambda: measure(quick, arguments.shapes, arguments.tilings, arguments.flashinfer),
    }
    for name in arguments.parts:
        try:
            report[name] = parts[name]()
        except Exception:
            traceback.print_exc()
            report["failed"].append(name)
        print(name, json.dumps(report.get(name, "failed")), file=sys.stderr, flush=True)
    print(json.dumps(report))
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())

"""Check and time the recurrent tree kernels on a CUDA device, beside SGLang's own.

    python tests/gpu/check_recurrent_kernels.py [--quick] [--out FILE] [--device cuda]

Needs torch with CUDA, Triton and, for two parts, SGLang. Every Triton kernel against its torch twin on the CPU;
SGLang's state-per-node kernels against the same twins; CUDA graph replays; times of both; a sweep of launch
configurations. Prints one JSON object as its last line and writes it to --out; exit code 1 when a check failed.
`--device cpu` runs what needs no GPU: the reference parts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import device_time  # noqa: E402
import torch  # noqa: E402

from sglang_ddtree.recurrent import (  # noqa: E402
    GDNShape,
    TreeRecord,
    ancestor_taps,
    commit_path,
    record_bytes_per_node,
    tree_conv,
    tree_delta_rule,
)
from sglang_ddtree.recurrent.commit_torch import commit_path_torch  # noqa: E402
from sglang_ddtree.recurrent.commit_triton import commit_path_triton  # noqa: E402
from sglang_ddtree.recurrent.conv_torch import tree_conv_torch  # noqa: E402
from sglang_ddtree.recurrent.delta_torch import tree_delta_rule_torch  # noqa: E402
from sglang_ddtree.recurrent.delta_triton import launch_config, tree_delta_rule_triton  # noqa: E402
from sglang_ddtree.tree import DraftTree, links  # noqa: E402
from unit.recurrent.recurrent_cases import (  # noqa: E402
    Layer,
    chain_tree,
    deep_tree,
    make_commit,
    make_layer,
    poisoned_record,
    used_nodes,
)
from unit.recurrent.recurrent_twins import COMPARISONS, relative_error  # noqa: E402
from unit.tree.tree_cases import as_tree, path_to_root, random_tree  # noqa: E402

WIDE = GDNShape(16, 48, 128, 128, 4)
NARROW = GDNShape(16, 32, 128, 128, 4)
LAYERS, DEPTH, ACCEPTED = 48, 15, 6
# float32: the solve and the dots are near float32. bfloat16: outputs are rounded, so one unit may differ.
LIMITS = {torch.float32: 5e-5, torch.bfloat16: 8e-3}
CONFIGS = [(block_v, warps) for block_v in (16, 32, 64) for warps in (4, 8)]


def tree_of(generator: torch.Generator, batch: int, width: int, depth: int = DEPTH) -> DraftTree:
    """Full trees, no node deeper than `depth`, whose bound is `depth` as a drafter's block sets it."""
    rows = []
    for _ in range(batch):
        parents, depths = [-1], [0]
        for slot in range(1, width):
            low = max(0, slot - 5)
            parent = int(torch.randint(low, slot, (), generator=generator))
            if depths[parent] >= depth:
                parent = 0
            parents.append(parent)
            depths.append(depths[parent] + 1)
        rows.append(parents)
    tree = as_tree(rows, [list(range(width))] * batch, width)
    return replace(tree, max_depth=max(tree.max_depth, depth))


def used_only(layer: Layer, out: torch.Tensor) -> torch.Tensor:
    out = out.cpu()
    rows = [request * layer.tree.width + node for request, node in used_nodes(layer.tree)]
    return out[0, rows] if out.dim() == 4 else out[rows]


class Errors:
    """The greatest error per name, and which of them are beyond their limit."""

    def __init__(self) -> None:
        self.worst: dict[str, dict[str, float]] = {}
        self.failed: list[str] = []

    def add(self, name: str, case: str, got: torch.Tensor, expected: torch.Tensor, limit: float) -> None:
        try:
            error = relative_error(got, expected)
        except AssertionError as problem:
            self.failed.append(f"{name} {case}: {problem}")
            return
        absolute = float((got.cpu().double() - expected.cpu().double()).nan_to_num().abs().max())
        entry = self.worst.setdefault(name, {"relative": 0.0, "absolute": 0.0, "cases": 0})
        entry["relative"] = max(entry["relative"], error)
        entry["absolute"] = max(entry["absolute"], absolute)
        entry["cases"] += 1
        if error > limit:
            self.failed.append(f"{name} {case}: relative error {error:.2e}, allowed {limit:.0e}")

    def report(self) -> dict[str, Any]:
        return {"worst": self.worst, "failed": self.failed}


def check_twins(device: str, quick: bool) -> dict[str, Any]:
    """Small irregular cases, strided, padded, tracked: the comparisons of the unit tests, compiled."""
    counts = {"taps": 40, "conv": 20, "delta": 24, "commit": 9}
    return {name: COMPARISONS[name](device, counts[name] // (2 if quick else 1)) for name in counts}


def twin_cases(quick: bool) -> list[tuple[GDNShape, int, int, torch.dtype]]:
    widths = (2, 17, 64) if quick else (2, 16, 17, 33, 64, 65, 128)
    cases = [
        (WIDE, width, batch, torch.bfloat16) for width in widths for batch in ((1,) if quick else (1, 3, 8))
    ]
    cases += [(WIDE, width, 1, torch.float32) for width in widths]
    return cases + [(NARROW, width, 3, torch.bfloat16) for width in ((17,) if quick else (17, 64))]


def check_real_shapes(device: str, quick: bool) -> dict[str, Any]:
    errors = Errors()
    for shape, width, batch, dtype in twin_cases(quick):
        generator = torch.Generator().manual_seed(width)
        if batch == 8:
            tree = random_tree(generator, batch, width, vocab=400)
        else:
            tree = (tree_of if batch == 1 else deep_tree)(generator, batch, width)
        layer = make_layer(generator, shape, tree, dtype=dtype, padded=(1,) if batch == 8 else ())
        moved = layer.to(device)
        case = f"HV={shape.num_v_heads} W={width} B={batch} {dtype}"
        record, moved_record = poisoned_record(layer).layer(0), poisoned_record(moved).layer(0)
        name = "f32" if dtype == torch.float32 else "bf16"
        mixed = tree_conv_torch(*layer.conv_args(), record, shape)
        got = tree_conv(*moved.conv_args(), moved_record, shape)
        errors.add(f"conv {name}", case, got, mixed, LIMITS[dtype])
        expected = tree_delta_rule_torch(*layer.delta_args(mixed), record, shape)
        got = tree_delta_rule(*moved.delta_args(mixed.to(device)), moved_record, shape)
        errors.add(f"delta {name}", case, used_only(layer, got), used_only(layer, expected), LIMITS[dtype])
        for field in fields(record):
            left, right = getattr(moved_record, field.name), getattr(record, field.name)
            errors.add(f"record {field.name} {name}", case, left, right, LIMITS[right.dtype])
    for dtype, state_dtype in (
        (torch.bfloat16, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        (torch.float32, torch.float32),
    ):
        generator = torch.Generator().manual_seed(7)
        tree = deep_tree(generator, 5, 33)
        commit = make_commit(generator, WIDE, tree, dtype=dtype, state_dtype=state_dtype, padded=(3,))
        moved_commit = commit.to(device)
        commit_path_torch(*commit.args())
        commit_path(*moved_commit.args())
        errors.add("commit states", f"{state_dtype}", moved_commit.states, commit.states, LIMITS[state_dtype])
        errors.add("commit windows", f"{dtype}", moved_commit.conv_states, commit.conv_states, 0.0)
    return errors.report()


class HostLayer:
    """SGLang's verify of one layer: a state per node, as its GDN backend's target verify does it."""

    def __init__(self, layer: Layer, states: torch.Tensor, windows: torch.Tensor) -> None:
        from sglang.kernels.ops.attention.linear.fused_sigmoid_gating_recurrent import (
            fused_sigmoid_gating_delta_rule_update,
        )
        from sglang.kernels.ops.mamba.causal_conv1d_triton import causal_conv1d_update

        self.conv_kernel, self.delta_kernel = causal_conv1d_update, fused_sigmoid_gating_delta_rule_update
        self.layer, self.states, self.windows = layer, states, windows
        tree, device = layer.tree, layer.x.device
        self.links = tuple(link.to(device) for link in links(tree)[1:])
        self.parents = torch.empty_like(self.links[0])
        self.rows = torch.arange(tree.batch_size, dtype=torch.int32, device=device)
        self.starts = self.rows.new_tensor([i * tree.width for i in range(tree.batch_size + 1)])

    def conv(self) -> torch.Tensor:
        layer = self.layer
        out = self.conv_kernel(
            layer.x.unflatten(0, (layer.tree.batch_size, -1)).transpose(1, 2),
            layer.conv_states,
            layer.weight,
            layer.bias,
            "silu",
            conv_state_indices=layer.slots,
            intermediate_conv_window=self.windows,
            intermediate_state_indices=self.rows,
            retrieve_next_token=self.links[0],
            retrieve_next_sibling=self.links[1],
            retrieve_parent_token=self.parents,
        )
        return out.transpose(1, 2).flatten(0, 1)

    def delta(self, mixed: torch.Tensor) -> torch.Tensor:
        layer, shape = self.layer, self.layer.shape
        parts = mixed.split((shape.key_dim, shape.key_dim, shape.value_dim), dim=1)
        query, key = (part.unflatten(1, (shape.num_k_heads, -1)).unsqueeze(0) for part in parts[:2])
        out = self.delta_kernel(
            A_log=layer.a_log,
            a=layer.a,
            dt_bias=layer.dt_bias,
            softplus_beta=1.0,
            softplus_threshold=20.0,
            q=query,
            k=key,
            v=parts[2].unflatten(1, (shape.num_v_heads, -1)).unsqueeze(0),
            b=layer.b,
            initial_state_source=layer.states,
            initial_state_indices=layer.slots,
            cu_seqlens=self.starts,
            use_qk_l2norm_in_kernel=True,
            disable_state_update=True,
            intermediate_states_buffer=self.states,
            intermediate_state_indices=self.rows,
            cache_steps=layer.tree.width,
            retrieve_parent_token=self.parents,
        )
        return out.view(1, -1, shape.num_v_heads, shape.head_v_dim)


def host_buffers(
    shape: GDNShape, layers: int, batch: int, width: int, dtype: torch.dtype, device: str
) -> tuple[torch.Tensor, torch.Tensor]:
    size = (layers, batch, width)
    state = (shape.num_v_heads, shape.head_v_dim, shape.head_k_dim)
    return (
        torch.full((*size, *state), float("nan"), device=device),
        torch.full((*size, shape.conv_dim, shape.conv_kernel - 1), float("nan"), dtype=dtype, device=device),
    )


def check_host(device: str, quick: bool) -> dict[str, Any]:
    """SGLang's kernels on tree-shaped inputs: outputs, states and windows of every node against our twins."""
    errors = Errors()
    for width, batch, dtype in [(17, 2, torch.float32), (33, 1, torch.bfloat16)][: 1 if quick else 2]:
        generator = torch.Generator().manual_seed(width)
        layer = make_layer(generator, WIDE, tree_of(generator, batch, width), dtype=dtype)
        case, name = f"W={width} B={batch}", "f32" if dtype == torch.float32 else "bf16"
        moved = layer.to(device)
        # Its kernels take dense pools and tokens.
        moved = replace(moved, conv_states=moved.conv_states.contiguous(), x=moved.x.contiguous())
        moved = replace(moved, a=moved.a.contiguous(), b=moved.b.contiguous())
        record = TreeRecord.allocate(WIDE, 1, batch, width, dtype, dtype, "cpu")
        mixed = tree_conv_torch(*layer.conv_args(), record.layer(0), WIDE)
        expected = tree_delta_rule_torch(*layer.delta_args(mixed), record.layer(0), WIDE)
        states, windows = host_buffers(WIDE, 1, batch, width, dtype, device)
        host = HostLayer(moved, states[0], windows[0])
        # Its tree kernel adds up in another order than its decode kernel.
        errors.add(f"sglang conv {name}", case, host.conv(), mixed, LIMITS[dtype])
        errors.add(f"sglang delta {name}", case, host.delta(mixed.to(device)), expected, LIMITS[dtype])
        for node in range(width):
            paths = [path_to_root(row, node)[::-1] for row in layer.tree.parents.tolist()]
            lens = torch.tensor([len(path) for path in paths], dtype=torch.int32)
            rows = [path + [-1] * (width - len(path)) for path in paths]
            conv_states, ours = layer.conv_states[None].clone(), layer.states[None].clone()
            arguments = (layer.slots, torch.tensor(rows, dtype=torch.int32), lens, WIDE)
            commit_path_torch(record, conv_states, ours, *arguments)
            slots = layer.slots.long()
            errors.add(f"sglang state per node {name}", case, states[0, :, node], ours[0, slots], 5e-5)
            errors.add(
                f"sglang window per node {name}", case, windows[0, :, node], conv_states[0, slots], 0.0
            )
    return errors.report()


def check_decode(device: str, quick: bool) -> dict[str, Any]:
    """A chain of nodes against SGLang's token-by-token decode kernels in bf16: the convolution has the same bits."""
    from sglang.kernels.ops.attention.linear.fused_sigmoid_gating_recurrent import (
        fused_sigmoid_gating_delta_rule_update,
    )
    from sglang.kernels.ops.mamba.causal_conv1d_triton import causal_conv1d_update

    batch, width, shape = 3, 9, WIDE
    layer = make_layer(
        torch.Generator().manual_seed(5), shape, chain_tree(batch, width), dtype=torch.bfloat16
    ).to(device)
    record = TreeRecord.allocate(shape, 1, batch, width, torch.bfloat16, torch.bfloat16, device)
    mixed = tree_conv(*layer.conv_args(), record.layer(0), shape)
    out = tree_delta_rule(*layer.delta_args(mixed), record.layer(0), shape)
    windows, states = layer.conv_states[None].clone(), layer.states[None].clone()
    path = torch.arange(width, dtype=torch.int32, device=device).expand(batch, width)
    lens = torch.full((batch,), width, dtype=torch.int32, device=device)
    commit_path(record, windows, states, layer.slots, path, lens, shape)

    host_windows, host_states = layer.conv_states.contiguous(), layer.states.contiguous()
    starts = torch.arange(batch + 1, dtype=torch.int32, device=device)
    conv_rows, delta_rows = [], []
    for token in range(width):
        rows = torch.arange(batch, device=device) * width + token
        row = causal_conv1d_update(
            layer.x[rows].contiguous(),
            host_windows,
            layer.weight,
            layer.bias,
            "silu",
            conv_state_indices=layer.slots,
        )
        query, key, value = row.split((shape.key_dim, shape.key_dim, shape.value_dim), dim=1)
        delta = fused_sigmoid_gating_delta_rule_update(
            A_log=layer.a_log,
            a=layer.a[rows].contiguous(),
            dt_bias=layer.dt_bias,
            softplus_beta=1.0,
            softplus_threshold=20.0,
            q=query.unflatten(1, (shape.num_k_heads, -1)).unsqueeze(0).contiguous(),
            k=key.unflatten(1, (shape.num_k_heads, -1)).unsqueeze(0).contiguous(),
            v=value.unflatten(1, (shape.num_v_heads, -1)).unsqueeze(0).contiguous(),
            b=layer.b[rows].contiguous(),
            initial_state_source=host_states,
            initial_state_indices=layer.slots,
            cu_seqlens=starts,
            use_qk_l2norm_in_kernel=True,
        )
        conv_rows.append(row)
        delta_rows.append(delta.view(batch, shape.num_v_heads, shape.head_v_dim))
    host_conv = torch.stack(conv_rows, dim=1).flatten(0, 1)
    host_out = torch.stack(delta_rows, dim=1).flatten(0, 1)
    slots = layer.slots.long()
    same = {
        "conv": float((mixed == host_conv).double().mean()),
        "windows": float((windows[0, slots] == host_windows[slots]).double().mean()),
        "delta": float((out[0] == host_out).double().mean()),
        "states": float((states[0, slots] == host_states[slots]).double().mean()),
    }
    errors = Errors()
    errors.add("decode delta", "chain", out[0], host_out, LIMITS[torch.bfloat16])
    errors.add("decode states", "chain", states[0, slots], host_states[slots], 5e-5)
    report = errors.report()
    if same["conv"] < 1 or same["windows"] < 1:
        report["failed"].append("convolution")
    return report | {"equal_bits": same}


class Step:
    """All layers of a verify and its commit on one device, for graphs and times."""

    def __init__(self, batch: int, width: int, layers: int, device: str, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        shape = WIDE
        tree = tree_of(generator, batch, width)
        one = make_layer(generator, replace(shape, num_v_heads=16), tree, dtype=torch.bfloat16).to(device)
        chance = torch.Generator(device).manual_seed(seed)

        def normal(*size: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> torch.Tensor:
            return (torch.randn(*size, device=device, generator=chance) * scale).to(dtype)

        rows, heads, pool = batch * width, shape.num_v_heads, batch + 1
        self.tree, self.shape, self.layers = one.tree, shape, layers
        self.conv_states = normal(layers, pool, shape.conv_dim, shape.conv_kernel - 1)
        self.states = normal(layers, pool, heads, 128, 128, dtype=torch.float32, scale=0.3)
        self.slots = torch.arange(1, batch + 1, dtype=torch.int32, device=device)
        self.record = TreeRecord.allocate(shape, layers, batch, width, torch.bfloat16, torch.bfloat16, device)
        deepest = [row.index(min(ACCEPTED - 1, max(row))) for row in tree.depths.tolist()]
        paths = [path_to_root(p, node)[::-1] for p, node in zip(tree.parents.tolist(), deepest, strict=True)]
        self.last = torch.tensor([path[-1] for path in paths], device=device)
        self.path = torch.tensor(
            [p + [-1] * (DEPTH + 1 - len(p)) for p in paths], dtype=torch.int32, device=device
        )
        self.lens = torch.tensor([len(path) for path in paths], dtype=torch.int32, device=device)
        self.layer = Layer(
            shape=shape,
            tree=one.tree,
            x=normal(rows, shape.conv_dim),
            weight=normal(shape.conv_dim, shape.conv_kernel, scale=0.5),
            bias=None,
            a=normal(rows, heads),
            b=normal(rows, heads),
            a_log=normal(heads, dtype=torch.float32),
            dt_bias=normal(heads, dtype=torch.float32),
            conv_states=self.conv_states[0],
            states=self.states[0],
            slots=self.slots,
            taps=ancestor_taps(one.tree, shape.conv_kernel),
            mask=one.mask,
        )
        self.views = [
            replace(self.layer, conv_states=self.conv_states[i], states=self.states[i]) for i in range(layers)
        ]

    def conv(self) -> list[torch.Tensor]:
        return [
            tree_conv(*view.conv_args(), self.record.layer(i), self.shape)
            for i, view in enumerate(self.views)
        ]

    def delta(self, mixed: torch.Tensor, config: tuple[int, int] | None = None) -> list[torch.Tensor]:
        return [
            tree_delta_rule_triton(*view.delta_args(mixed), self.record.layer(i), self.shape, config)
            for i, view in enumerate(self.views)
        ]

    def verify(self) -> list[torch.Tensor]:
        outs = []
        for i, view in enumerate(self.views):
            mixed = tree_conv(*view.conv_args(), self.record.layer(i), self.shape)
            outs.append(tree_delta_rule(*view.delta_args(mixed), self.record.layer(i), self.shape))
        return outs

    def commit(self, config: tuple[int, int] | None = None) -> None:
        arguments = (self.conv_states, self.states, self.slots, self.path, self.lens, self.shape)
        if config is None:
            commit_path(self.record, *arguments)
        else:
            commit_path_triton(self.record, *arguments, config=config)


def check_graph(device: str, quick: bool) -> dict[str, Any]:
    """Verify and commit captured once and replayed with other inputs equal eager runs, bit for bit."""
    replays = 0
    for batch, width in ((2, 17), (1, 65))[: 1 if quick else 2]:
        step = Step(batch, width, 2, device)
        step.verify()
        step.commit()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outs = step.verify()
            step.commit()
        for seed in (1, 2, 3):
            other = Step(batch, width, 2, device, seed)
            for name in ("conv_states", "states", "path", "lens"):
                getattr(step, name).copy_(getattr(other, name))
            for name in ("x", "a", "b", "weight", "a_log", "dt_bias", "taps", "mask"):
                getattr(step.layer, name).copy_(getattr(other.layer, name))
            graph.replay()
            expected = other.verify()
            other.commit()
            torch.cuda.synchronize()
            for left, right in zip(outs, expected, strict=True):
                assert torch.equal(left, right), f"outputs W={width} seed={seed}"
            assert torch.equal(step.states, other.states), f"states W={width} seed={seed}"
            assert torch.equal(step.conv_states, other.conv_states), f"windows W={width} seed={seed}"
            replays += 1
    return {"replays": replays}


def microseconds(function: Callable[[], Any], rounds: int = 50) -> float:
    return device_time.microseconds(function, rounds=rounds)


def host_times(step: Step, device: str, layers: int) -> dict[str, float]:
    """SGLang's side, per layer, over a few layers."""
    from sglang.kernels.ops.mamba.mamba_state_scatter_triton import (
        fused_conv_window_scatter_with_mask,
        fused_mamba_state_scatter_with_mask,
    )

    batch, width = step.tree.parents.shape
    states, windows = host_buffers(WIDE, layers, batch, width, torch.bfloat16, device)
    hosts = [HostLayer(step.views[i], states[i], windows[i]) for i in range(layers)]
    mixed = hosts[0].conv()

    def commit() -> None:
        fused_mamba_state_scatter_with_mask(step.states[:layers], states, step.slots, step.last)
        fused_conv_window_scatter_with_mask(step.conv_states[:layers], windows, step.slots, step.last)

    return {
        "conv_us": round(microseconds(lambda: [host.conv() for host in hosts]) / layers, 2),
        "delta_us": round(microseconds(lambda: [host.delta(mixed) for host in hosts]) / layers, 2),
        "commit_us": round(microseconds(commit) / layers, 2),
    }


def time_shapes(quick: bool) -> list[tuple[int, int]]:
    widths = (17, 64) if quick else (16, 17, 32, 33, 64, 65)
    return [(batch, width) for batch in (1, 8) for width in widths]


def measure(device: str, quick: bool) -> dict[str, Any]:
    """us per layer, and ms for all 48; SGLang's over 4 layers, scaled, since its buffers are large."""
    table: dict[str, Any] = {}
    for batch, width in time_shapes(quick):
        layers = 16 if quick else LAYERS
        step = Step(batch, width, layers, device)
        mixed = tree_conv(*step.layer.conv_args(), step.record.layer(0), WIDE)
        row: dict[str, Any] = {
            "ours": {
                "conv_us": round(microseconds(step.conv) / layers, 2),
                "delta_us": round(microseconds(lambda s=step, m=mixed: s.delta(m)) / layers, 2),
                "commit_us": round(microseconds(step.commit) / layers, 2),
            }
        }
        try:
            row["sglang"] = host_times(step, device, 4)
        except Exception as problem:
            traceback.print_exc()
            row["sglang_failed"] = repr(problem)[:300]
        for side in ("ours", "sglang"):
            if side in row:
                row[f"{side}_48_layers_ms"] = round(sum(row[side].values()) * LAYERS / 1000, 3)
        table[f"batch {batch} width {width}"] = row
        del step, mixed
        torch.cuda.empty_cache()
    return table


def node_bytes(device: str, quick: bool) -> dict[str, Any]:
    del device, quick
    ours = record_bytes_per_node(WIDE, torch.bfloat16, torch.bfloat16)
    state = WIDE.num_v_heads * WIDE.head_v_dim * WIDE.head_k_dim * 4
    window = WIDE.conv_dim * (WIDE.conv_kernel - 1) * 2
    return {
        "ours_per_layer": ours,
        "sglang_per_layer": state + window,
        "ratio": round((state + window) / ours, 1),
    }


def sweep(device: str, quick: bool) -> dict[str, Any]:
    """us per layer of the delta kernel by (value channels, warps), and of the commit."""
    table: dict[str, Any] = {}
    for batch in (1, 8):
        for width in (17, 65) if quick else (17, 33, 65, 128):
            step = Step(batch, width, 8, device)
            mixed = tree_conv(*step.layer.conv_args(), step.record.layer(0), WIDE)
            row: dict[str, Any] = {"default": list(launch_config(width))}
            for config in CONFIGS:
                try:
                    time_us = microseconds(lambda s=step, m=mixed, c=config: s.delta(m, c), 50)
                    row[f"{config}"] = round(time_us / 8, 2)
                except Exception as problem:
                    row[f"{config}"] = repr(problem)[:120]
            table[f"delta batch {batch} width {width}"] = row
        step = Step(batch, 17, LAYERS, device)
        step.verify()
        table[f"commit batch {batch}"] = {
            f"{config}": round(microseconds(lambda s=step, c=config: s.commit(c)) / LAYERS, 2)
            for config in [(8, 1), (8, 4), (16, 2), (16, 4), (32, 4), (32, 8), (64, 8), (128, 8)]
        }
    return table


def prewarm(device: str, quick: bool) -> dict[str, Any]:
    """Compile the slow kernels' variants side by side: the parts then find them in Triton's cache."""
    start = time.perf_counter()
    jobs = [f"timed {width} {config}" for width in (17, 33, 65, 128) for config in range(len(CONFIGS))]
    jobs += [f"float32 {width} 0" for width in (17, 33, 65, 128)]
    # SGLang's convolution unrolls over the width and specialises on the batch.
    jobs += [f"host {width} {batch}" for batch, width in time_shapes(quick)]
    if quick:
        jobs = [job for job in jobs if job.split()[1] in ("17", "64", "65")]
    command = [sys.executable, str(Path(__file__).resolve()), "--device", device, "--compile"]
    running: list[subprocess.Popen[bytes]] = []
    for job in jobs:
        while sum(process.poll() is None for process in running) >= 12:
            time.sleep(0.1)
        running.append(
            subprocess.Popen([*command, job], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        )
    codes = [process.wait() for process in running]
    return {
        "jobs": len(jobs),
        "not_compiled": sum(map(bool, codes)),
        "seconds": round(time.perf_counter() - start, 1),
    }


def compile_one(device: str, job: str) -> None:
    kind, width, config = job.split()
    if kind == "timed":
        step = Step(1, int(width), 1, device)
        mixed = tree_conv(*step.layer.conv_args(), step.record.layer(0), WIDE)
        step.delta(mixed, CONFIGS[int(config)])
        return
    if kind == "host":
        step = Step(int(config), int(width), 1, device)
        states, windows = host_buffers(WIDE, 1, int(config), int(width), torch.bfloat16, device)
        host = HostLayer(step.views[0], states[0], windows[0])
        host.delta(host.conv())
        return
    generator = torch.Generator().manual_seed(0)
    layer = make_layer(generator, WIDE, deep_tree(generator, 1, int(width))).to(device)
    tree_delta_rule(*layer.delta_args(layer.x.contiguous()), poisoned_record(layer).layer(0), WIDE)


def check_reference(device: str, quick: bool) -> dict[str, Any]:
    """What needs no GPU: the cases, the twins on themselves, the step's inputs."""
    del quick
    errors = Errors()
    generator = torch.Generator().manual_seed(0)
    for tree in (tree_of(generator, 2, 17), random_tree(generator, 2, 17)):
        tree.check_integrity()
        layer = make_layer(generator, NARROW, tree).to(device)
        record = poisoned_record(layer).layer(0)
        mixed = tree_conv(*layer.conv_args(), record, NARROW)
        out = tree_delta_rule(*layer.delta_args(mixed), record, NARROW)
        errors.add("itself", "cpu", used_only(layer, out), used_only(layer, out.clone()), 0.0)
    step = Step(2, 17, 2, device)
    assert all(out.isfinite().all() for out in step.verify())
    step.commit()
    assert step.states.isfinite().all()
    return errors.report()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer cases and shapes")
    parser.add_argument("--out", type=Path, help="also write the JSON object there")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--part", action="append", help="only these parts of the report")
    parser.add_argument("--compile", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device", file=sys.stderr)
        return 1
    if arguments.compile:
        compile_one(arguments.device, arguments.compile)
        return 0
    report: dict[str, Any] = {"torch": torch.__version__, "failed": []}
    parts: dict[str, Callable[[str, bool], dict[str, Any]]] = {
        "bytes": node_bytes,
        "reference": check_reference,
    }
    if arguments.device == "cuda":
        import triton

        report |= {"device": torch.cuda.get_device_name(), "triton": triton.__version__}
        parts = {
            "bytes": node_bytes,
            "prewarm": prewarm,
            "twins": check_twins,
            "real_shapes": check_real_shapes,
            "sglang": check_host,
            "decode": check_decode,
            "graph": check_graph,
            "times": measure,
            "sweep": sweep,
        }
    for name, part in parts.items():
        if arguments.part and name not in arguments.part:
            continue
        start = time.perf_counter()
        try:
            report[name] = part(arguments.device, arguments.quick)
            if report[name].get("failed"):
                report["failed"].append(name)
        except Exception as problem:
            traceback.print_exc()
            report[name] = {"error": repr(problem)[:500]}
            report["failed"].append(name)
        report[name]["part_seconds"] = round(time.perf_counter() - start, 1)
        print(name, json.dumps(report[name]), file=sys.stderr, flush=True)
        if arguments.out:
            arguments.out.write_text(json.dumps(report, indent=1))
    print(json.dumps(report))
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())

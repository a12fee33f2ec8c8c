"""Every recurrent Triton kernel against its plain torch twin, on CUDA or, interpreted, on the CPU.

As a script, `TRITON_INTERPRET=1 python recurrent_twins.py NAME` runs one comparison on the CPU and prints how
many cases it held.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch

from sglang_ddtree.recurrent import GDNShape, LayerRecord
from sglang_ddtree.recurrent.commit_torch import commit_path_torch
from sglang_ddtree.recurrent.commit_triton import commit_path_triton
from sglang_ddtree.recurrent.conv_torch import tree_conv_torch
from sglang_ddtree.recurrent.conv_triton import tree_conv_triton
from sglang_ddtree.recurrent.delta_torch import tree_delta_rule_torch
from sglang_ddtree.recurrent.delta_triton import tree_delta_rule_triton
from sglang_ddtree.recurrent.taps import ancestor_taps_torch
from sglang_ddtree.recurrent.taps_triton import ancestor_taps_triton
from unit.recurrent.recurrent_cases import (
    Layer,
    branching_tree,
    chain_tree,
    deep_tree,
    make_commit,
    make_layer,
    poisoned_record,
)
from unit.tree.tree_cases import random_tree

SHAPES = (GDNShape(1, 2, 16, 16, 4), GDNShape(2, 4, 16, 16, 4))
DTYPES = (torch.float32, torch.bfloat16)


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Greatest difference over the greatest magnitude; NaN must meet NaN."""
    got, expected = got.detach().cpu().double(), expected.detach().cpu().double()
    assert torch.equal(got.isnan(), expected.isnan()), "NaN in other places"
    difference = (got - expected).nan_to_num().abs().max()
    return float(difference / expected.nan_to_num().abs().max().clamp(min=1e-20))


def assert_close(got: torch.Tensor, expected: torch.Tensor, case: str, *, limit: float | None = None) -> None:
    """Within the rounding of the expected dtype, or within `limit`."""
    assert got.dtype == expected.dtype, (case, got.dtype, expected.dtype)
    limit = limit or {torch.float32: 2e-5, torch.bfloat16: 8e-3}[expected.dtype]
    error = relative_error(got, expected)
    assert error <= limit, f"{case}: relative error {error:.2e}, allowed {limit:.0e}"


def assert_close_records(
    got: LayerRecord, expected: LayerRecord, case: str, *, limit: float | None = None
) -> None:
    for field in fields(expected):
        left, right = getattr(got, field.name), getattr(expected, field.name)
        assert_close(left, right, f"{case} {field.name}", limit=limit)


def live(layer: Layer, out: torch.Tensor) -> torch.Tensor:
    """`out` [B * W, ...] with unused slots, whose contents mean nothing, at 0."""
    tree = layer.tree
    used = torch.arange(tree.width, device=out.device) < tree.node_count.to(out.device)[:, None]
    assert out.isfinite().all()
    return torch.where(used.flatten()[:, None], out.flatten(1), 0)


def taps(device: str, cases: int) -> int:
    draw, generator = random.Random(1), torch.Generator().manual_seed(1)
    for number in range(cases):
        tree = random_tree(generator, draw.randint(1, 3), draw.randint(1, 70), vocab=400)
        batch, width = tree.parents.shape
        kernel = draw.randint(2, 5)
        expected = torch.full((batch + 2, width, kernel), 77, dtype=torch.int32)
        got = expected.to(device)
        ancestor_taps_torch(tree, expected[:batch])
        ancestor_taps_triton(_tree_to(tree, device), got[:batch])
        assert torch.equal(got.cpu(), expected), f"case {number}"
    return cases


def _tree_to(tree: Any, device: str) -> Any:
    tensors = (tree.tokens, tree.parents, tree.depths, tree.node_count)
    return type(tree)(*(tensor.to(device) for tensor in tensors), tree.max_depth)


def conv(device: str, cases: int) -> int:
    draw, generator = random.Random(2), torch.Generator().manual_seed(2)
    for number in range(cases):
        shape = GDNShape(*draw.choice(((1, 2), (2, 4))), 16, 16, draw.choice((2, 4, 4, 5)))
        batch = draw.randint(1, 3)
        tree = random_tree(generator, batch, draw.choice((2, 9, 17, 33)), vocab=400)
        dtype = draw.choice(DTYPES)
        conv_dtype = draw.choice((dtype, torch.bfloat16))
        layer = make_layer(
            generator,
            shape,
            tree,
            dtype=dtype,
            conv_dtype=conv_dtype,
            bias=draw.random() < 0.5,
            padded=(0,) if number % 3 == 0 else (),
        )
        expected_record = poisoned_record(layer, spare=number % 2).layer(0)
        expected = tree_conv_torch(*layer.conv_args(), expected_record, shape)
        moved = layer.to(device)
        record = poisoned_record(moved, spare=number % 2).layer(0)
        got = tree_conv_triton(*moved.conv_args(), record, shape)
        case = f"case {number}: {shape} {list(tree.parents.shape)} {dtype} {conv_dtype}"
        # The interpreter cuts bfloat16 off instead of rounding it: inputs on their way and products.
        limit = 3e-2 if device == "cpu" and conv_dtype == torch.bfloat16 else None
        assert_close(got, expected, case, limit=limit)
        assert_close_records(record, expected_record, case, limit=limit)
        assert torch.equal(moved.conv_states.cpu(), layer.conv_states), case
    return cases


def delta(device: str, cases: int) -> int:
    """Trees wide and deep, with unused slots and padded rows, both state dtypes."""
    draw, generator = random.Random(3), torch.Generator().manual_seed(3)
    widths = (1, 2, 9, 17, 33)
    for number in range(cases):
        shape = draw.choice(SHAPES)
        width, batch = widths[number % len(widths)], draw.randint(1, 2)
        if number % 4 == 3:
            tree = deep_tree(generator, batch, width) if width > 1 else chain_tree(batch, width)
        else:
            tree = random_tree(generator, batch, width, vocab=400)
        dtype, state_dtype = draw.choice(DTYPES), draw.choice(DTYPES)
        padded = (0,) if number % 5 == 4 and batch > 1 else ()
        layer = make_layer(generator, shape, tree, dtype=dtype, state_dtype=state_dtype, padded=padded)
        mixed = torch.randn(batch * width, shape.conv_dim, generator=generator).to(dtype)
        expected_record = poisoned_record(layer).layer(0)
        expected = tree_delta_rule_torch(*layer.delta_args(mixed), expected_record, shape)
        moved = layer.to(device)
        record = poisoned_record(moved).layer(0)
        got = tree_delta_rule_triton(*moved.delta_args(mixed.to(device)), record, shape)
        case = (
            f"case {number}: {shape} {list(tree.parents.shape)} depth {tree.max_depth} {dtype} {state_dtype}"
        )
        assert_close(live(layer, got[0].cpu()), live(layer, expected[0]), case)
        assert_close_records(record, expected_record, case)
    return cases


def commit(device: str, cases: int) -> int:
    draw, generator = random.Random(4), torch.Generator().manual_seed(4)
    for number in range(cases):
        shape = GDNShape(*draw.choice(((1, 2), (2, 4))), 16, 16, draw.choice((2, 4, 4, 5)))
        tree = branching_tree(generator, 5, draw.choice((2, 9, 17)))
        dtype, state_dtype = draw.choice(DTYPES), draw.choice(DTYPES)
        case = make_commit(
            generator, shape, tree, dtype=dtype, state_dtype=state_dtype, padded=(0,) if number % 2 else ()
        )
        moved, track = case.to(device), number % 3 != 2
        commit_path_torch(*case.args(track=track))
        commit_path_triton(*moved.args(track=track))
        name = f"case {number}: {shape} {dtype} {state_dtype}"
        assert torch.equal(moved.conv_states.cpu(), case.conv_states), name
        # Cut off after every token, see `conv`.
        assert_close(
            moved.states,
            case.states,
            name,
            limit=5e-2 if device == "cpu" and state_dtype != torch.float32 else None,
        )
    return cases


COMPARISONS: dict[str, Callable[[str, int], int]] = {
    function.__name__: function for function in (taps, conv, delta, commit)
}

# Cases that the interpreter gets through in seconds.
INTERPRETED = {"taps": 20, "conv": 12, "delta": 15, "commit": 6}

if __name__ == "__main__":
    print(COMPARISONS[sys.argv[1]]("cpu", INTERPRETED[sys.argv[1]]))

from dataclasses import replace

import pytest
import torch

from sglang_ddtree.recurrent import GDNShape, tree_delta_rule
from sglang_ddtree.recurrent.delta_triton import MAX_WIDTH, launch_config, tree_delta_rule_triton
from sglang_ddtree.tree import DraftTree, ancestor_mask
from unit.recurrent.recurrent_cases import (
    SMALL,
    Layer,
    branching_tree,
    chain_tree,
    deep_tree,
    make_layer,
    naive_delta,
    naive_gates,
    poisoned_record,
    used_nodes,
)

TREES = {
    "random": lambda generator: branching_tree(generator, 3, 17),
    "deep": lambda generator: deep_tree(generator, 2, 33),
    "chain": lambda _: chain_tree(2, 9),
    "root": lambda _: chain_tree(2, 1),
}


def mixed_of(layer: Layer, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(layer.x.shape, generator=generator).to(layer.x.dtype)


@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", TREES)
def test_every_node_equals_a_plain_chain_to_it(
    kind: str, dtype: torch.dtype, state_dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(len(kind))
    tree: DraftTree = TREES[kind](generator)
    layer = make_layer(generator, SMALL, tree, dtype=dtype, state_dtype=state_dtype)
    states = layer.states.clone()
    mixed = mixed_of(layer, generator)
    record = poisoned_record(layer, spare=1).layer(0)
    got = tree_delta_rule(*layer.delta_args(mixed), record, SMALL)
    width = tree.width
    assert got.shape == (1, tree.batch_size * width, 4, 16)
    assert got.dtype == dtype
    assert got.isfinite().all()
    limits = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 8e-3, "atol": 1e-4}
    for request, node in used_nodes(tree):
        row = request * width + node
        torch.testing.assert_close(got[0, row].double(), naive_delta(layer, mixed, request, node), **limits)
        for recorded, expected in zip((record.log_decay, record.beta), naive_gates(layer, row), strict=True):
            torch.testing.assert_close(recorded[request, node].double(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(layer.states, states)
    assert record.beta[:, width:].isnan().all()
    assert record.beta[tree.batch_size :].isnan().all()


def test_a_padded_row_yields_zeros_and_leaves_its_record() -> None:
    generator = torch.Generator().manual_seed(0)
    layer = make_layer(generator, SMALL, branching_tree(generator, 3, 9), padded=(0, 2))
    mixed = mixed_of(layer, generator)
    mixed[:9] = float("nan")
    record = poisoned_record(layer).layer(0)
    got = tree_delta_rule(*layer.delta_args(mixed), record, SMALL)[0].unflatten(0, (3, 9))
    assert (got[[0, 2]] == 0).all()
    assert got[1].isfinite().all()
    assert (got[1, 0] != 0).any()
    for buffer in (record.log_decay, record.beta):
        assert buffer[[0, 2]].isnan().all()
        assert buffer[1].isfinite().all()


def test_a_chain_in_the_place_of_the_tree_changes_the_result() -> None:
    generator = torch.Generator().manual_seed(1)
    layer = make_layer(generator, SMALL, branching_tree(generator, 1, 9))
    mixed = mixed_of(layer, generator)
    got = tree_delta_rule(*layer.delta_args(mixed), poisoned_record(layer).layer(0), SMALL)
    chain = chain_tree(1, 9)
    chained = replace(layer, tree=chain, mask=ancestor_mask(chain))
    other = tree_delta_rule(*chained.delta_args(mixed), poisoned_record(layer).layer(0), SMALL)
    assert (got - other).abs().max() > 0.01


def test_a_deeper_bound_than_needed_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(2)
    layer = make_layer(generator, SMALL, branching_tree(generator, 2, 9))
    mixed = mixed_of(layer, generator)
    got = tree_delta_rule(*layer.delta_args(mixed), poisoned_record(layer).layer(0), SMALL)
    args = (*layer.delta_args(mixed)[:-1], 30)
    assert torch.equal(got, tree_delta_rule(*args, poisoned_record(layer).layer(0), SMALL))


REJECTED = {
    "a": lambda layer: {"a": layer.a[1:]},
    "b": lambda layer: {"b": layer.b[:, 1:]},
    "a_log": lambda layer: {"a_log": layer.a_log[1:]},
    "dt_bias": lambda layer: {"dt_bias": layer.dt_bias[1:]},
    "slots": lambda layer: {"slots": layer.slots[1:]},
    "states": lambda layer: {"states": layer.states.transpose(2, 3)},
    "ancestor_mask": lambda layer: {"mask": layer.mask[:, :, 1:]},
}


@pytest.mark.parametrize("name", REJECTED)
def test_what_does_not_fit_is_refused_by_name(name: str) -> None:
    layer = make_layer(torch.Generator().manual_seed(0), SMALL, chain_tree(2, 5))
    wrong = replace(layer, **REJECTED[name](layer))
    with pytest.raises(ValueError, match=f"{name} is .*expected"):
        tree_delta_rule(*wrong.delta_args(layer.x), poisoned_record(layer).layer(0), SMALL)


def test_the_kernel_refuses_what_its_tiles_do_not_hold() -> None:
    pytest.importorskip("triton")

    def refused(shape: GDNShape, width: int, match: str) -> None:
        layer = make_layer(torch.Generator().manual_seed(0), shape, chain_tree(1, width))
        with pytest.raises(ValueError, match=match):
            tree_delta_rule_triton(*layer.delta_args(layer.x), poisoned_record(layer).layer(0), shape)

    refused(SMALL, MAX_WIDTH + 1, f"width is {MAX_WIDTH + 1}, the kernel takes at most {MAX_WIDTH}")
    refused(replace(SMALL, head_k_dim=24), 3, "head_k_dim is 24")
    refused(replace(SMALL, head_v_dim=8), 3, "head_v_dim is 8")
    refused(SMALL, 3, "CUDA tensors, got cpu")


@pytest.mark.parametrize("width", [1, 17, 33, 65, 66, MAX_WIDTH])
def test_every_width_has_a_launch_configuration(width: int) -> None:
    block_v, warps = launch_config(width)
    assert block_v in (16, 32, 64)
    assert warps in (1, 2, 4, 8)

from dataclasses import fields, replace

import pytest
import torch

from sglang_ddtree.recurrent import ancestor_taps, tree_conv
from unit.recurrent.recurrent_cases import (
    SMALL,
    Layer,
    branching_tree,
    chain_tree,
    make_layer,
    naive_conv,
    poisoned_record,
    used_nodes,
)

DTYPES = [(torch.float32, torch.float32), (torch.float32, torch.bfloat16), (torch.bfloat16, torch.bfloat16)]


def expected_rows(layer: Layer) -> torch.Tensor:
    width = layer.tree.width
    rows = torch.full(
        (layer.tree.batch_size * width, layer.shape.conv_dim), float("nan"), dtype=torch.float64
    )
    for request, node in used_nodes(layer.tree):
        if layer.slots[request] >= 0:
            rows[request * width + node] = naive_conv(layer, request, node)
    return rows


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    return {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 8e-3, "atol": 1e-3}


@pytest.mark.parametrize(("dtype", "conv_dtype"), DTYPES)
@pytest.mark.parametrize("kernel", [2, 4, 5])
def test_every_node_convolves_its_own_path(dtype: torch.dtype, conv_dtype: torch.dtype, kernel: int) -> None:
    generator = torch.Generator().manual_seed(kernel)
    shape = replace(SMALL, conv_kernel=kernel)
    tree = branching_tree(generator, 3, 17)
    layer = make_layer(generator, shape, tree, dtype=dtype, conv_dtype=conv_dtype, padded=(1,))
    window = layer.conv_states.clone()
    record = poisoned_record(layer, spare=2).layer(0)
    got = tree_conv(*layer.conv_args(), record, shape)
    assert got.dtype == dtype
    expected = expected_rows(layer)
    live = expected.isfinite()
    torch.testing.assert_close(got.double()[live], expected[live], **tolerance(dtype))
    assert torch.equal(layer.conv_states, window)

    assert (got.unflatten(0, (3, 17))[1] == 0).all()
    _, keys, values = got.unflatten(0, (3, 17)).split((shape.key_dim, shape.key_dim, shape.value_dim), dim=2)
    for request in (0, 2):
        inputs = layer.x.unflatten(0, (3, 17))[request].to(conv_dtype)
        assert torch.equal(record.inputs[request, :17], inputs)
        assert torch.equal(record.keys[request, :17], keys[request])
        assert torch.equal(record.values[request, :17], values[request])
    for name in ("inputs", "keys", "values"):
        buffer = getattr(record, name)
        assert buffer[1].isnan().all()
        assert buffer[3:].isnan().all()
        assert buffer[:, 17:].isnan().all()


@pytest.mark.parametrize("activation", [None, "silu", "swish"])
def test_activation_and_bias_are_optional(activation: str | None) -> None:
    layer = make_layer(torch.Generator().manual_seed(0), SMALL, chain_tree(1, 5), bias=False)
    record = poisoned_record(layer).layer(0)
    args = (layer.x, layer.weight, None, activation, layer.conv_states, layer.slots, layer.taps)
    got = tree_conv(*args, record, SMALL)
    inputs = torch.cat((layer.conv_states[layer.slots[0].long()], layer.x.T), dim=1)
    plain = torch.nn.functional.conv1d(inputs[None], layer.weight[:, None], groups=SMALL.conv_dim)[0].T
    expected = plain if activation is None else torch.nn.functional.silu(plain)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_a_chain_in_the_place_of_the_tree_changes_the_result() -> None:
    generator = torch.Generator().manual_seed(3)
    layer = make_layer(generator, SMALL, branching_tree(generator, 1, 9))
    got = tree_conv(*layer.conv_args(), poisoned_record(layer).layer(0), SMALL)
    chained = replace(layer, taps=ancestor_taps(chain_tree(1, 9), 4))
    other = tree_conv(*chained.conv_args(), poisoned_record(layer).layer(0), SMALL)
    assert (got - other).abs().max() > 0.1


def reject_cases(layer: Layer) -> dict[str, dict[str, object]]:
    return {
        "taps": {"taps": layer.taps[:, :, :3]},
        "x": {"x": layer.x[:-1]},
        "weight": {"weight": layer.weight[:, 1:]},
        "bias": {"bias": layer.weight[:, :2]},
        "conv_states": {"conv_states": layer.conv_states[:, :, 1:]},
        "slots": {"slots": layer.slots[:1]},
    }


@pytest.mark.parametrize("name", ["taps", "x", "weight", "bias", "conv_states", "slots"])
def test_what_does_not_fit_is_refused_by_name(name: str) -> None:
    layer = make_layer(torch.Generator().manual_seed(0), SMALL, chain_tree(2, 5))
    record = poisoned_record(layer).layer(0)
    with pytest.raises(ValueError, match=f"{name} is .*expected"):
        tree_conv(*replace(layer, **reject_cases(layer)[name]).conv_args(), record, SMALL)


def test_small_records_and_unknown_activations_are_refused() -> None:
    layer = make_layer(torch.Generator().manual_seed(0), SMALL, chain_tree(2, 5))
    record = poisoned_record(layer, rows=2).layer(0)
    short = type(record)(*(getattr(record, field.name)[:1] for field in fields(record)))
    with pytest.raises(ValueError, match="holds 1 requests of 5"):
        tree_conv(*layer.conv_args(), short, SMALL)
    args = list(layer.conv_args())
    args[3] = "gelu"
    with pytest.raises(ValueError, match="'gelu'"):
        tree_conv(*args, record, SMALL)

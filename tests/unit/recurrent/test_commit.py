from dataclasses import replace

import pytest
import torch

from sglang_ddtree.recurrent import TreeRecord, commit_path, tree_conv, tree_delta_rule
from unit.recurrent.recurrent_cases import (
    SMALL,
    Commit,
    branching_tree,
    chain_tree,
    make_commit,
    make_layer,
    naive_commit,
)
from unit.tree.tree_cases import path_to_root


def assert_states_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    if got.dtype == torch.float32:
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
        return
    # float32 and float64 fall on different sides of a rounding boundary now and then, never systematically.
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=4e-3)
    assert (got != expected).double().mean() < 0.01


@pytest.mark.parametrize("track", [True, False])
@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kernel", "dtype"), [(2, torch.float32), (4, torch.bfloat16), (5, torch.float32)])
def test_the_accepted_path_is_replayed_token_by_token(
    kernel: int, dtype: torch.dtype, state_dtype: torch.dtype, track: bool
) -> None:
    generator = torch.Generator().manual_seed(kernel)
    tree = branching_tree(generator, 6, 9)
    shape = replace(SMALL, conv_kernel=kernel)
    case = make_commit(generator, shape, tree, dtype=dtype, state_dtype=state_dtype, padded=(4,))
    conv_states, states = naive_commit(case, track=track)
    untouched = case.states.clone()
    commit_path(*case.args(track=track))
    assert torch.equal(case.conv_states, conv_states)
    assert_states_close(case.states, states)
    # Slots that nobody names keep every bit.
    named = case.slots[case.slots >= 0].tolist()
    if track:
        named += case.track_slots[case.slots >= 0].tolist()
    others = [slot for slot in range(states.shape[1]) if slot not in named]
    assert torch.equal(case.states[:, others], untouched[:, others])


def test_a_middle_node_is_tracked_beside_the_last() -> None:
    generator = torch.Generator().manual_seed(0)
    case = make_commit(generator, SMALL, chain_tree(1, 6))
    case.path = torch.arange(6, dtype=torch.int32)[None]
    case.lens, case.track_lens = torch.tensor([5], dtype=torch.int32), torch.tensor([2], dtype=torch.int32)
    conv_states, states = naive_commit(case)
    commit_path(*case.args())
    assert torch.equal(case.conv_states, conv_states)
    assert_states_close(case.states, states)
    slot, track = int(case.slots[0]), int(case.track_slots[0])
    assert (case.states[:, slot] - case.states[:, track]).abs().max() > 0.01


def test_the_order_of_the_path_matters() -> None:
    def committed(path: list[int]) -> Commit:
        case = make_commit(torch.Generator().manual_seed(1), SMALL, chain_tree(1, 6))
        case.path = torch.tensor([path], dtype=torch.int32)
        case.lens = torch.tensor([len(path)], dtype=torch.int32)
        commit_path(*case.args(track=False))
        return case

    one, other = committed([0, 2, 5]), committed([0, 5, 2])
    assert (one.states - other.states).abs().max() > 0.01
    assert not torch.equal(one.conv_states, other.conv_states)


def test_a_batch_of_padded_rows_does_nothing() -> None:
    case = make_commit(torch.Generator().manual_seed(2), SMALL, chain_tree(2, 4), padded=(0, 1))
    before = case.states.clone(), case.conv_states.clone()
    commit_path(*case.args())
    assert torch.equal(case.states, before[0])
    assert torch.equal(case.conv_states, before[1])


def test_committing_a_path_equals_decoding_it_token_by_token() -> None:
    """Verify, accept and commit leave what a chain of single-token forwards leaves, and yield its outputs."""
    generator = torch.Generator().manual_seed(5)
    tree = branching_tree(generator, 1, 12)
    layer = make_layer(generator, SMALL, tree)
    leaf = int(tree.depths[0].argmax())
    path = path_to_root(tree.parents[0].tolist(), leaf)[::-1]
    single = make_layer(torch.Generator().manual_seed(6), SMALL, chain_tree(1, 1))
    single.conv_states, single.states = layer.conv_states.clone(), layer.states.clone()
    single.weight, single.bias, single.slots = layer.weight, layer.bias, layer.slots
    single.a_log, single.dt_bias = layer.a_log, layer.dt_bias

    def forward(of: object, record: TreeRecord) -> torch.Tensor:
        mixed = tree_conv(*of.conv_args(), record.layer(0), SMALL)  # type: ignore[attr-defined]
        return tree_delta_rule(*of.delta_args(mixed), record.layer(0), SMALL)[0]  # type: ignore[attr-defined]

    def commit(of: object, record: TreeRecord, nodes: list[int]) -> None:
        commit_path(
            record,
            of.conv_states[None],  # type: ignore[attr-defined]
            of.states[None],  # type: ignore[attr-defined]
            layer.slots,
            torch.tensor([nodes], dtype=torch.int32),
            torch.tensor([len(nodes)], dtype=torch.int32),
            SMALL,
        )

    record = TreeRecord.allocate(SMALL, 1, 1, 12, torch.float32, torch.float32, "cpu")
    outputs = forward(layer, record)
    commit(layer, record, path)
    one = TreeRecord.allocate(SMALL, 1, 1, 1, torch.float32, torch.float32, "cpu")
    for node in path:
        single.x, single.a, single.b = layer.x[node, None], layer.a[node, None], layer.b[node, None]
        torch.testing.assert_close(forward(single, one)[0], outputs[node], rtol=1e-5, atol=1e-6)
        commit(single, one, [0])
    torch.testing.assert_close(single.states, layer.states, rtol=1e-5, atol=1e-6)
    assert torch.equal(single.conv_states, layer.conv_states)


def reject_cases(case: Commit) -> dict[str, Commit]:
    return {
        "conv_states": replace(case, conv_states=case.conv_states[:1]),
        "states": replace(case, states=case.states[:1]),
        "path": replace(case, path=case.path[:1]),
        "track_lens": replace(case, track_lens=case.track_lens[:1]),
    }


@pytest.mark.parametrize("name", ["conv_states", "states", "path", "track_lens"])
def test_what_does_not_fit_is_refused_by_name(name: str) -> None:
    case = make_commit(torch.Generator().manual_seed(0), SMALL, chain_tree(2, 4))
    with pytest.raises(ValueError, match=f"{name} is .*expected"):
        commit_path(*reject_cases(case)[name].args())


def test_half_a_tracking_is_refused() -> None:
    case = make_commit(torch.Generator().manual_seed(0), SMALL, chain_tree(2, 4))
    with pytest.raises(ValueError, match="come together"):
        commit_path(*case.args(track=False), case.track_slots)

"""The torch version of the causal convolution against one window at a time in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sglang_ddtree.cpu.conv_ops import causal_conv1d_fn, causal_conv1d_update, tree_parents

CHANNELS, WIDTH, SLOTS = 5, 4, 6
PARENTS = [[0, 0, 0, 1, 1, 2, 4], [0, 0, 1, 2, 3, 0, 5]]  # two trees of seven nodes
NEXT = [[1, 3, 5, -1, 6, -1, -1], [1, 2, 3, 4, -1, 6, -1]]
SIBLING = [[-1, 2, -1, 4, -1, -1, -1], [-1, 5, -1, -1, -1, -1, -1]]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(got, wanted.to(got.dtype), rtol=1e-4, atol=1e-5)


def convolve_by_hand(history: torch.Tensor, tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The last token's output ``[channels]`` behind `history` ``[channels, ...]``, in float64."""
    window = torch.cat([history, tokens], dim=1)[:, -weight.shape[1] :].double()
    return F.silu((window * weight.double()).sum(1))


def test_prompts_are_convolved_on_from_their_slots() -> None:
    lengths, slots, continues = [9, 2, 1], [3, 5, 0], [True, False, True]
    starts = [0, 9, 11, 12]
    x, weight = torch.randn(CHANNELS, 12), torch.randn(CHANNELS, WIDTH)
    states = torch.randn(SLOTS, CHANNELS, WIDTH - 1)
    before = states.clone()
    output = causal_conv1d_fn(
        x,
        weight,
        None,
        states,
        torch.tensor(starts, dtype=torch.int32),
        lengths,
        cache_indices=torch.tensor(slots),
        has_initial_state=torch.tensor(continues),
    )
    for i, slot in enumerate(slots):
        history = before[slot] if continues[i] else torch.zeros(CHANNELS, WIDTH - 1)
        tokens = x[:, starts[i] : starts[i + 1]]
        for t in range(lengths[i]):
            close(output[:, starts[i] + t], convolve_by_hand(history, tokens[:, : t + 1], weight))
        assert torch.equal(states[slot], torch.cat([history, tokens], dim=1)[:, -(WIDTH - 1) :])
    assert torch.equal(states[[1, 2, 4]], before[[1, 2, 4]])


def test_one_more_token_shifts_the_window_and_padding_does_not() -> None:
    x, weight = torch.randn(2, CHANNELS), torch.randn(CHANNELS, WIDTH)
    states = torch.randn(SLOTS, CHANNELS, WIDTH - 1)
    before = states.clone()
    slots = torch.tensor([-1, 2], dtype=torch.int32)
    output = causal_conv1d_update(x, states, weight, None, "silu", conv_state_indices=slots)
    close(output[1], convolve_by_hand(before[2], x[1, :, None], weight))
    assert torch.equal(states[2], torch.cat([before[2, :, 1:], x[1, :, None]], dim=1))
    assert not output[0].any()
    others = [0, 1, 3, 4, 5]
    assert torch.equal(states[others], before[others])


def test_parents_come_from_the_links() -> None:
    assert tree_parents(torch.tensor(NEXT), torch.tensor(SIBLING)).tolist() == PARENTS


@pytest.mark.parametrize("is_tree", [False, True], ids=["chain", "tree"])
def test_each_nodes_window_holds_its_ancestors(is_tree: bool) -> None:
    x, weight = torch.randn(2, CHANNELS, 7), torch.randn(CHANNELS, WIDTH)
    states = torch.randn(SLOTS, CHANNELS, WIDTH - 1)
    before = states.clone()
    slots, rows = torch.tensor([5, 2]), torch.tensor([1, 3])
    # A chain's windows may overlap in memory: each is a slice of the same inputs.
    shared = torch.full((4, CHANNELS, 7 + WIDTH - 2), torch.nan)
    kept = shared.unfold(2, WIDTH - 1, 1).permute(0, 2, 1, 3)
    if is_tree:
        kept = torch.full((4, 7, CHANNELS, WIDTH - 1), torch.nan)
    parents = torch.full((2, 7), -9, dtype=torch.int32)
    links = {
        "retrieve_next_token": torch.tensor(NEXT, dtype=torch.int32),
        "retrieve_next_sibling": torch.tensor(SIBLING, dtype=torch.int32),
        "retrieve_parent_token": parents,
    }
    output = causal_conv1d_update(
        x,
        states,
        weight,
        None,
        "silu",
        conv_state_indices=slots,
        intermediate_conv_window=kept,
        intermediate_state_indices=rows,
        **(links if is_tree else {}),
    )
    for request in range(2):
        for node in range(7):
            path = [node]
            while path[0] > 0:
                path.insert(0, PARENTS[request][path[0]] if is_tree else path[0] - 1)
            history, tokens = before[slots[request]], x[request][:, path]
            close(output[request, :, node], convolve_by_hand(history, tokens, weight))
            window = torch.cat([history, tokens], dim=1)[:, -(WIDTH - 1) :]
            assert torch.equal(kept[rows[request], node], window)
    assert kept[[0, 2]].isnan().all()
    assert parents.tolist() == (PARENTS if is_tree else [[-9] * 7] * 2)


@pytest.mark.parametrize("option", ["cache_seqlens", "num_accept_tokens"])
def test_what_the_convolution_does_not_serve_is_named(option: str) -> None:
    x, states = torch.randn(1, CHANNELS), torch.zeros(1, CHANNELS, WIDTH - 1)
    with pytest.raises(NotImplementedError, match=option):
        causal_conv1d_update(x, states, torch.randn(CHANNELS, WIDTH), **{option: torch.zeros(1)})

"""The torch kernels of Gated DeltaNet against token-by-token loops in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from sglang_ddtree.cpu.gdn_ops import (
    CHUNK_SIZE,
    chunk_gated_delta_rule,
    fused_gdn_gating,
    fused_recurrent_gated_delta_rule_packed_decode,
    fused_sigmoid_gating_delta_rule_update,
)

KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM = 2, 4, 8, 6
SLOTS = 6
PARENTS = [[0, 0, 0, 1, 1, 2, 4], [0, 0, 1, 2, 3, 0, 5]]  # two trees of seven nodes


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def inputs(tokens: int, requests: int | None = None) -> dict[str, torch.Tensor]:
    lead = (1, tokens) if requests is None else (requests, tokens)
    return {
        "q": torch.randn(*lead, KEY_HEADS, KEY_DIM),
        "k": torch.randn(*lead, KEY_HEADS, KEY_DIM),
        "v": torch.randn(*lead, VALUE_HEADS, VALUE_DIM),
        "a": torch.randn(lead[0] * lead[1], VALUE_HEADS),
        "b": torch.randn(lead[0] * lead[1], VALUE_HEADS),
        "A_log": torch.tensor([-3.0, -2.0, -1.0, 0.0]),
        "dt_bias": torch.randn(VALUE_HEADS),
    }


def pool() -> torch.Tensor:
    return torch.randn(SLOTS, VALUE_HEADS, VALUE_DIM, KEY_DIM)


def by_hand(
    given: dict[str, torch.Tensor], start: torch.Tensor, path: list[int]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Outputs ``[len(path), heads, V]`` and the states behind each of the tokens `path`, in float64."""
    given = {name: value.double() for name, value in given.items()}
    q, k, v = (given[name].flatten(0, 1) for name in "qkv")
    state, states, outputs = start.double().clone(), [], []
    for t in path:
        output = torch.zeros(VALUE_HEADS, VALUE_DIM, dtype=torch.float64)
        state = state.clone()
        for head in range(VALUE_HEADS):
            key_head = head // (VALUE_HEADS // KEY_HEADS)
            key = k[t, key_head] / (k[t, key_head].square().sum() + 1e-6).sqrt()
            query = q[t, key_head] / (q[t, key_head].square().sum() + 1e-6).sqrt()
            rate = given["A_log"][head].exp() * F.softplus(given["a"][t, head] + given["dt_bias"][head])
            state[head] *= (-rate).exp()
            error = v[t, head] - state[head] @ key
            state[head] += torch.outer(given["b"][t, head].sigmoid() * error, key)
            output[head] = state[head] @ query * KEY_DIM**-0.5
        outputs.append(output)
        states.append(state)
    return torch.stack(outputs), states


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(got, wanted.to(got.dtype), rtol=1e-4, atol=1e-5)


def prefill(given: dict[str, torch.Tensor], states: torch.Tensor, **options: Any) -> tuple[Any, ...]:
    g, beta = fused_gdn_gating(given["A_log"], given["a"], given["b"], given["dt_bias"])
    return chunk_gated_delta_rule(
        given["q"],
        given["k"],
        given["v"],
        g,
        beta,
        initial_state=states,
        use_qk_l2norm_in_kernel=True,
        **options,
    )


def verify(given: dict[str, torch.Tensor], states: torch.Tensor, **options: Any) -> torch.Tensor:
    return fused_sigmoid_gating_delta_rule_update(
        **given,
        softplus_beta=1.0,
        softplus_threshold=20.0,
        initial_state_source=states,
        use_qk_l2norm_in_kernel=True,
        **options,
    )


LENGTHS = [150, 1, 64, 65]  # more than two chunks, a token, a whole chunk, one more
STARTS = [0, 150, 151, 215, 280]


def test_prefill_is_the_recurrence_and_keeps_the_states_before_every_chunk() -> None:
    given, states = inputs(STARTS[-1]), pool()
    before = states.clone()
    slots = torch.tensor([4, 1, 0, 3], dtype=torch.int32)
    output, last, chunks = prefill(
        given, states, cu_seqlens=torch.tensor(STARTS), initial_state_indices=slots
    )
    assert last is None
    assert chunks.shape == (1, 3 + 1 + 1 + 2, VALUE_HEADS, VALUE_DIM, KEY_DIM)
    at = 0
    for i, slot in enumerate(slots.tolist()):
        wanted, history = by_hand(given, before[slot], list(range(STARTS[i], STARTS[i + 1])))
        close(output[0, STARTS[i] : STARTS[i + 1]], wanted)
        close(states[slot], history[-1])
        for chunk in range(0, LENGTHS[i], CHUNK_SIZE):
            close(chunks[0, at], history[chunk - 1] if chunk else before[slot])
            at += 1
    untouched = [2, 5]
    assert torch.equal(states[untouched], before[untouched])


def test_prefill_in_parts_equals_prefill_at_once() -> None:
    given, whole, parts = inputs(100), pool(), None
    parts = whole.clone()
    slots = torch.tensor([2])
    wanted = prefill(given, whole, cu_seqlens=torch.tensor([0, 100]), initial_state_indices=slots)[0]
    got = []
    for begin, end in ((0, 37), (37, 100)):
        part = {
            name: value[:, begin:end] if name in "qkv" else value[begin:end]
            for name, value in given.items()
            if name not in ("A_log", "dt_bias")
        }
        part |= {"A_log": given["A_log"], "dt_bias": given["dt_bias"]}
        ends = torch.tensor([0, end - begin])
        got.append(prefill(part, parts, cu_seqlens=ends, initial_state_indices=slots)[0])
    close(torch.cat(got, dim=1), wanted)
    close(parts, whole)


def test_prefill_can_leave_the_states_alone() -> None:
    given, states = inputs(70), pool()
    before = states.clone()
    prefill(
        given,
        states,
        cu_seqlens=torch.tensor([0, 70]),
        initial_state_indices=torch.tensor([1]),
        inplace_update=False,
    )
    assert torch.equal(states, before)


def test_a_strong_decay_overflows_nothing() -> None:
    given, states = inputs(64), pool()
    given["A_log"] = torch.full((VALUE_HEADS,), 5.0)
    start = states[0].clone()
    slot = torch.tensor([0])
    output = prefill(given, states, cu_seqlens=torch.tensor([0, 64]), initial_state_indices=slot)[0]
    close(output[0], by_hand(given, start, list(range(64)))[0])


def test_decode_is_one_step_and_padding_rows_are_zero() -> None:
    given, states = inputs(3), pool()
    before = states.clone()
    slots = torch.tensor([5, -1, 2], dtype=torch.int32)
    packed = torch.cat([given[name].flatten(0, 1).flatten(1) for name in "qkv"], dim=1)
    out = torch.full((3, 1, VALUE_HEADS, VALUE_DIM), torch.nan)
    fused_recurrent_gated_delta_rule_packed_decode(
        packed,
        given["a"],
        given["b"],
        given["A_log"],
        given["dt_bias"],
        KEY_DIM**-0.5,
        states,
        out,
        slots,
        use_qk_l2norm_in_kernel=True,
    )
    for row, slot in ((0, 5), (2, 2)):
        wanted, history = by_hand(given, before[slot], [row])
        close(out[row], wanted)
        close(states[slot], history[-1])
    assert not out[1].any()
    assert torch.equal(states[[0, 1, 3, 4]], before[[0, 1, 3, 4]])


def test_the_unpacked_update_is_the_same_step() -> None:
    given, states = inputs(2), pool()
    before = states.clone()
    slots = torch.tensor([3, 0])
    output = verify(given, states, initial_state_indices=slots, cu_seqlens=torch.tensor([0, 1, 2]))
    for row, slot in enumerate(slots.tolist()):
        wanted, history = by_hand(given, before[slot], [row])
        close(output[0, row], wanted[0])
        close(states[slot], history[-1])


@pytest.mark.parametrize("is_tree", [False, True], ids=["chain", "tree"])
def test_verification_follows_each_nodes_ancestors(is_tree: bool) -> None:
    given, states = inputs(14), pool()
    before = states.clone()
    slots, rows = torch.tensor([4, 1]), torch.tensor([2, 0])
    kept = torch.full((3, 8, VALUE_HEADS, VALUE_DIM, KEY_DIM), torch.nan)
    output = verify(
        given,
        states,
        initial_state_indices=slots,
        cu_seqlens=torch.tensor([0, 7, 14], dtype=torch.int32),
        disable_state_update=True,
        intermediate_states_buffer=kept,
        intermediate_state_indices=rows,
        cache_steps=8,
        retrieve_parent_token=torch.tensor(PARENTS, dtype=torch.int32) if is_tree else None,
    )
    assert torch.equal(states, before)
    for request in range(2):
        for node in range(7):
            path = [node]
            while path[0] > 0:
                path.insert(0, PARENTS[request][path[0]] if is_tree else path[0] - 1)
            wanted, history = by_hand(given, before[slots[request]], [7 * request + one for one in path])
            close(output[0, 7 * request + node], wanted[-1])
            close(kept[rows[request], node], history[-1])
    assert kept[1].isnan().all()
    assert kept[:, 7].isnan().all()


def test_requests_may_have_windows_of_different_length() -> None:
    given, states = inputs(6), pool()
    before = states.clone()
    output = verify(
        given, states, initial_state_indices=torch.tensor([1, 3]), cu_seqlens=torch.tensor([0, 2, 6])
    )
    for slot, path in ((1, [0, 1]), (3, [2, 3, 4, 5])):
        wanted, history = by_hand(given, before[slot], path)
        close(output[0, path], wanted)
        close(states[slot], history[-1])


@pytest.mark.parametrize(
    "option",
    [
        {"is_kda": True},
        {"lower_bound": -5.0},
        {"cache_ring": True},
        {"match_cutedsl_decode": True},
        {"replayssm_g": torch.zeros(1)},
        {"retrieve_parent_token": torch.zeros(1, 1)},
    ],
    ids=lambda option: next(iter(option)),
)
def test_what_is_not_served_is_named(option: dict[str, Any]) -> None:
    with pytest.raises(NotImplementedError, match=next(iter(option))):
        verify(inputs(1), pool(), initial_state_indices=torch.tensor([0]), **option)

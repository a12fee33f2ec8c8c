from __future__ import annotations

import pytest
import torch

from sglang_ddtree.cpu import hybrid_ops

KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM = 2, 4, 3, 5


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("is_packed_by_head", [True, False], ids=["qwen3-next", "qwen3.5"])
def test_both_layouts_of_a_projection_come_apart_alike(is_packed_by_head: bool) -> None:
    tokens, group = 7, VALUE_HEADS // KEY_HEADS
    q, k = torch.randn(2, tokens, KEY_HEADS, KEY_DIM)
    v, z = torch.randn(2, tokens, VALUE_HEADS, VALUE_DIM)
    b, a = torch.randn(2, tokens, VALUE_HEADS)
    qkvz, ba = [q, k, v, z], [b, a]
    split = hybrid_ops.fused_qkvzba_split_reshape_cat_contiguous
    if is_packed_by_head:
        split = hybrid_ops.fused_qkvzba_split_reshape_cat
        qkvz = [q, k, v.unflatten(1, (KEY_HEADS, group)), z.unflatten(1, (KEY_HEADS, group))]
        qkvz = [torch.cat([part.flatten(2) for part in qkvz], dim=2)]
        ba = [torch.cat([b.unflatten(1, (KEY_HEADS, group)), a.unflatten(1, (KEY_HEADS, group))], dim=2)]
    packed = [torch.cat([part.flatten(1) for part in parts], dim=1) for parts in (qkvz, ba)]
    got = split(*packed, KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM)
    qkv = torch.cat([part.flatten(1) for part in (q, k, v)], dim=1)
    for one, wanted in zip(got, (qkv, z, b, a), strict=True):
        assert torch.equal(one, wanted)
        assert one.is_contiguous()


def test_gated_norms_are_a_norm_and_a_gate() -> None:
    x, gate, weight = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8)
    normed = torch.nn.functional.rms_norm(x, (8,), weight, eps=1e-5)
    for activation, wanted in (
        ("swish", normed * torch.nn.functional.silu(gate)),
        ("sigmoid", normed * gate.sigmoid()),
    ):
        got = hybrid_ops.rms_norm_gated(x, gate, weight, None, activation, eps=1e-5)
        torch.testing.assert_close(got, wanted)
        got, *_ = hybrid_ops.layer_norm_fwd(
            x, weight, None, 1e-5, z=gate, is_rms_norm=True, activation=activation
        )
        torch.testing.assert_close(got, wanted)
    with pytest.raises(NotImplementedError, match="is_rms_norm"):
        hybrid_ops.layer_norm_fwd(x, weight, None, 1e-5, z=gate)


@pytest.mark.parametrize("inplace", [True, False])
def test_an_attention_gate_may_be_strided_by_head(inplace: bool) -> None:
    output, gate = torch.randn(3, 8), torch.randn(3, 2, 8)[:, :, 4:]
    wanted = output * gate.reshape(3, 8).sigmoid()
    got = hybrid_ops.fused_sigmoid_mul(output, gate, inplace=inplace)
    torch.testing.assert_close(got, wanted)
    assert (got is output) == inplace


def test_the_shared_expert_is_gated_and_added() -> None:
    hidden, weight, shared, routed = torch.randn(3, 8), torch.randn(8), torch.randn(3, 8), torch.randn(3, 8)
    gated = (hidden @ weight).sigmoid()[:, None] * shared
    torch.testing.assert_close(hybrid_ops.fused_gate_sigmoid_mul(hidden, weight, shared), gated)
    wanted = routed + gated
    hybrid_ops.fused_gate_sigmoid_mul_add(hidden, weight, shared, routed)
    torch.testing.assert_close(routed, wanted)


def test_only_tracked_requests_copy_their_states() -> None:
    conv, ssm = torch.randn(2, 6, 3), torch.randn(2, 6, 4)
    wanted_conv, wanted_ssm = conv.clone(), ssm.clone()
    for pool in (wanted_conv, wanted_ssm):
        pool[:, 5] = pool[:, 2]
    arguments = (torch.tensor([1, 2, 3]), torch.tensor([False, True, True]), torch.tensor([4, 5, -1]), 3)
    hybrid_ops.track_mamba_states_all_layers(conv, ssm, *arguments, check_freed_slots=True)
    assert torch.equal(conv, wanted_conv)
    assert torch.equal(ssm, wanted_ssm)
    hybrid_ops.track_mamba_states_if_needed(
        conv[0], ssm[0], torch.tensor([0]), torch.tensor([True]), torch.tensor([1]), 1
    )
    assert torch.equal(conv[0, 1], conv[0, 0])
    assert torch.equal(conv[1], wanted_conv[1])


def test_accepted_states_go_to_their_slots_alone() -> None:
    pool, kept = torch.zeros(2, 5, 3), torch.randn(2, 4, 6, 3)
    slots, steps = torch.tensor([3, 1, -1]), torch.tensor([5, -1, 2])
    hybrid_ops.scatter_states(pool, kept, slots, steps)
    wanted = torch.zeros(2, 5, 3)
    wanted[:, 3] = kept[:, 0, 5]
    assert torch.equal(pool, wanted)
    hybrid_ops.scatter_states(pool, kept, slots, steps, src_indices_raw=torch.tensor([2, 0, 1]))
    wanted[:, 3] = kept[:, 2, 5]
    assert torch.equal(pool, wanted)


def test_conv_windows_may_overlap_in_memory() -> None:
    shared = torch.randn(1, 2, 3, 6)  # layers, rows, channels, tokens and the window before them
    windows = shared.unfold(3, 3, 1).permute(0, 1, 3, 2, 4)
    pool = torch.zeros(1, 4, 3, 3)
    slots, steps = torch.tensor([2, 0]), torch.tensor([1, 3])
    hybrid_ops.fused_conv_window_scatter_multi([(pool, windows)], slots, steps, slots + 1, steps)
    for slot, row, step in ((2, 0, 1), (3, 0, 1), (0, 1, 3), (1, 1, 3)):
        assert torch.equal(pool[0, slot], shared[0, row, :, step : step + 3])

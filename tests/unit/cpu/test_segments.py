from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_ddtree.cpu.segments import attend, causal_mask, plan_segments, verify_masks

# A window of 4: the root, its two children 1 and 2, and node 3 under node 2.
TREE = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], dtype=torch.bool)
CHAIN = torch.ones(4, 4, dtype=torch.bool).tril()


def batch(mode: str, seq_lens: list[int], **fields: Any) -> Any:
    forward_mode = SimpleNamespace(
        is_target_verify=lambda: mode == "verify", is_decode=lambda: mode == "decode"
    )
    return SimpleNamespace(
        forward_mode=forward_mode,
        seq_lens=torch.tensor(seq_lens),
        req_pool_indices=torch.arange(len(seq_lens)).flip(0),
        spec_info=None,
        **fields,
    )


def test_tree_mask_leaves_the_prefix_visible_to_every_node() -> None:
    short, long = verify_masks(SimpleNamespace(tree_mask=torch.stack([TREE, CHAIN])), [2, 5], 4)
    assert short is not None
    assert long is not None
    assert short.shape == (4, 6)
    assert short[:, :2].all()
    assert torch.equal(short[:, 2:], TREE)
    assert torch.equal(long[:, 5:], CHAIN)


def test_flat_mask_is_cut_by_each_requests_own_length() -> None:
    expected = verify_masks(SimpleNamespace(tree_mask=torch.stack([TREE, CHAIN])), [2, 5], 4)
    cells = [mask.flatten() for mask in expected if mask is not None]
    stale = torch.ones(7, dtype=torch.bool)
    flat = verify_masks(SimpleNamespace(custom_mask=torch.cat([*cells, stale])), [2, 5], 4)
    for got, want in zip(flat, expected, strict=True):
        assert got is not None
        assert want is not None
        assert torch.equal(got, want)


def test_without_a_mask_the_window_is_causal() -> None:
    (mask,) = verify_masks(None, [3], 4)
    assert mask is not None
    assert torch.equal(mask[:, 3:], CHAIN)


@pytest.mark.parametrize(
    "info",
    [
        SimpleNamespace(tree_mask=torch.ones(1, 4, 3, dtype=torch.bool)),
        SimpleNamespace(custom_mask=torch.ones(4 * 6 - 1, dtype=torch.bool)),
    ],
    ids=["tree_mask", "custom_mask"],
)
def test_a_mask_of_another_shape_is_refused(info: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        verify_masks(info, [2], 4)


def test_one_new_token_needs_no_mask() -> None:
    assert causal_mask(1, 9) is None


def test_lengths_exclude_the_window_only_in_verify() -> None:
    rows = torch.arange(40).view(2, 20)
    verify = plan_segments(batch("verify", [2, 5], input_ids=torch.zeros(8)), rows)
    assert [segment.rows for segment in verify] == [slice(0, 4), slice(4, 8)]
    assert [segment.kv_locs.tolist() for segment in verify] == [list(range(20, 26)), list(range(9))]
    decode = plan_segments(batch("decode", [2, 5]), rows)
    assert [segment.kv_locs.tolist() for segment in decode] == [[20, 21], list(range(5))]
    extend = plan_segments(batch("extend", [2, 5], extend_seq_lens=torch.tensor([2, 3])), rows)
    assert [segment.rows for segment in extend] == [slice(0, 2), slice(2, 5)]
    assert extend[1].mask is not None
    assert extend[1].mask.tolist() == [[True] * 3 + [False] * 2, [True] * 4 + [False], [True] * 5]


def attend_by_hand(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, mask: torch.Tensor
) -> torch.Tensor:
    group = queries.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", queries, keys) * scale
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~mask, -torch.inf).softmax(-1), values)


def test_each_request_attends_over_its_own_slots_alone() -> None:
    torch.manual_seed(0)
    rows = torch.randperm(40).view(2, 20)
    queries, keys, values = torch.randn(8, 4, 16), torch.randn(40, 2, 16), torch.randn(40, 2, 16)
    forward_batch = batch("verify", [2, 5], input_ids=torch.zeros(8))
    forward_batch.spec_info = SimpleNamespace(tree_mask=torch.stack([TREE, CHAIN]))
    segments = plan_segments(forward_batch, rows)
    # Slots that no request owns must not matter, whatever they hold.
    owned = torch.cat([segment.kv_locs for segment in segments])
    foreign = torch.ones(40, dtype=torch.bool).index_fill(0, owned, False)
    keys[foreign] = values[foreign] = torch.nan

    got = attend(queries, keys, values, segments, scale=0.25)
    for segment in segments:
        assert segment.mask is not None
        alone = attend_by_hand(
            queries[segment.rows], keys[segment.kv_locs], values[segment.kv_locs], 0.25, segment.mask
        )
        torch.testing.assert_close(got[segment.rows], alone)
    everywhere = attend(queries, keys, values, segments, scale=0.25, sees_everything=True)
    assert not torch.allclose(everywhere, got)

from __future__ import annotations

import pytest
import torch

from sglang_ddtree.cpu.torch_ops import assign_req_to_token_pool, window_cache_locs


def test_new_slots_go_to_each_requests_own_columns() -> None:
    table = torch.zeros(3, 6, dtype=torch.int32)
    assign_req_to_token_pool(
        req_pool_indices=torch.tensor([2, 0]),
        req_to_token=table,
        start_offset=torch.tensor([1, 4]),
        end_offset=torch.tensor([4, 6]),
        out_cache_loc=torch.tensor([7, 8, 9, 5, 6]),
        batch_size=2,
    )
    assert table.tolist() == [[0, 0, 0, 0, 5, 6], [0] * 6, [0, 7, 8, 9, 0, 0]]


def test_a_request_may_get_no_slot() -> None:
    table = torch.zeros(2, 4, dtype=torch.int32)
    start, end = torch.tensor([2, 1]), torch.tensor([2, 2])
    assign_req_to_token_pool(torch.tensor([0, 1]), table, start, end, torch.tensor([9]), 2)
    assert table.tolist() == [[0, 0, 0, 0], [0, 9, 0, 0]]


def test_a_window_beyond_its_row_raises_and_leaves_the_neighbour_alone() -> None:
    table = torch.zeros(2, 4, dtype=torch.int32)
    with pytest.raises(IndexError):
        assign_req_to_token_pool(
            torch.tensor([0]), table, torch.tensor([3]), torch.tensor([6]), torch.tensor([1, 2, 3]), 1
        )
    assert table[1].tolist() == [0, 0, 0, 0]


def test_window_slots_are_read_request_by_request() -> None:
    table = torch.arange(12, dtype=torch.int32).view(2, 6)
    got = window_cache_locs(
        req_pool_indices=torch.tensor([1, 0]),
        req_to_token=table,
        start_offset=torch.tensor([2, 0]),
        end_offset=torch.tensor([5, 3]),
        batch_size=2,
        draft_token_num=3,
        device="cpu",
    )
    assert got.dtype == torch.int64
    assert got.tolist() == [8, 9, 10, 0, 1, 2]

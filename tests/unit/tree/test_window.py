import torch

from sglang_ddtree.tree import open_window


def test_the_window_is_the_reserved_slots_behind_the_prefix() -> None:
    table = torch.arange(4 * 50, dtype=torch.int32).view(4, 50) * 3
    for block_size, width in ((4, 9), (9, 4), (5, 5)):
        window = open_window(
            torch.tensor([7, 0]),
            torch.tensor([2, 1]),
            table,
            torch.tensor([11, 12]),
            mask_token_id=99,
            block_size=block_size,
            width=width,
        )
        longest = max(block_size, width)
        expected = [[(row * 50 + start + i) * 3 for i in range(longest)] for row, start in ((2, 7), (1, 0))]
        assert window.slots.tolist() == expected
        assert window.block_slots.tolist() == [slot for row in expected for slot in row[:block_size]]
        assert window.verify_slots.tolist() == [slot for row in expected for slot in row[:width]]
        assert window.block_ids.tolist() == [[bonus] + [99] * (block_size - 1) for bonus in (11, 12)]
        assert window.positions.tolist() == [list(range(s, s + block_size)) for s in (7, 0)]
        assert window.slots.dtype == window.positions.dtype == window.block_ids.dtype == torch.int64

import pytest
import torch

from sglang_ddtree.recurrent import GDNShape, TreeRecord, record_bytes_per_node
from unit.recurrent.recurrent_cases import SMALL


@pytest.mark.parametrize("activation", [torch.float32, torch.bfloat16])
def test_planned_bytes_are_allocated_bytes(activation: torch.dtype) -> None:
    record = TreeRecord.allocate(SMALL, 3, 5, 7, activation, torch.bfloat16, "cpu")
    assert record.nbytes == 3 * 5 * 7 * record_bytes_per_node(SMALL, activation, torch.bfloat16)


def test_a_node_of_a_27b_layer_takes_kilobytes() -> None:
    shape = GDNShape(16, 48, 128, 128, 4)
    assert record_bytes_per_node(shape, torch.bfloat16, torch.bfloat16) == 37_248


def test_a_layer_is_a_view() -> None:
    record = TreeRecord.allocate(SMALL, 2, 1, 3, torch.float32, torch.float32, "cpu")
    record.layer(1).beta.fill_(3)
    assert record.beta[0].sum() == 0
    assert (record.beta[1] == 3).all()


def test_other_widths_are_views_of_the_same_memory() -> None:
    record = TreeRecord.allocate(SMALL, 2, 24, 1, torch.float32, torch.bfloat16, "cpu")
    record.inputs.copy_(torch.arange(2 * 24).view(2, 24, 1, 1).expand_as(record.inputs))
    for width, rows in ((8, 3), (24, 1), (7, 3)):
        viewed = record.in_rows(width)
        assert viewed.inputs.shape == (2, rows, width, SMALL.conv_dim)
        assert viewed.beta.shape == (2, rows, width, SMALL.num_v_heads)
        nodes = torch.arange(24)[: rows * width].view(rows, width)
        assert torch.equal(viewed.inputs[:, :, :, 0].long(), torch.stack((nodes, 24 + nodes)))
        viewed.layer(1).beta[rows - 1, width - 1] = width
        assert (record.beta[1, rows * width - 1, 0] == width).all()
    assert record.in_rows(8).in_rows(24).keys.data_ptr() == record.keys.data_ptr()


@pytest.mark.parametrize("sizes", [(2, 3, 16, 16, 4), (0, 2, 16, 16, 4), (1, 2, 16, 16, 1)])
def test_impossible_shapes_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"multiple|at least"):
        GDNShape(*sizes)

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


@pytest.mark.parametrize("sizes", [(2, 3, 16, 16, 4), (0, 2, 16, 16, 4), (1, 2, 16, 16, 1)])
def test_impossible_shapes_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"multiple|at least"):
        GDNShape(*sizes)

"""The torch twin against attention written out per query, and how the work is cut."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch

from sglang_ddtree.attention import Workspace, can_attend, tree_attention, write_pointers
from sglang_ddtree.attention.workspace import MOST_SPLITS
from unit.attention.attention_twins import make_case


@pytest.mark.parametrize("masked", [True, False])
def test_every_query_sees_its_context_and_its_row_of_the_mask(masked: bool) -> None:
    lens, width, kv_heads, group, head = [5, 0, 3], 4, 2, 3, 16
    case = make_case(torch.Generator().manual_seed(2), lens, width, kv_heads, group, head, masked=masked)
    out = torch.empty_like(case.q)
    tree_attention(case.q, case.k, case.v, out, *case.args, workspace=None)
    cell = 0
    for request, length in enumerate(lens):
        slots = case.kv_indices[int(case.kv_indptr[request]) :][:length].tolist()
        for node in range(width):
            row = request * width + node
            seen = [(case.k_buffer[slot], case.v_buffer[slot]) for slot in slots]
            for other in range(width):
                if case.mask is None or case.mask[cell + length + other]:
                    seen.append((case.k[request * width + other], case.v[request * width + other]))
            cell += length + width
            for number in range(kv_heads * group):
                kv_head = number // group
                query = case.q[row, number].double()
                weights = [math.exp(float(query @ key[kv_head].double()) / head**0.5) for key, _ in seen]
                values = torch.stack([value[kv_head].double() for _, value in seen])
                expected = torch.tensor(weights, dtype=torch.float64) @ values / sum(weights)
                assert torch.allclose(out[row, number].double(), expected, atol=2e-3)


def test_bad_shapes_are_named() -> None:
    case = make_case(torch.Generator(), [3], 4, 1, 1, 16)
    with pytest.raises(ValueError, match=r"q \[3, 1, 16\]"):
        tree_attention(case.q[:3], case.k, case.v, case.q[:3], *case.args, workspace=None)
    arguments = [*case.args[:5], None, 1.0]
    with pytest.raises(ValueError, match="mask_indptr"):
        tree_attention(case.q, case.k, case.v, case.q, *arguments, workspace=None)


@pytest.mark.parametrize("batch", [1, 2, 3, 8, 40, 300])
@pytest.mark.parametrize(("kv_heads", "group", "head"), [(8, 4, 128), (3, 3, 64), (4, 6, 256), (1, 1, 80)])
@pytest.mark.parametrize("width", [1, 8, 16, 17, 64, 1025])
def test_parts_fit_the_workspace(batch: int, kv_heads: int, group: int, head: int, width: int) -> None:
    workspace = Workspace.allocate(head, 132, "meta")
    tiling = workspace.tiling(batch, kv_heads, group, width, head)
    assert tiling.rows * tiling.blocks >= width * group
    assert tiling.rows <= workspace.sums.shape[1]
    assert head <= workspace.sums.shape[2]
    assert 1 <= tiling.splits <= MOST_SPLITS
    # One part needs no room: the program writes its result itself.
    assert tiling.splits == 1 or batch * kv_heads * tiling.blocks * tiling.splits <= len(workspace.arrived)


def test_a_lone_request_fills_the_gpu_and_a_large_batch_is_not_cut() -> None:
    workspace = Workspace.allocate(128, 132, "meta")
    lone = workspace.tiling(1, 8, 4, 64, 128)
    assert lone.splits * lone.blocks * 8 > 132
    assert workspace.tiling(64, 8, 4, 64, 128).splits == 1
    assert workspace.nbytes < 40 * 2**20


def test_pointers_by_hand() -> None:
    qo, kv, mask = (torch.empty(4, dtype=torch.int64) for _ in range(3))
    write_pointers(torch.tensor([5, 0, 2]), 3, qo, kv, mask)
    assert qo.tolist() == [0, 3, 6, 9]
    assert kv.tolist() == [0, 5, 5, 7]
    # 3 rows of 5 + 3, of 0 + 3 and of 2 + 3 cells.
    assert mask.tolist() == [0, 24, 33, 48]
    with pytest.raises(ValueError, match="3 requests need 4 entries"):
        write_pointers(torch.tensor([5, 0, 2]), 3, qo, kv[:3], mask)


def test_which_layers_it_takes() -> None:
    case = make_case(torch.Generator(), [3], 4, 2, 2, 16)
    there = (case.q, case.k, case.v, case.k_buffer)
    assert can_attend(*there)
    assert not can_attend(*(tensor.float() for tensor in there))
    assert not can_attend(case.q, case.k, case.v, case.k_buffer.to(torch.float8_e4m3fn))
    assert not can_attend(case.q, case.k, case.v[..., :8], case.k_buffer)
    assert not can_attend(case.q[:, :3], case.k, case.v, case.k_buffer)
    assert not can_attend(case.q, case.k, case.v, case.k_buffer.unsqueeze(1))
    assert not can_attend(case.q.mT.contiguous().mT, case.k, case.v, case.k_buffer)
    # Heads side by side in one projection are no obstacle.
    wide = torch.cat([case.k, case.v], dim=1)
    assert can_attend(case.q, wide[:, :2], wide[:, 2:], case.k_buffer)


def test_attention_needs_neither_sglang_nor_triton_on_a_cpu() -> None:
    code = (
        "import sys, torch\n"
        "from sglang_ddtree.attention import tree_attention\n"
        "q = torch.zeros(2, 1, 16)\n"
        "pointers = torch.zeros(2, dtype=torch.int32)\n"
        "tree_attention(q, q, q, q.clone(), q, q, pointers, pointers.long(), None, None, 1.0, None)\n"
        "print(sorted({'sglang', 'triton'} & set(sys.modules)))\n"
    )
    path = f"import sys; sys.path[:0] = {sys.path!r}\n"
    run = subprocess.run([sys.executable, "-c", path + code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"

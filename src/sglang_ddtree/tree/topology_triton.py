"""Mask, positions and links in one Triton kernel, a tile of slots per program."""

import torch
import triton
import triton.language as tl

from .topology import TreeTopology
from .tree import DraftTree
from .triton_device import require_kernel_device

_TILE_CELLS = 4096


def tree_topology_triton(tree: DraftTree, prefix_lens: torch.Tensor) -> TreeTopology:
    """The twin of `tree_topology_torch` for CUDA; arguments as in `topology.tree_topology`."""
    require_kernel_device(_topology_kernel, tree.tokens)
    batch, width = tree.tokens.shape
    device = tree.tokens.device
    positions, index, next_token, next_sibling = torch.empty(
        4, batch, width, dtype=torch.int64, device=device
    ).unbind(0)
    mask = torch.empty(batch, width, width, dtype=torch.bool, device=device)
    columns = triton.next_power_of_2(width)
    rows = max(1, min(16, _TILE_CELLS // columns))
    if batch:
        _topology_kernel[(batch, triton.cdiv(width, rows))](
            tree.parents,
            tree.depths,
            prefix_lens.contiguous(),
            positions,
            mask.view(torch.uint8),
            index,
            next_token,
            next_sibling,
            width,
            tree.max_depth,
            ROWS=rows,
            COLUMNS=columns,
        )
    return TreeTopology(positions, mask, index, next_token, next_sibling)


@triton.jit(do_not_specialize=["width", "max_depth"])
def _topology_kernel(  # type: ignore[no-untyped-def]
    parents_ptr,
    depths_ptr,
    prefix_lens_ptr,
    positions_ptr,
    mask_ptr,
    index_ptr,
    next_token_ptr,
    next_sibling_ptr,
    width,
    max_depth,
    ROWS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
):
    request = tl.program_id(0).to(tl.int64)
    rows = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    columns = tl.arange(0, COLUMNS).to(tl.int64)
    row_ok = rows < width
    column_ok = columns < width
    base = request * width
    parents_ptr += base

    prefix = tl.load(prefix_lens_ptr + request).to(tl.int64)
    depths = tl.load(depths_ptr + base + rows, mask=row_ok, other=0)
    tl.store(positions_ptr + base + rows, prefix + depths, mask=row_ok)
    tl.store(index_ptr + base + rows, base + rows, mask=row_ok)

    # Links. Slots are in best-first order, so the first child and the next sibling are smallest indices.
    row_parents = tl.load(parents_ptr + rows, mask=row_ok, other=-1)
    column_parents = tl.load(parents_ptr + columns, mask=column_ok, other=-1)
    others = tl.broadcast_to(columns[None, :], [ROWS, COLUMNS])
    is_child = column_parents[None, :] == rows[:, None]
    child = tl.min(tl.where(is_child, others, COLUMNS), axis=1)
    tl.store(next_token_ptr + base + rows, tl.where(child < COLUMNS, child, -1), mask=row_ok)
    is_younger = (column_parents[None, :] == row_parents[:, None]) & (row_parents[:, None] >= 0)
    is_younger = is_younger & (others > rows[:, None])
    sibling = tl.min(tl.where(is_younger, others, COLUMNS), axis=1)
    tl.store(next_sibling_ptr + base + rows, tl.where(sibling < COLUMNS, sibling, -1), mask=row_ok)

    # Mask: walk up. -1 matches no column.
    walk = rows
    seen = (others == rows[:, None]).to(tl.int32)
    for _ in range(max_depth):
        walk = tl.load(parents_ptr + walk, mask=row_ok & (walk >= 0), other=-1)
        seen = seen | (others == walk[:, None]).to(tl.int32)
    cells = mask_ptr + (base + rows)[:, None] * width + columns[None, :]
    tl.store(cells, seen.to(tl.uint8), mask=row_ok[:, None] & column_ok[None, :])

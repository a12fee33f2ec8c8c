"""Cut trees, mask, positions and links in one Triton kernel, a tile of slots per program."""

import torch
import triton
import triton.language as tl

from .mask_triton import lengths_before
from .topology import TreeTopology
from .tree import DraftTree
from .triton_device import require_kernel_device, step_kernel

_TILE_CELLS = 4096


def lay_out_triton(
    tree: DraftTree, prefix_lens: torch.Tensor, width: int, flat_mask: torch.Tensor | None = None
) -> tuple[DraftTree, TreeTopology]:
    """The twin of `lay_out_torch` for CUDA; arguments as in `topology.lay_out`."""
    require_kernel_device(_topology_kernel, tree.tokens)
    batch, device = tree.batch_size, tree.tokens.device
    cuts = width < tree.width
    found = torch.empty(7 if cuts else 4, batch, width, dtype=torch.int64, device=device).unbind(0)
    positions, index, next_token, next_sibling = found[:4]
    tokens, parents, depths = found[4:] if cuts else (tree.tokens, tree.parents, tree.depths)
    counts = torch.empty_like(tree.node_count) if cuts else tree.node_count
    mask = torch.empty(batch, width, width, dtype=torch.bool, device=device)
    columns = triton.next_power_of_2(width)
    rows = max(1, min(16, _TILE_CELLS // columns))
    if batch:
        _topology_kernel[(batch, triton.cdiv(width, rows))](
            tree.tokens,
            tree.parents,
            tree.depths,
            tree.node_count,
            prefix_lens.contiguous(),
            tokens,
            parents,
            depths,
            counts,
            positions,
            mask.view(torch.uint8),
            index,
            next_token,
            next_sibling,
            mask.view(torch.uint8) if flat_mask is None else flat_mask.view(torch.uint8),
            0 if flat_mask is None else flat_mask.numel(),
            tree.width,
            width,
            tree.max_depth,
            ROWS=rows,
            COLUMNS=columns,
            CUTS=cuts,
            FLAT_MASK=flat_mask is not None,
        )
    cut = DraftTree(tokens, parents, depths, counts, tree.max_depth) if cuts else tree
    return cut, TreeTopology(positions, mask, index, next_token, next_sibling)


@step_kernel(["flat_cells", "stride", "width", "max_depth"])
def _topology_kernel(  # type: ignore[no-untyped-def]
    tokens_ptr,
    parents_ptr,
    depths_ptr,
    counts_ptr,
    prefix_lens_ptr,
    cut_tokens_ptr,
    cut_parents_ptr,
    cut_depths_ptr,
    cut_counts_ptr,
    positions_ptr,
    mask_ptr,
    index_ptr,
    next_token_ptr,
    next_sibling_ptr,
    flat_ptr,
    flat_cells,
    stride,
    width,
    max_depth,
    ROWS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
    CUTS: tl.constexpr,  # noqa: N803
    FLAT_MASK: tl.constexpr,  # noqa: N803
):
    request = tl.program_id(0).to(tl.int64)
    rows = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    columns = tl.arange(0, COLUMNS).to(tl.int64)
    row_ok = rows < width
    column_ok = columns < width
    base = request * width
    parents_ptr += request * stride

    prefix = tl.load(prefix_lens_ptr + request).to(tl.int64)
    depths = tl.load(depths_ptr + request * stride + rows, mask=row_ok, other=0)
    row_parents = tl.load(parents_ptr + rows, mask=row_ok, other=-1)
    tl.store(positions_ptr + base + rows, prefix + depths, mask=row_ok)
    tl.store(index_ptr + base + rows, base + rows, mask=row_ok)
    if CUTS:
        tokens = tl.load(tokens_ptr + request * stride + rows, mask=row_ok, other=0)
        tl.store(cut_tokens_ptr + base + rows, tokens, mask=row_ok)
        tl.store(cut_parents_ptr + base + rows, row_parents, mask=row_ok)
        tl.store(cut_depths_ptr + base + rows, depths, mask=row_ok)
        # Every tile stores the same count.
        tl.store(cut_counts_ptr + request, tl.minimum(tl.load(counts_ptr + request), width))

    # Links. Slots are in best-first order, so the first child and the next sibling are smallest indices.
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
    inside = row_ok[:, None] & column_ok[None, :]
    cells = mask_ptr + (base + rows)[:, None] * width + columns[None, :]
    tl.store(cells, seen.to(tl.uint8), mask=inside)
    if FLAT_MASK:
        start = (lengths_before(prefix_lens_ptr, request) + base) * width + prefix
        flat = start + rows[:, None] * (prefix + width) + columns[None, :]
        tl.store(flat_ptr + flat, seen.to(tl.uint8), mask=inside & (flat < flat_cells))

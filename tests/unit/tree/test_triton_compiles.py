"""The Triton kernels compile to machine code for Hopper; needs no GPU, since Triton ships the assembler."""

from typing import Any

import pytest

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from sglang_ddtree.tree.accept_triton import _accept_kernel  # noqa: E402
from sglang_ddtree.tree.build_triton import _build_kernel  # noqa: E402
from sglang_ddtree.tree.candidates_triton import _part_kernel, _row_kernel  # noqa: E402
from sglang_ddtree.tree.mask_triton import _mask_kernel  # noqa: E402
from sglang_ddtree.tree.sample_topk_triton import _top_part_kernel, _top_row_kernel  # noqa: E402
from sglang_ddtree.tree.sample_triton import _draw_kernel, _race_kernel  # noqa: E402
from sglang_ddtree.tree.topology_triton import _topology_kernel  # noqa: E402
from sglang_ddtree.tree.window_triton import _window_kernel  # noqa: E402

INTEGERS = {
    "depths",
    "topk",
    "nodes",
    "width",
    "max_depth",
    "path_len",
    "out_cells",
    "vocab",
    "batch_stride",
    "depth_stride",
    "parts",
    "flat_cells",
    "stride",
    "slots_stride",
    "widths",
    "row_stride",
    "mask_token_id",
    "block_size",
    "window",
    "flags",
}
FLOATS = {"logprobs_ptr", "out_ptr", "sums_ptr", "temperatures_ptr", "top_ps_ptr", "min_ps_ptr"}
BYTES = {"mask_ptr", "tree_mask_ptr", "flat_ptr"}
INT32 = {
    "node_count_ptr",
    "counts_ptr",
    "cut_counts_ptr",
    "prefix_lens_ptr",
    "accept_index_ptr",
    "accept_lens_ptr",
    "tally_widths_ptr",
    "req_to_token_ptr",
    "top_ks_ptr",
}

WHOLE = {"CUTS": False, "FLAT_MASK": False}
CUT = {"CUTS": True, "FLAT_MASK": True}
GIVEN = {"logits_ptr": "*fp16", "noise_ptr": "*fp32"}
CASES: list[tuple[Any, dict[str, int], int, dict[str, str]]] = [
    (_build_kernel, {"LANES": 1}, 1, {}),
    (_build_kernel, {"LANES": 64}, 1, {}),
    (_build_kernel, {"LANES": 256}, 1, {}),
    (_build_kernel, {"LANES": 1024}, 4, {}),
    (_topology_kernel, {"ROWS": 16, "COLUMNS": 2, **WHOLE}, 4, {}),
    (_topology_kernel, {"ROWS": 16, "COLUMNS": 128, **WHOLE}, 4, {}),
    (_topology_kernel, {"ROWS": 2, "COLUMNS": 2048, **WHOLE}, 4, {"prefix_lens_ptr": "*i64"}),
    (_topology_kernel, {"ROWS": 16, "COLUMNS": 64, **CUT}, 4, {"prefix_lens_ptr": "*i64"}),
    (_accept_kernel, {"COLUMNS": 2, "WIDTHS": 0}, 1, {"prefix_lens_ptr": "*i64"}),
    (_accept_kernel, {"COLUMNS": 128, "WIDTHS": 0}, 1, {"prefix_lens_ptr": "*i64"}),
    (_accept_kernel, {"COLUMNS": 64, "WIDTHS": 4}, 1, {"prefix_lens_ptr": "*i64"}),
    (_accept_kernel, {"COLUMNS": 2048, "WIDTHS": 4}, 4, {"prefix_lens_ptr": "*i64"}),
    (_window_kernel, {"COLUMNS": 64}, 1, {"prefix_lens_ptr": "*i64"}),
    (_mask_kernel, {"COLUMNS": 128, "BLOCK": 1024, "SPLITS": 4}, 4, {"out_ptr": "*u8"}),
    (_mask_kernel, {"COLUMNS": 2, "BLOCK": 1024, "SPLITS": 4}, 4, {"out_ptr": "*u8"}),
    (_part_kernel, {"COLUMNS": 4096, "LANES": 16}, 4, {"logits_ptr": "*bf16"}),
    (_part_kernel, {"COLUMNS": 1, "LANES": 1}, 4, {"logits_ptr": "*fp32"}),
    (_row_kernel, {"KEYS": 1024, "PARTS": 64, "LANES": 16}, 4, {}),
    (_row_kernel, {"KEYS": 1, "PARTS": 1, "LANES": 1}, 1, {}),
    (_race_kernel, {"COLUMNS": 4096, "FILTERED": False, "GIVEN": False}, 8, {"logits_ptr": "*fp32"}),
    (_race_kernel, {"COLUMNS": 4096, "FILTERED": True, "GIVEN": False}, 8, {"logits_ptr": "*bf16"}),
    (_race_kernel, {"COLUMNS": 16, "FILTERED": True, "GIVEN": True}, 1, GIVEN),
    (
        _draw_kernel,
        {"COLUMNS": 4096, "PARTS": 64, "FILTERED": False, "GIVEN": False},
        1,
        {"logits_ptr": "*fp32"},
    ),
    (
        _draw_kernel,
        {"COLUMNS": 4096, "PARTS": 64, "FILTERED": True, "GIVEN": False},
        16,
        {"logits_ptr": "*bf16"},
    ),
    (_draw_kernel, {"COLUMNS": 16, "PARTS": 1, "FILTERED": True, "GIVEN": True}, 1, GIVEN),
    (_top_part_kernel, {"COLUMNS": 4096, "LANES": 64}, 4, {"logits_ptr": "*fp32"}),
    (_top_row_kernel, {"KEYS": 4096, "PARTS": 64, "LANES": 64, "GIVEN": False}, 4, {}),
    (_top_row_kernel, {"KEYS": 32, "PARTS": 1, "LANES": 32, "GIVEN": True}, 1, GIVEN),
]


def type_of(name: str) -> str:
    if name in INTEGERS:
        return "i32"
    if name in FLOATS:
        return "*fp32"
    if name in BYTES:
        return "*u8"
    return "*i32" if name in INT32 else "*i64"


@pytest.mark.parametrize(
    ("kernel", "constants", "warps", "types"), CASES, ids=lambda value: getattr(value, "__name__", None)
)
@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
def test_kernel_compiles_for_hopper(
    kernel: Any, constants: dict[str, int], warps: int, types: dict[str, str]
) -> None:
    if not isinstance(kernel, triton.JITFunction):
        pytest.skip("Triton's interpreter is on")
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, type_of(name)) for name in names}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()})
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    assert len(compiled.asm["cubin"]) > 0
    assert ".target sm_90" in compiled.asm["ptx"]

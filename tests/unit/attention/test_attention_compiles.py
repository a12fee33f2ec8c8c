"""The attention kernel compiles for Hopper within its shared memory and registers; needs no GPU."""

from typing import Any

import pytest

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from sglang_ddtree.attention import Workspace  # noqa: E402
from sglang_ddtree.attention.verify_triton import _attention_kernel  # noqa: E402
from sglang_ddtree.attention.workspace import LEAST_SPLIT, Tiling, next_power_of_two  # noqa: E402

SHARED_BYTES = 232_448
TYPES = {
    "kv_indptr_ptr": "*i32",
    "kv_indices_ptr": "*i64",
    "mask_ptr": "*u8",
    "mask_indptr_ptr": "*i64",
    "sums_ptr": "*fp32",
    "scales_ptr": "*fp32",
    "arrived_ptr": "*i32",
    "scale": "fp32",
}


def compiled(tiling: Tiling, group: int, head: int, *, masked: bool = True) -> Any:
    constants: dict[str, Any] = {
        "GROUP": group,
        "HEAD": head,
        "DIMS": next_power_of_two(head),
        "ROWS": tiling.rows,
        "COLUMNS": tiling.columns,
        "LEAST": LEAST_SPLIT,
        "HAS_MASK": masked,
    }
    if not masked:
        constants |= {"mask_ptr": None, "mask_indptr_ptr": None}
    names = _attention_kernel.arg_names
    signature = {
        name: "constexpr"
        if name in constants
        else TYPES.get(name, "*bf16" if name.endswith("_ptr") else "i32")
        for name in names
    }
    # Pointers are aligned, and so are the strides of real shapes.
    attributes = {
        (names.index(name),): [["tt.divisibility", 16]]
        for name in names
        if name not in constants and name not in ("width", "splits", "scale")
    }
    source = ASTSource(
        _attention_kernel, signature, {(names.index(n),): value for n, value in constants.items()}, attributes
    )
    return triton.compile(
        source,
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": tiling.warps, "num_stages": tiling.stages},
    )


@pytest.mark.parametrize(
    ("width", "kv_heads", "group", "head", "masked"),
    [
        (64, 8, 4, 128, True),
        (16, 8, 4, 128, False),
        (64, 3, 3, 64, True),
        (64, 4, 6, 256, True),
        (8, 2, 1, 80, True),
    ],
)
@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
def test_kernel_compiles_for_hopper(width: int, kv_heads: int, group: int, head: int, masked: bool) -> None:
    if not isinstance(_attention_kernel, triton.JITFunction):
        pytest.skip("Triton's interpreter is on")
    tiling = Workspace.allocate(head, 132, "meta").tiling(1, kv_heads, group, width, head)
    kernel = compiled(tiling, group, head, masked=masked)
    assert kernel.metadata.shared <= SHARED_BYTES
    assert ".target sm_90" in kernel.asm["ptx"]

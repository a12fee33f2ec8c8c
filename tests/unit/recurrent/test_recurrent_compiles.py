"""The recurrent Triton kernels compile for Hopper within its shared memory; needs no GPU."""

from typing import Any

import pytest

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from sglang_ddtree.recurrent.commit_triton import _commit_states_kernel, _commit_windows_kernel  # noqa: E402
from sglang_ddtree.recurrent.conv_triton import _conv_kernel  # noqa: E402
from sglang_ddtree.recurrent.delta_triton import _delta_kernel  # noqa: E402
from sglang_ddtree.recurrent.taps_triton import _taps_kernel  # noqa: E402

SHARED_BYTES = 232_448
INT32 = {"slots_ptr", "taps_ptr", "path_ptr", "lens_ptr", "track_lens_ptr"}
INT64 = {"parents_ptr", "track_slots_ptr"}
FLOATS = {"log_decay_ptr", "beta_ptr", "a_log_ptr", "states_ptr"}


def _type_of(name: str, activation: str) -> str:
    if name == "scale":
        return "fp32"
    if not name.endswith("_ptr"):
        return "i32"
    if name in INT32:
        return "*i32"
    if name in INT64:
        return "*i64"
    if name == "mask_ptr":
        return "*u8"
    return "*fp32" if name in FLOATS else f"*{activation}"


def compiled(kernel: Any, constants: dict[str, Any], warps: int, activation: str = "bf16") -> Any:
    names = kernel.arg_names
    types = {"out_ptr": "*i32"} if kernel is _taps_kernel else {}
    signature = {
        name: "constexpr" if name in constants else types.get(name, _type_of(name, activation))
        for name in names
    }
    # Pointers are aligned and so are the strides of real shapes.
    aligned = [name for name in names if name.endswith(("_ptr", "_stride"))]
    attributes = {
        (names.index(name),): [["tt.divisibility", 16]] for name in aligned if name not in constants
    }
    source = ASTSource(
        kernel,
        signature,
        {(names.index(name),): value for name, value in constants.items()},
        attributes,
    )
    return triton.compile(
        source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps, "num_stages": 1}
    )


def delta_constants(nodes: int, block_v: int, dim: int = 128, activation: str = "bf16") -> dict[str, Any]:
    return {
        "H": 16,
        "HV": 48,
        "K": dim,
        "V": dim,
        "NODES": nodes,
        "BLOCK_K": min(dim, 64),
        "BLOCK_V": block_v,
        "WIDE_PRODUCTS": activation == "fp32",
    }


COMMIT = {"H": 16, "HV": 48, "K": 128, "V": 128, "BLOCK_V": 32, "HAS_TRACK": True}
WINDOWS = {"CONV_DIM": 10240, "WINDOW": 3, "CHANNELS": 512, "HAS_TRACK": True}
CONV = {"KEY_DIM": 2048, "VALUE_DIM": 6144, "TAPS": 4, "SILU": True, "NODES": 8, "CHANNELS": 256}
NO_BIAS = {"HAS_BIAS": False, "bias_ptr": None}

CASES: list[tuple[Any, dict[str, Any], int, str]] = [
    (_taps_kernel, {"TAPS": 4, "COLUMNS": 64}, 1, "bf16"),
    (_conv_kernel, CONV | {"HAS_BIAS": True}, 4, "bf16"),
    (_conv_kernel, CONV | NO_BIAS, 4, "fp32"),
    (_commit_states_kernel, COMMIT, 4, "bf16"),
    (_commit_windows_kernel, WINDOWS, 4, "bf16"),
    (_delta_kernel, delta_constants(16, 32), 4, "bf16"),
    (_delta_kernel, delta_constants(64, 32), 4, "bf16"),
    (_delta_kernel, delta_constants(128, 32), 8, "bf16"),
    (_delta_kernel, delta_constants(128, 32, 256, "fp32"), 8, "fp32"),
]


@pytest.mark.parametrize(
    ("kernel", "constants", "warps", "activation"),
    CASES,
    ids=lambda value: getattr(value, "__name__", None),
)
@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
def test_kernel_compiles_for_hopper(
    kernel: Any, constants: dict[str, Any], warps: int, activation: str
) -> None:
    if not isinstance(kernel, triton.JITFunction):
        pytest.skip("Triton's interpreter is on")
    result = compiled(kernel, constants, warps, activation)
    assert ".target sm_90" in result.asm["ptx"]
    assert result.metadata.shared <= SHARED_BYTES

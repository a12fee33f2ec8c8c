"""No batch brings a variant of a kernel that startup has not compiled: compiling takes seconds, and requests wait."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")

import sglang_ddtree  # noqa: E402
from unit.tree.stub_driver import StubTensor, compiling_for_hopper  # noqa: E402
from unit.tree.test_triton_compiles import CASES, type_of  # noqa: E402

# Launched inside captured graphs alone, whose arguments do not change.
CAPTURED = {"_attention_kernel", "_conv_kernel", "_delta_kernel"}
# Base addresses of whole tensors, which torch aligns to 512 bytes.
WHOLE_TENSORS = {
    "logits_ptr",
    "keys_ptr",
    "sums_ptr",
    "values_ptr",
    "log_decay_ptr",
    "beta_ptr",
    "states_ptr",
    "inputs_ptr",
    "conv_states_ptr",
}
# The same at every step of a server: sizes of the model and of its pools.
CONSTANT = {
    "row_stride",
    "vocab",
    "node_stride",
    "tap_stride",
    "request_stride",
    "keys_layer_stride",
    "keys_row_stride",
    "values_layer_stride",
    "values_row_stride",
    "gates_layer_stride",
    "gates_row_stride",
    "states_layer_stride",
    "states_slot_stride",
    "states_channel_stride",
    "states_tap_stride",
    "inputs_layer_stride",
    "inputs_row_stride",
}


def _kernels() -> Iterator[tuple[str, Any]]:
    for module in pkgutil.walk_packages(sglang_ddtree.__path__, "sglang_ddtree."):
        if module.name.endswith("_triton"):
            for name, value in vars(importlib.import_module(module.name)).items():
                if name.endswith("_kernel") and isinstance(value, triton.JITFunction):
                    yield name, value


def test_the_kernels_of_a_step_are_found() -> None:
    names = {name for name, _ in _kernels()}
    assert {"_window_kernel", "_topology_kernel", "_accept_kernel", "_draw_kernel"} <= names
    assert names >= CAPTURED


STEP_KERNELS = {name: kernel for name, kernel in _kernels() if name not in CAPTURED}


@pytest.mark.parametrize("name", sorted(STEP_KERNELS))
def test_numbers_and_addresses_that_change_make_no_variant(name: str) -> None:
    kernel = STEP_KERNELS[name]
    for parameter in kernel.params:
        if parameter.is_constexpr:
            continue
        if parameter.name.endswith("_ptr"):
            free = parameter.do_not_specialize_on_alignment or parameter.do_not_specialize
            assert free or parameter.name in WHOLE_TENSORS, parameter.name
        else:
            assert parameter.do_not_specialize or parameter.name in CONSTANT, parameter.name


DTYPES = {
    "*i64": torch.int64,
    "*i32": torch.int32,
    "*u8": torch.uint8,
    "*fp32": torch.float32,
    "*bf16": torch.bfloat16,
    "*fp16": torch.float16,
}


@pytest.fixture
def no_gpu() -> Iterator[None]:
    with compiling_for_hopper():
        yield


def _variants(kernel: Any, constants: dict[str, int], warps: int, types: dict[str, str]) -> int:
    """How many Triton compiles for arguments that differ in their addresses and numbers."""
    found = set()
    for address, number in ((0, 16), (8, 16), (8, 17), (0, 1)):
        arguments = []
        for parameter in kernel.params:
            name = parameter.name
            if parameter.is_constexpr:
                continue
            kind = types.get(name, type_of(name))
            if kind in DTYPES:
                arguments.append(StubTensor(DTYPES[kind], 0 if name in WHOLE_TENSORS else address))
            else:
                arguments.append(64 if name in CONSTANT else number)
        compiled = kernel.warmup(*arguments, grid=(1,), num_warps=warps, **constants)
        found.add(id(compiled))
    return len(found)


ONE_EACH = {case[0].__name__: case for case in reversed(CASES) if isinstance(case[0], triton.JITFunction)}


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize("name", sorted(ONE_EACH))
def test_triton_compiles_a_step_kernel_once(name: str) -> None:
    assert _variants(*ONE_EACH[name]) == 1


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
def test_a_plain_kernel_is_compiled_again_and_again() -> None:
    kernel, *rest = ONE_EACH["_accept_kernel"]
    assert _variants(triton.jit(kernel.fn), *rest) > 2

"""Where a Triton kernel may run, and the variants in which it is compiled."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import triton


def step_kernel(numbers: list[str], aligned: tuple[str, ...] = ()) -> Callable[[Callable[..., Any]], Any]:
    """`triton.jit` for a kernel that decode steps launch: no batch brings a variant that startup has not compiled.

    Args:
        numbers: its integer arguments that may change from step to step; Triton would compile 1 and multiples of 16
            apart.
        aligned: its pointers, by name, that always are multiples of 16 bytes; the others may be slices of a buffer, as
            a tensor of all requests is.
    """

    def compile_rarely(function: Callable[..., Any]) -> Any:
        pointers = [name for name in inspect.signature(function).parameters if name.endswith("_ptr")]
        return triton.jit(
            do_not_specialize=numbers,
            do_not_specialize_on_alignment=[name for name in pointers if name not in aligned],
        )(function)

    return compile_rarely


def require_kernel_device(kernel: Any, tensor: torch.Tensor) -> None:
    """Raise ValueError where `kernel` cannot take `tensor`: compiled kernels take CUDA tensors only."""
    if isinstance(kernel, triton.JITFunction) and not tensor.is_cuda:
        raise ValueError(
            f"the Triton kernels need CUDA tensors, got {tensor.device.type}; use the torch twin, "
            "or TRITON_INTERPRET=1 before Triton is imported"
        )

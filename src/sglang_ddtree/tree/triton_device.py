"""Where a Triton kernel may run."""

from __future__ import annotations

from typing import Any

import torch
import triton


def require_kernel_device(kernel: Any, tensor: torch.Tensor) -> None:
    """Raise ValueError where `kernel` cannot take `tensor`: compiled kernels take CUDA tensors only."""
    if isinstance(kernel, triton.JITFunction) and not tensor.is_cuda:
        raise ValueError(
            f"the Triton kernels need CUDA tensors, got {tensor.device.type}; use the torch twin, "
            "or TRITON_INTERPRET=1 before Triton is imported"
        )

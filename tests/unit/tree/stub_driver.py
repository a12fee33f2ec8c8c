"""Triton's compiler and argument binder without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver


class Driver:
    """Of a Hopper GPU that is not there, as far as compiling goes."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0


class StubTensor:
    """A tensor of which Triton sees the type and the address."""

    def __init__(self, dtype: torch.dtype, address: int) -> None:
        self.dtype, self.address = dtype, address

    def data_ptr(self) -> int:
        return self.address

    def ptr_range(self) -> int:
        return 0


@contextmanager
def compiling_for_hopper() -> Iterator[None]:
    active = driver._active
    driver.set_active(Driver())
    try:
        yield
    finally:
        driver._active = active

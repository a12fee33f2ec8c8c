"""Where and with what a measurement was made."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

PACKAGES = ("sglang-ddtree", "sglang", "torch", "triton", "transformers")


def versions() -> dict[str, str | None]:
    """Version of Python and of each package; None for one that is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def machine() -> dict[str, Any]:
    """Operating system, processor and the names of the GPUs that torch sees."""
    return {"system": platform.platform(), "cpus": os.cpu_count(), "gpus": _gpus()}


def _gpus() -> list[str]:
    try:
        import torch
    except ImportError:
        return []
    # Initialises CUDA only where there is a device; its context would take memory from the servers.
    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]

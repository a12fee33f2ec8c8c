"""What the torch versions of SGLang's kernels have in common: refusals, and the dtype they compute in."""

from __future__ import annotations

from typing import Any

import torch


def refuse(**arguments: Any) -> None:
    """Raise for every argument that is given but not served (neither None nor False).

    Raises:
        NotImplementedError: naming the arguments.
    """
    given = [name for name, value in arguments.items() if value is not None and value is not False]
    if given:
        raise NotImplementedError(f"the CPU platform does not serve the argument {', '.join(given)}")


def compute_dtype(tensor: torch.Tensor) -> torch.dtype:
    """float32, or the tensor's own dtype where that is wider."""
    return torch.promote_types(tensor.dtype, torch.float32)

"""Entry point of the CPU platform. Imports no SGLang, which calls it while it is itself being imported."""

from __future__ import annotations

import os

PLATFORM_NAME = "ddtree_cpu"
NO_GPU = f"there is no NVIDIA GPU here: on a CPU set SGLANG_PLATFORM={PLATFORM_NAME}"


def is_selected() -> bool:
    """Whether this process was told to run on the CPU platform (``SGLANG_PLATFORM=ddtree_cpu``)."""
    return os.environ.get("SGLANG_PLATFORM") == PLATFORM_NAME


def first_advice(problem: str) -> str:
    """`problem` behind what to do first where there is neither an NVIDIA GPU nor this platform.

    What fails there first, a package that only GPU servers need, is not what to mend.
    """
    import torch

    if is_selected() or torch.cuda.is_available() or NO_GPU in problem:
        return problem
    return f"{NO_GPU} ({problem})"


def activate() -> str | None:
    """Name the platform class for SGLang's platform discovery, or None when another platform runs.

    Runs inside ``import sglang`` in every process, before SGLang's model configurations are imported: the one
    place early enough to stand in for a missing torchvision.
    """
    if not is_selected():
        return None
    from sglang_ddtree.cpu import absent_torchvision

    absent_torchvision.install()
    return "sglang_ddtree.cpu.device:DDTreeCpuPlatform"

"""Checkpoints in the form that SGLang loads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sglang_ddtree.host.checkpoint import read_config
from sglang_ddtree.host.drafter import DrafterReport, check_drafter

from .progress import TrainingError

WEIGHTS = "model.safetensors"


def require_free(folder: Path) -> None:
    """Raise `TrainingError` unless `folder` is absent or empty: no earlier result is overwritten."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TrainingError(f"--out {folder} exists; remove it or choose another.")


def write_checkpoint(folder: Path, config: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> None:
    """config.json and model.safetensors, the weights as they are, in the order of their names."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    ordered = {name: weights[name].detach().cpu().contiguous() for name in sorted(weights)}
    save_file(ordered, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(dict(config), indent=2) + "\n")


def export(trained: Path, target: str, out: Path) -> DrafterReport:
    """Write the drafter in `trained` to `out` in bfloat16 and check it as the server does.

    Raises:
        TrainingError: `out` is not free.
        CheckpointError: `trained` is no drafter of this target.
    """
    from safetensors.torch import load_file

    require_free(out)
    check_drafter(str(trained), target)
    weights = {name: weight.to(torch.bfloat16) for name, weight in load_file(trained / WEIGHTS).items()}
    write_checkpoint(out, read_config(str(trained)) | {"dtype": "bfloat16"}, weights)
    return check_drafter(str(out), target)

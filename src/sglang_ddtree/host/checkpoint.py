"""What a checkpoint says of itself: its `config.json` and the headers of its safetensors files."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class CheckpointError(ValueError):
    """A checkpoint that lacks a file, or has one that cannot be read."""


def read_config(path: str, revision: str | None = None) -> dict[str, Any]:
    """The `config.json` of a folder, or of a hub id as the hub's client finds it.

    Raises `CheckpointError` when there is none that can be read.
    """
    local = Path(path)
    try:
        if local.is_file():  # a GGUF file: its config lies beside it
            local = local.parent
        if local.is_dir():
            return dict(json.loads((local / "config.json").read_text()))
        from transformers import PretrainedConfig

        return dict(PretrainedConfig.get_config_dict(path, revision=revision)[0])
    except (OSError, ValueError) as error:
        raise CheckpointError(f"No readable config.json in {path}: {error}") from error


def option(config: Mapping[str, Any], key: str) -> Any:
    """A DFlash option, which a config keeps in `dflash_config` or at its top level; None if in neither."""
    nested = config.get("dflash_config") or {}
    return nested.get(key, config.get(key))


def read_shapes(path: str, revision: str | None = None) -> dict[str, tuple[int, ...]] | None:
    """Name and shape of every tensor of a checkpoint; None when its files cannot be read without loading.

    That is the case for a hub id whose weights are not downloaded yet and for pickled weights. Raises
    `CheckpointError` for a folder without any weights and for a damaged file.
    """
    folder = _weights_folder(path, revision)
    if folder is None:
        return None
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        if any(folder.glob("*.bin")) or any(folder.glob("*.pt")):
            return None
        raise CheckpointError(f"{path} has no weights: no *.safetensors file in {folder}.")
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        for name, entry in _header(file).items():
            if name != "__metadata__":
                shapes[name] = tuple(entry["shape"])
    return shapes


def _weights_folder(path: str, revision: str | None) -> Path | None:
    if Path(path).is_dir():
        return Path(path)
    from huggingface_hub import try_to_load_from_cache

    for name in ("model.safetensors", "model.safetensors.index.json"):
        found = try_to_load_from_cache(path, name, revision=revision)
        if isinstance(found, str):
            return Path(found).parent
    return None


def _header(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(length))
        end = (
            8
            + length
            + max((entry["data_offsets"][1] for entry in header.values() if "shape" in entry), default=0)
        )
        if file.stat().st_size < end:
            raise ValueError(f"ends after {file.stat().st_size} of {end} bytes")
    except (OSError, ValueError, KeyError, struct.error) as error:
        raise CheckpointError(f"{file} is no whole safetensors file: {error}") from error
    return dict(header)

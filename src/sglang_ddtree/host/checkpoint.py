"""What a checkpoint says of itself: its `config.json` and the headers of its safetensors files."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class CheckpointError(ValueError):
    """A checkpoint that lacks a file, or has one that cannot be read or holds the wrong kind of value."""


def read_config(path: str, revision: str | None = None) -> dict[str, Any]:
    """The `config.json` of a folder, or of a hub id as the hub's client finds it.

    Raises `CheckpointError` when there is none that can be read.
    """
    local = Path(path)
    try:
        if local.is_file():  # a GGUF file: its config lies beside it
            _require_gguf(local)
            local = local.parent
        if is_missing(path):
            raise CheckpointError(f"{path}: no such file or folder.")
        if local.is_dir():
            config = json.loads((local / "config.json").read_text())
        else:
            from transformers import PretrainedConfig

            config = PretrainedConfig.get_config_dict(path, revision=revision)[0]
    except CheckpointError:
        raise
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"No readable config.json in {path}: {error}") from error
    if not isinstance(config, Mapping):
        raise CheckpointError(f"The config.json of {path} holds {shown(config)}, it must be a mapping.")
    return dict(config)


def is_missing(path: str) -> bool:
    """Whether `path` is no hub id (owner/name) and nothing lies there: the hub's client would retry for a minute."""
    return not Path(path).exists() and (path.startswith(("/", ".", "~")) or path.count("/") != 1)


def shown(value: Any) -> str:
    """`repr` of a value from a file, cut to fit into a message."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _require_gguf(file: Path) -> None:
    # The one kind of single file that SGLang loads; told as SGLang does, by its name or its first bytes.
    if file.suffix == ".gguf":
        return
    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise CheckpointError(
                f"{file} is a file; a checkpoint is a folder or a hub id. Give its folder, {file.parent}."
            )


def option(config: Mapping[str, Any], key: str) -> Any:
    """A DFlash option, which a config keeps in `dflash_config` or at its top level; None if in neither.

    Raises `CheckpointError` when `dflash_config` is no mapping.
    """
    nested = config.get("dflash_config")
    if nested is None:
        nested = {}
    if not isinstance(nested, Mapping):
        raise CheckpointError(f"dflash_config is {shown(nested)}, it must be a mapping.")
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
    if Path(path).is_file():  # GGUF: `read_config` refuses any other
        return None
    from huggingface_hub import try_to_load_from_cache

    for name in ("model.safetensors", "model.safetensors.index.json"):
        found = try_to_load_from_cache(path, name, revision=revision)
        if isinstance(found, str):
            return Path(found).parent
    return None


def _header(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            size = file.stat().st_size
            (length,) = struct.unpack("<Q", stream.read(8))
            if size < 8 + length:
                raise ValueError(f"ends after {size} of {8 + length} bytes")
            header = json.loads(stream.read(length))
        tensors = [entry for name, entry in header.items() if name != "__metadata__"]
        if not all(isinstance(entry["shape"], list) for entry in tensors):
            raise ValueError("a tensor's shape is no list")
        end = 8 + length + max((entry["data_offsets"][1] for entry in tensors), default=0)
        if size < end:
            raise ValueError(f"ends after {size} of {end} bytes")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, struct.error) as error:
        raise CheckpointError(f"{file} is no whole safetensors file: {error}") from error
    return dict(header)

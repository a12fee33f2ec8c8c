"""Tiny random hybrid checkpoints: Gated DeltaNet in three layers of four, full attention in the last.

Hot tokens and tokenizer are those of `checkpoints`, whose drafters fit these targets too.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from e2e import checkpoints
from e2e.checkpoints import (
    CONTEXT,
    EOS_ID,
    HIDDEN,
    HOT_TOKENS,
    KV_HEADS,
    LAYERS,
    MLP,
    PAD_ID,
    ROPE_THETA,
    VOCABULARY,
)

HEADS, HEAD_DIM = 4, 32  # full attention
KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, CONV_WIDTH = 2, 4, 32, 16, 4  # Gated DeltaNet
EXPERTS, EXPERTS_PER_TOKEN, EXPERT_MLP = 4, 2, 64
FULL_ATTENTION_INTERVAL = 4
EXACT = {"SGLANG_MAMBA_CONV_DTYPE": "float32"}
"""The environment of a server whose convolution windows are not rounded to bfloat16, SGLang's default.

The recurrent states are float32 anyway: `mamba_ssm_dtype` in the configuration.
"""
STATES = 128
"""For `max_mamba_cache_size`: left alone SGLang fills half of the memory with states, which takes many seconds."""


def make_hybrid_target(
    folder: Path,
    kind: str = "qwen3_5",
    *,
    vocabulary: int = VOCABULARY,
    hot_tokens: tuple[int, ...] = HOT_TOKENS,
    hot_scale: float = 0.35,
    seed: int = 0,
) -> Path:
    """A text-only Qwen3.5 with dense MLPs, or a Qwen3-Next (`kind` "qwen3_next"), float32.

    The recurrent states decay slowly, by factors around 0.9 to 0.999 a token, and their outputs are as large as
    the attention's: the text depends on them.
    """
    random = checkpoints._Random(seed, scale=0.08)
    head = random(vocabulary, HIDDEN) * 0.25
    head[list(hot_tokens)] = random(len(hot_tokens), HIDDEN) / 0.08 * hot_scale
    weights = {
        "model.embed_tokens.weight": random(vocabulary, HIDDEN),
        "model.norm.weight": torch.zeros(HIDDEN),  # these models scale by 1 + weight
        "lm_head.weight": head,
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        is_full = (layer + 1) % FULL_ATTENTION_INTERVAL == 0
        weights |= _attention(random, prefix) if is_full else _deltanet(random, prefix, kind)
        weights |= _dense_mlp(random, f"{prefix}.mlp") if kind == "qwen3_5" else _moe(random, prefix)
        weights[f"{prefix}.input_layernorm.weight"] = torch.zeros(HIDDEN)
        weights[f"{prefix}.post_attention_layernorm.weight"] = torch.zeros(HIDDEN)
    config = _config(kind, vocabulary)
    checkpoints._save(folder, config, weights)
    ids = {"eos_token_id": EOS_ID, "pad_token_id": PAD_ID}
    checkpoints._write_json(folder / "generation_config.json", ids)
    if vocabulary >= VOCABULARY:
        checkpoints._save_tokenizer(folder)
    return folder


def _deltanet(random: Any, prefix: str, kind: str) -> dict[str, torch.Tensor]:
    name = f"{prefix}.linear_attn"
    key_size, value_size = KEY_HEADS * KEY_DIM, VALUE_HEADS * VALUE_DIM
    sizes = {"qkv": 2 * key_size + value_size, "z": value_size, "b": VALUE_HEADS, "a": VALUE_HEADS}
    if kind == "qwen3_next":
        sizes = {"qkvz": 2 * key_size + 2 * value_size, "ba": 2 * VALUE_HEADS}
    weights = {f"{name}.in_proj_{part}.weight": random(size, HIDDEN) for part, size in sizes.items()}
    # exp(-exp(A_log) * softplus(dt_bias + a)): decays of 0.999, 0.99, 0.97 and 0.9 around a = 0.
    rates = torch.tensor([0.001, 0.01, 0.03, 0.1])
    return weights | {
        f"{name}.conv1d.weight": random(2 * key_size + value_size, 1, CONV_WIDTH) / 0.08 * 0.5,
        f"{name}.A_log": (rates / torch.nn.functional.softplus(torch.tensor(1.0))).log(),
        f"{name}.dt_bias": torch.ones(VALUE_HEADS),
        f"{name}.norm.weight": torch.ones(VALUE_DIM),
        f"{name}.out_proj.weight": random(HIDDEN, value_size) * 2,
    }


def _attention(random: Any, prefix: str) -> dict[str, torch.Tensor]:
    name = f"{prefix}.self_attn"
    return {
        f"{name}.q_proj.weight": random(2 * HEADS * HEAD_DIM, HIDDEN),  # with the output gate
        f"{name}.k_proj.weight": random(KV_HEADS * HEAD_DIM, HIDDEN),
        f"{name}.v_proj.weight": random(KV_HEADS * HEAD_DIM, HIDDEN),
        f"{name}.o_proj.weight": random(HIDDEN, HEADS * HEAD_DIM),
        f"{name}.q_norm.weight": torch.zeros(HEAD_DIM),
        f"{name}.k_norm.weight": torch.zeros(HEAD_DIM),
    }


def _dense_mlp(random: Any, name: str, size: int = MLP) -> dict[str, torch.Tensor]:
    return {
        f"{name}.gate_proj.weight": random(size, HIDDEN),
        f"{name}.up_proj.weight": random(size, HIDDEN),
        f"{name}.down_proj.weight": random(HIDDEN, size),
    }


def _moe(random: Any, prefix: str) -> dict[str, torch.Tensor]:
    # SGLang's Qwen3-Next has experts in every layer, whatever `mlp_only_layers` says.
    name = f"{prefix}.mlp"
    weights = {f"{name}.gate.weight": random(EXPERTS, HIDDEN)}
    for expert in range(EXPERTS):
        weights |= _dense_mlp(random, f"{name}.experts.{expert}", EXPERT_MLP)
    weights |= _dense_mlp(random, f"{name}.shared_expert", EXPERT_MLP)
    return weights | {f"{name}.shared_expert_gate.weight": random(1, HIDDEN)}


def _config(kind: str, vocabulary: int) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": ROPE_THETA, "partial_rotary_factor": 0.25}
    config = {
        "dtype": "float32",
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": False,
        "partial_rotary_factor": 0.25,
        "full_attention_interval": FULL_ATTENTION_INTERVAL,
        "linear_num_key_heads": KEY_HEADS,
        "linear_num_value_heads": VALUE_HEADS,
        "linear_key_head_dim": KEY_DIM,
        "linear_value_head_dim": VALUE_DIM,
        "linear_conv_kernel_dim": CONV_WIDTH,
        "mamba_ssm_dtype": "float32",
        "eos_token_id": EOS_ID,
        "pad_token_id": PAD_ID,
    }
    if kind == "qwen3_5":
        # As in the released ones: rotary positions of three kinds, which are equal for text.
        rope |= {"mrope_section": [2, 1, 1], "mrope_interleaved": True}
        own = {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "rope_parameters": rope}
    elif kind == "qwen3_next":
        own = {
            "architectures": ["Qwen3NextForCausalLM"],
            "model_type": "qwen3_next",
            "rope_theta": ROPE_THETA,
            "num_experts": EXPERTS,
            "num_experts_per_tok": EXPERTS_PER_TOKEN,
            "moe_intermediate_size": EXPERT_MLP,
            "shared_expert_intermediate_size": EXPERT_MLP,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    else:
        raise ValueError(f"kind {kind!r}: expected 'qwen3_5' or 'qwen3_next'")
    return config | own


if __name__ == "__main__":  # python -m e2e.hybrid_checkpoints DIR (from tests/): for a look by hand
    for kind in ("qwen3_5", "qwen3_next"):
        print(make_hybrid_target(Path(sys.argv[1]) / kind, kind))

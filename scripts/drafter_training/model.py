"""The drafter in training: its config, its first weights, and many blocks of a sequence in one forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.qwen3.modeling_qwen3 import apply_rotary_pos_emb

from sglang_ddtree.host.drafter import ARCHITECTURE, rope_theta
from sglang_ddtree.sketch.drafter import Drafter
from sglang_ddtree.tree.capacity import MAX_DEPTHS

from .export import write_checkpoint
from .progress import TrainingError

INITIAL_STD = 0.02
# Small at first, so that a layer begins near the identity.
OUTWARD = ("o_proj", "down_proj")
OUTWARD_SCALE = 0.35


def default_layer_ids(num_layers: int, count: int = 5) -> list[int]:
    """`count` layers from the second to the third-last, evenly spread, halves rounded up; fewer in a small target."""
    first, last = min(1, num_layers - 2), max(num_layers - 3, min(1, num_layers - 2))
    count = min(count, last - first + 1)
    if count < 2:
        return [first]
    return [int(first + number * (last - first) / (count - 1) + 0.5) for number in range(count)]


def drafter_config(
    target: Mapping[str, Any],
    *,
    block_size: int,
    layers: int,
    layer_ids: Sequence[int] | None,
    mask_token: int,
) -> dict[str, Any]:
    """The drafter's config.json; its sizes are those of the target's layers.

    Raises:
        TrainingError: a value that no drafter of this target can have.
    """
    check_choices(target, block_size=block_size, layers=layers, layer_ids=layer_ids, mask_token=mask_token)
    heads = target["num_attention_heads"]
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        "dtype": "float32",
        "hidden_size": target["hidden_size"],
        "intermediate_size": target["intermediate_size"],
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": target.get("num_key_value_heads") or heads,
        "head_dim": target.get("head_dim") or target["hidden_size"] // heads,
        "vocab_size": target["vocab_size"],
        "max_position_embeddings": target.get("max_position_embeddings") or 4096,
        "rms_norm_eps": target.get("rms_norm_eps") or 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rope_theta": rope_theta(target) or 10000.0,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": layers,
        "layer_types": ["full_attention"] * layers,
        "bos_token_id": target.get("bos_token_id"),
        "eos_token_id": target.get("eos_token_id"),
        "pad_token_id": target.get("pad_token_id"),
        "initializer_range": INITIAL_STD,
        "use_cache": True,
        "block_size": block_size,
        "num_target_layers": target["num_hidden_layers"],
        "dflash_config": {
            "mask_token_id": mask_token,
            "target_layer_ids": list(layer_ids or default_layer_ids(target["num_hidden_layers"])),
        },
    }


def check_choices(
    target: Mapping[str, Any],
    *,
    block_size: int,
    layers: int,
    layer_ids: Sequence[int] | None,
    mask_token: int | None,
) -> None:
    """Raise `TrainingError` for what no drafter of this target can have; None is yet to be chosen."""
    if not 2 <= block_size <= MAX_DEPTHS + 1:
        raise TrainingError(f"--block-size must be from 2 to {MAX_DEPTHS + 1}, got {block_size}.")
    if layers < 1:
        raise TrainingError(f"--layers must be at least 1, got {layers}.")
    count = target["num_hidden_layers"]
    if count < 2:
        raise TrainingError("--model: it has one layer; the states behind its last layer cannot be read.")
    if layer_ids is not None:
        outside = [layer for layer in layer_ids if not 0 <= layer <= count - 2]
        if outside:
            raise TrainingError(
                f"--target-layers {outside}: a target of {count} layers has 0..{count - 2} to read (the last "
                "layer's states are not handed over)."
            )
        if not layer_ids or list(layer_ids) != sorted(set(layer_ids)):
            raise TrainingError(f"--target-layers {list(layer_ids)} must ascend without repetition.")
    if mask_token is not None and not 0 <= mask_token < target["vocab_size"]:
        raise TrainingError(
            f"--mask-token {mask_token} is outside the vocabulary of {target['vocab_size']} tokens."
        )


def start(config: Mapping[str, Any], folder: Path, seed: int) -> Drafter:
    """A fresh drafter in float32, whose first checkpoint is in `folder`."""
    write_checkpoint(folder, config, first_weights(config, seed))
    return Drafter(folder)


def first_weights(config: Mapping[str, Any], seed: int) -> dict[str, torch.Tensor]:
    """Random matrices and norms of one, float32, by tensor name."""
    generator = torch.Generator().manual_seed(seed)
    size, inner, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = (config[key] * head_dim for key in ("num_attention_heads", "num_key_value_heads"))
    shapes: dict[str, tuple[int, ...]] = {
        "fc": (size, size * len(config["dflash_config"]["target_layer_ids"])),
        "hidden_norm": (size,),
        "norm": (size,),
    }
    for layer in range(config["num_hidden_layers"]):
        shapes |= {
            f"layers.{layer}.{name}": shape
            for name, shape in {
                "self_attn.q_proj": (queries, size),
                "self_attn.k_proj": (keys, size),
                "self_attn.v_proj": (keys, size),
                "self_attn.o_proj": (size, queries),
                "self_attn.q_norm": (head_dim,),
                "self_attn.k_norm": (head_dim,),
                "mlp.gate_proj": (inner, size),
                "mlp.up_proj": (inner, size),
                "mlp.down_proj": (size, inner),
                "input_layernorm": (size,),
                "post_attention_layernorm": (size,),
            }.items()
        }
    weights = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            weights[f"{name}.weight"] = torch.ones(shape)
        else:
            scale = INITIAL_STD * (OUTWARD_SCALE if name.endswith(OUTWARD) else 1.0)
            weights[f"{name}.weight"] = torch.randn(shape, generator=generator) * scale
    return weights


def draft_blocks(
    drafter: Drafter, features: torch.Tensor, anchors: torch.Tensor, embeds: torch.Tensor
) -> torch.Tensor:
    """What the drafter says in A blocks of every sequence, as if each were drafted alone: [B, A, S, hidden].

    Args:
        features: [B, L, layers * hidden], the target's states of the sequences.
        anchors: int64 [B, A], the position of each block's first slot. A block sees the features before it.
        embeds: [B, A, S, hidden], the target's embeddings of each block's known token and mask tokens.
    """
    batch, count, slots, size = embeds.shape
    positions = (anchors[:, :, None] + torch.arange(slots, device=anchors.device)).flatten(1)
    x = embeds.flatten(1, 2)
    context = drafter.hidden_norm(drafter.fc(features))
    before = torch.arange(features.shape[1], device=anchors.device)[None]
    rotary = drafter.rotary(x, before), drafter.rotary(x, positions)
    mask = block_mask(anchors, features.shape[1], slots)
    layer: Any  # mypy takes a ModuleList's items for tensors
    for layer in drafter.layers:
        x = x + _attend(layer.self_attn, layer.input_layernorm(x), context, rotary, mask)
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return drafter.norm(x).view(batch, count, slots, size)


def block_mask(anchors: torch.Tensor, length: int, slots: int) -> torch.Tensor:
    """bool [B, 1, A * S, L + A * S], true where a slot (row) sees: the context before its anchor, its own block."""
    batch, count = anchors.shape
    seen = torch.arange(length, device=anchors.device) < anchors[:, :, None]
    context = seen.repeat_interleave(slots, dim=1)
    block = torch.arange(count, device=anchors.device).repeat_interleave(slots)
    own = (block[:, None] == block).expand(batch, -1, -1)
    return torch.cat([context, own], dim=2)[:, None]


def _attend(
    attention: Any, x: torch.Tensor, context: torch.Tensor, rotary: Any, mask: torch.Tensor
) -> torch.Tensor:
    def heads(states: torch.Tensor) -> torch.Tensor:
        return states.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)

    def keys(states: torch.Tensor, angles: Any) -> torch.Tensor:
        found = attention.k_norm(heads(attention.k_proj(states)))
        return apply_rotary_pos_emb(found, found, *angles)[0]

    before, own = rotary
    q = attention.q_norm(heads(attention.q_proj(x)))
    q = apply_rotary_pos_emb(q, q, *own)[0]
    k = torch.cat([keys(context, before), keys(x, own)], dim=2)
    v = torch.cat([heads(attention.v_proj(context)), heads(attention.v_proj(x))], dim=2)
    # Repeated by hand: with a mask, torch's kernels for grouped heads fall back to the slow one.
    group = q.shape[1] // k.shape[1]
    k, v = (part.repeat_interleave(group, dim=1) for part in (k, v))
    mixed = scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, attn_mask=mask)
    output: torch.Tensor = attention.o_proj(mixed.transpose(1, 2).flatten(2))
    return output

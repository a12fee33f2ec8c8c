"""A plain DFlash drafter in transformers' parts: enough for one block, slow and easy to read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3MLP,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    apply_rotary_pos_emb,
)

from ..host.checkpoint import option, read_config


class Drafter(nn.Module):
    """Block of mask tokens behind the target's hidden states -> hidden states of the block.

    `folder` has passed `check_drafter`; its tensors' names are those of the modules here.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        raw = read_config(str(folder))
        self.block_size = int(option(raw, "block_size"))
        self.mask_token_id = int(option(raw, "mask_token_id"))
        self.target_layer_ids = [int(layer) for layer in option(raw, "target_layer_ids")]
        config = Qwen3Config.from_dict(raw)
        size = config.hidden_size
        self.fc = nn.Linear(size * len(self.target_layer_ids), size, bias=False)
        self.hidden_norm = Qwen3RMSNorm(size, config.rms_norm_eps)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = Qwen3RMSNorm(size, config.rms_norm_eps)
        self.rotary = Qwen3RotaryEmbedding(config)
        weights: dict[str, torch.Tensor] = {}
        for file in sorted(folder.glob("*.safetensors")):
            weights |= load_file(file)
        self.load_state_dict(weights)

    def forward(self, embeds: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """Hidden states [1, block_size, hidden] of the block.

        Args:
            embeds: [1, block_size, hidden], the target's embeddings of bonus token and mask tokens.
            context: [1, anchor, layers * hidden], the target's hidden states before the bonus token.
        """
        context = self.hidden_norm(self.fc(context))
        positions = torch.arange(context.shape[1] + embeds.shape[1], device=embeds.device)[None]
        rotary = self.rotary(embeds, positions)
        for layer in self.layers:
            embeds = layer(embeds, context, rotary)
        return self.norm(embeds)


class _Layer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.input_layernorm = Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = _Attention(config)
        self.post_attention_layernorm = Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Qwen3MLP(config)

    def forward(self, x: torch.Tensor, context: torch.Tensor, rotary: Any) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), context, rotary)
        return x + self.mlp(self.post_attention_layernorm(x))


class _Attention(nn.Module):
    """Every slot of the block sees the context and the whole block."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        queries, keys = (
            heads * self.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads)
        )
        size, bias = config.hidden_size, config.attention_bias
        self.q_proj = nn.Linear(size, queries, bias=bias)
        self.k_proj = nn.Linear(size, keys, bias=bias)
        self.v_proj = nn.Linear(size, keys, bias=bias)
        self.o_proj = nn.Linear(queries, size, bias=bias)
        self.q_norm = Qwen3RMSNorm(self.head_dim, config.rms_norm_eps)
        self.k_norm = Qwen3RMSNorm(self.head_dim, config.rms_norm_eps)

    def forward(self, x: torch.Tensor, context: torch.Tensor, rotary: Any) -> torch.Tensor:
        seen = torch.cat([context, x], dim=1)
        q, k, v = self.q_norm(self._heads(self.q_proj(x))), self._heads(self.k_proj(seen)), self.v_proj(seen)
        q, k, v = (part.transpose(1, 2) for part in (q, self.k_norm(k), self._heads(v)))
        cos, sin = rotary
        q, _ = apply_rotary_pos_emb(q, q, cos[:, -q.shape[2] :], sin[:, -q.shape[2] :])
        k, _ = apply_rotary_pos_emb(k, k, cos, sin)
        mixed = scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (-1, self.head_dim))

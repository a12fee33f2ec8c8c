"""DDTREE's greedy decode loop in plain Hugging Face and torch code, written from the paper for the tests alone.

Greedy decoding emits the target's own greedy text whatever is drafted. So the oracle needs no tree forward: it
takes the target's text and hidden states from one causal forward, drafts at each anchor, builds the tree with a
heap and walks the known text through it.
"""

from __future__ import annotations

import heapq
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.nn.functional import scaled_dot_product_attention, silu

Node = tuple[int, ...]


@dataclass
class Step:
    """One decode step: the draft's tree as token paths in best-first order, and what was committed."""

    paths: list[Node]
    scores: list[float]
    accept_len: int


class Drafter:
    """A plain DFlash drafter in float32: context from the target's layers, a block of mask tokens."""

    def __init__(self, folder: Path) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = {name: w.float() for name, w in load_file(folder / "model.safetensors").items()}
        self.block_size = self.config["block_size"]
        self.mask_token = self.config["dflash_config"]["mask_token_id"]
        self.target_layers = self.config["dflash_config"]["target_layer_ids"]

    def distributions(
        self, hidden: torch.Tensor, token: int, anchor: int, embedding: torch.Tensor, head: torch.Tensor
    ) -> torch.Tensor:
        """float64 log-probabilities [block_size - 1, vocabulary] for the block whose slot 0 is `token` at `anchor`.

        hidden: float32 [>= anchor, layers * hidden], the target's hidden states of the text before the anchor.
        """
        block = torch.full((self.block_size,), self.mask_token)
        block[0] = token
        context = self._norm(hidden[:anchor] @ self.weights["fc.weight"].T, "hidden_norm.weight")
        x = embedding[block]
        for layer in range(self.config["num_hidden_layers"]):
            x = self._layer(f"layers.{layer}.", x, context, anchor)
        x = self._norm(x, "norm.weight")[1:]
        return torch.log_softmax((x @ head.T).double(), dim=-1)

    def _layer(self, name: str, x: torch.Tensor, context: torch.Tensor, anchor: int) -> torch.Tensor:
        w, cfg = self.weights, self.config
        attention = name + "self_attn."
        inner = self._norm(x, name + "input_layernorm.weight")
        sources = torch.cat([context, inner])
        positions = torch.arange(anchor + self.block_size)
        q = self._heads(inner @ w[attention + "q_proj.weight"].T, cfg["num_attention_heads"])
        k = self._heads(sources @ w[attention + "k_proj.weight"].T, cfg["num_key_value_heads"])
        v = self._heads(sources @ w[attention + "v_proj.weight"].T, cfg["num_key_value_heads"])
        q = self._rope(self._norm(q, attention + "q_norm.weight"), positions[anchor:])
        k = self._rope(self._norm(k, attention + "k_norm.weight"), positions)
        mixed = scaled_dot_product_attention(q[None], k[None], v[None], enable_gqa=True)[0]
        x = x + mixed.transpose(0, 1).flatten(1) @ w[attention + "o_proj.weight"].T
        inner = self._norm(x, name + "post_attention_layernorm.weight")
        gate = silu(inner @ w[name + "mlp.gate_proj.weight"].T)
        return x + (gate * (inner @ w[name + "mlp.up_proj.weight"].T)) @ w[name + "mlp.down_proj.weight"].T

    def _heads(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        return x.view(x.shape[0], heads, -1).transpose(0, 1)

    def _norm(self, x: torch.Tensor, weight: str) -> torch.Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return x * scale * self.weights[weight]

    def _rope(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        theta = self.config.get("rope_theta") or self.config["rope_parameters"]["rope_theta"]
        angles = positions[:, None] * theta ** (-torch.arange(half) / half)
        cos, sin = angles.cos(), angles.sin()
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def best_first_paths(logprobs: torch.Tensor, budget: int, cap: int) -> tuple[list[Node], list[float]]:
    """The `budget` most probable token paths of at most L tokens, and their summed log-probabilities."""
    values, tokens = logprobs.topk(min(cap, budget, logprobs.shape[1]))
    depths = values.shape[0]
    heap = [(-float(values[0, 0]), (0,))]
    paths: list[Node] = []
    scores: list[float] = []
    while heap and len(paths) < budget:
        cost, ranks = heapq.heappop(heap)
        depth, rank = len(ranks) - 1, ranks[-1]
        paths.append(tuple(int(tokens[d, r]) for d, r in enumerate(ranks)))
        scores.append(-cost)
        if rank + 1 < values.shape[1]:
            sibling = cost + float(values[depth, rank] - values[depth, rank + 1])
            heapq.heappush(heap, (sibling, (*ranks[:-1], rank + 1)))
        if depth + 1 < depths:
            heapq.heappush(heap, (cost - float(values[depth + 1, 0]), (*ranks, 0)))
    return paths, scores


def accept_len(paths: list[Node], text: list[int]) -> int:
    """Tokens a step commits: the accepted nodes and the bonus. `text` is the target's continuation."""
    known = set(paths)
    depth = 0
    while depth < len(text) and tuple(text[: depth + 1]) in known:
        depth += 1
    return depth + 1


@torch.inference_mode()
def greedy_steps(
    target: torch.nn.Module, drafter: Drafter, prompt: list[int], text: list[int], *, budget: int, cap: int
) -> list[Step]:
    """The decode steps along `text`, the target's greedy continuation.

    The last ones are left out: a walk that reaches the end of the known text might have gone on.
    """
    sequence = prompt + text
    states = target(torch.tensor([sequence]), output_hidden_states=True).hidden_states
    hidden = torch.cat([states[layer + 1][0] for layer in drafter.target_layers], dim=-1)
    embedding = target.get_input_embeddings().weight
    head = target.get_output_embeddings().weight
    done, steps = 1, []  # the first token comes from prefill
    while True:
        anchor = len(prompt) + done - 1
        known = sequence[anchor + 1 :]
        logprobs = drafter.distributions(hidden, sequence[anchor], anchor, embedding, head)
        paths, scores = best_first_paths(logprobs, budget, cap)
        committed = accept_len(paths, known)
        if committed > len(known):
            return steps
        steps.append(Step(paths, scores, committed))
        done += committed

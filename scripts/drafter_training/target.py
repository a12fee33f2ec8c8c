"""The target: what its config says, checked before anything is loaded, and its hidden states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from sglang_ddtree.host.checkpoint import read_config

from .progress import TrainingError

REQUIRED = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
)


def read_target(path: str) -> dict[str, Any]:
    """The target's config, with all that a drafter takes from it.

    Raises:
        CheckpointError: no readable config.json.
        TrainingError: the config of another kind of model.
    """
    config = read_config(path)
    if isinstance(config.get("text_config"), Mapping):
        raise TrainingError(
            f"--model {path}: its config.json has a text_config; only plain causal LMs can be drafted for here."
        )
    for key in REQUIRED:
        if not _is_count(config.get(key)):
            raise TrainingError(
                f"--model {path}: its config.json has {key} = {config.get(key)!r}, it must be a whole number "
                "from 1: a dense Llama- or Qwen-like model is needed."
            )
    if config.get("final_logit_softcapping"):
        raise TrainingError(
            f"--model {path}: it transforms its logits (final_logit_softcapping); DDTREE takes no such drafter."
        )
    return config


def read_stops(target: Any) -> list[int]:
    """The token ids that end an answer; none where the checkpoint names none."""
    for config in (target.generation_config, target.config):
        found = getattr(config, "eos_token_id", None)
        if found is not None:
            return [found] if isinstance(found, int) else list(found)
    return []


def pick_device(name: str) -> torch.device:
    """ "auto" is the GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise TrainingError("--device cuda: torch sees no GPU here.")
    return torch.device(name)


def load_target(path: str, device: torch.device, dtype: torch.dtype) -> Any:
    """The frozen target, by transformers.

    Raises:
        TrainingError: it does not load, or its head is none that a drafter can borrow.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    try:
        target = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise TrainingError(f"--model {path}: transformers cannot load it: {error}") from error
    head = target.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear) or head.bias is not None:
        raise TrainingError(f"--model {path}: its output head is {head}, it must be linear without bias.")
    return target.to(device).eval().requires_grad_(False)


@torch.no_grad()
def context_features(target: Any, tokens: torch.Tensor, layer_ids: Sequence[int]) -> torch.Tensor:
    """The hidden states that a drafter reads, side by side: [B, L, layers * hidden] in the target's dtype.

    Args:
        tokens: int64 [B, L], padded behind its end, if at all: attention is causal, so nothing sees that.
        layer_ids: the states behind these layers; never the last layer's, which transformers normalises.
    """
    states = target.base_model(tokens, output_hidden_states=True, use_cache=False).hidden_states
    return torch.cat([states[layer + 1] for layer in layer_ids], dim=-1)


def compile_layers(target: Any) -> None:
    """Fuse what each of the target's layers does between its matrix products. Layers of one kind share the code.

    Only `forward` is compiled: transformers hands states over in hooks around it, which no compiler follows.
    """
    kinds = set(target._no_split_modules or ())
    for module in target.modules():
        if type(module).__name__ in kinds:
            module.forward = torch.compile(module.forward, dynamic=True)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1

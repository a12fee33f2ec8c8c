"""Greedy decoding in plain Hugging Face code: float32, one prompt at a time, KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


class GreedyOracle:
    """The tokens that a target chooses greedily, independent of SGLang and of this package."""

    def __init__(self, checkpoint: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()

    @torch.inference_mode()
    def generate(self, prompt: Sequence[int], count: int, stop: int | None = None) -> list[int]:
        """The next `count` token ids after `prompt`, ending early behind the token `stop`."""
        tokens: list[int] = []
        fresh, cache = list(prompt), None
        while len(tokens) < count:
            output = self.model(torch.tensor([fresh]), past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            token = int(output.logits[0, -1].argmax())
            tokens.append(token)
            if token == stop:
                break
            fresh = [token]
        return tokens

    @torch.inference_mode()
    def chooses(self, prompt: Sequence[int], text: Sequence[int]) -> bool:
        """Whether `text` is the greedy continuation of `prompt`, by one forward over both.

        Each token is the argmax after all before it, which by induction is what `generate` would give.
        """
        logits = self.model(torch.tensor([[*prompt, *text]])).logits[0]
        return logits[len(prompt) - 1 : -1].argmax(-1).tolist() == list(text)

    @torch.inference_mode()
    def next_token_probabilities(self, prompt: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
        """Softmax over the vocabulary behind `prompt`, float32 ``[vocabulary]``."""
        logits = self.model(torch.tensor([list(prompt)])).logits[0, -1]
        return (logits / temperature).softmax(-1)

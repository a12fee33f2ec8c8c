"""Prompts of mixed length for the tiny target."""

from __future__ import annotations

import random


def mixed_prompts(
    count: int, *, shortest: int = 1, longest: int = 120, vocabulary: int = 512, seed: int = 0
) -> list[list[int]]:
    """`count` prompts of random token ids (the four special tokens left out), the same for the same seed."""
    source = random.Random(seed)
    return [
        [source.randrange(4, vocabulary) for _ in range(source.randint(shortest, longest))]
        for _ in range(count)
    ]

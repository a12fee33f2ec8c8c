"""Prompts and the target's answers to them, as files and as batches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sglang_ddtree.bench.prompt_sets import BUILT_IN, Prompt, built_in, read_file

from .progress import TrainingError

FORMAT = "ddtree-answers"
BUCKET = 64
"""Sequences are padded to multiples of this many tokens."""


@dataclass(frozen=True)
class Answers:
    """N sequences of prompt and answer, end to end.

    Attributes:
        tokens: int32 [sum of lengths].
        lengths: int64 [N], prompt and answer together.
        prompt_lengths: int64 [N]; the answer's first token is at this position.
    """

    tokens: torch.Tensor
    lengths: torch.Tensor
    prompt_lengths: torch.Tensor

    @classmethod
    def of(cls, sequences: Sequence[tuple[list[int], list[int]]]) -> Answers:
        """From pairs of prompt and answer."""
        return cls(
            torch.tensor([t for prompt, answer in sequences for t in (*prompt, *answer)], dtype=torch.int32),
            torch.tensor([len(prompt) + len(answer) for prompt, answer in sequences], dtype=torch.int64),
            torch.tensor([len(prompt) for prompt, _ in sequences], dtype=torch.int64),
        )

    def __len__(self) -> int:
        return len(self.lengths)

    def save(self, file: Path, vocab_size: int, made: dict[str, Any]) -> None:
        """Write the file that `load` reads; `made` says how the answers came to be."""
        from safetensors.torch import save_file

        tensors = {
            "tokens": self.tokens,
            "lengths": self.lengths,
            "prompt_lengths": self.prompt_lengths,
        }
        metadata = {"format": FORMAT, "vocab_size": str(vocab_size), "made": json.dumps(made)}
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, file, metadata=metadata)

    @classmethod
    def load(cls, files: Sequence[Path], vocab_size: int) -> Answers:
        """All sequences of the files.

        Raises:
            TrainingError: a file that `generate` did not write, or for a target of another vocabulary.
        """
        parts = [_load(file, vocab_size) for file in files]
        return cls(
            torch.cat([part.tokens for part in parts]),
            torch.cat([part.lengths for part in parts]),
            torch.cat([part.prompt_lengths for part in parts]),
        )

    def rows(self, rows: torch.Tensor, length: int) -> torch.Tensor:
        """int64 [rows, length]: these sequences, zeros behind their ends."""
        starts = (self.lengths.cumsum(0) - self.lengths)[rows]
        at = torch.arange(length)
        inside = at < self.lengths[rows, None]
        found = self.tokens[(starts[:, None] + at).clamp(max=len(self.tokens) - 1)]
        return torch.where(inside, found, 0).long()

    def unused_token(self, vocab_size: int) -> int:
        """The highest token that no sequence holds."""
        used = torch.zeros(vocab_size, dtype=torch.bool)
        used[self.tokens.long()] = True
        if bool(used.all()):
            raise TrainingError(
                "--mask-token: the data holds every token of the vocabulary; name one that the target hardly uses."
            )
        return int((~used).nonzero().max())


@dataclass(frozen=True)
class Batch:
    """Sequences of similar length: `rows` of the answers, padded to `length`."""

    rows: torch.Tensor
    length: int


def batches(answers: Answers, rows: torch.Tensor, tokens: int, generator: torch.Generator) -> Iterator[Batch]:
    """One epoch over `rows`, each batch of at most `tokens` padded tokens, in random order."""
    shuffled = rows[torch.randperm(len(rows), generator=generator)]
    padded = -(-answers.lengths[shuffled] // BUCKET) * BUCKET
    found = []
    for length in padded.unique().tolist():
        inside = shuffled[padded == length]
        found += [Batch(part, length) for part in inside.split(max(1, tokens // length))]
    for at in torch.randperm(len(found), generator=generator).tolist():
        yield found[at]


def read_prompts(sources: Sequence[str]) -> list[Prompt]:
    """The prompts of files and of built-in sets, each text once.

    Raises:
        PromptError: a file that cannot be read as prompts.
    """
    found: dict[str, Prompt] = {}
    for source in sources:
        for prompt in built_in(source) if source in BUILT_IN else read_file(Path(source)):
            found.setdefault(prompt.text, prompt)
    return list(found.values())


def _load(file: Path, vocab_size: int) -> Answers:
    from safetensors import SafetensorError, safe_open

    if not file.is_file():
        raise TrainingError(f"--data {file}: no such file.")
    try:
        with safe_open(file, "pt") as opened:
            metadata = opened.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise TrainingError(f"--data {file}: not a file of `generate`.")
            if int(metadata["vocab_size"]) != vocab_size:
                raise TrainingError(
                    f"--data {file}: made with a vocabulary of {metadata['vocab_size']} tokens, the target has "
                    f"{vocab_size}."
                )
            names = ("tokens", "lengths", "prompt_lengths")
            return Answers(*(opened.get_tensor(name) for name in names))
    except (SafetensorError, OSError) as error:
        raise TrainingError(f"--data {file}: {error}") from error

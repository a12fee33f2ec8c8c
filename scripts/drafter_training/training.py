"""The training loop: the target's states, blocks drawn anew at every step, AdamW, a cosine."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from sglang_ddtree.sketch.drafter import Drafter

from .data import Answers, Batch, batches
from .model import draft_blocks
from .objective import BlockLoss, Blocks, block_loss, block_tokens, chain_length, choose_blocks, part_loss
from .progress import Progress, TrainingError, minutes_of
from .target import compile_layers, context_features

WARMUP_STEPS = 150
LAST_RATE = 0.02
"""Of the learning rate, at the end of the cosine."""
MOST_HELD_OUT = 512


@dataclass(frozen=True)
class Settings:
    """How to train.

    Attributes:
        steps: optimiser steps.
        minutes: end after this time, the cosine with it; None for no limit.
        learning_rate: the highest.
        decay: of the slots' weights, in slots.
        tokens_per_step: padded tokens of the sequences of a step.
        blocks_per_step: blocks that they are drafted in.
        seed: of the order of the data and of the anchors.
        log_every: steps between two lines.
        compiled: fuse the steps' kernels; takes half a minute at the beginning.
    """

    steps: int
    minutes: float | None
    learning_rate: float
    decay: float
    tokens_per_step: int
    blocks_per_step: int
    seed: int
    log_every: int
    compiled: bool = False


def train(drafter: Drafter, target: Any, answers: Answers, settings: Settings, log: Path) -> dict[str, Any]:
    """Train in place and return the figures on the sequences held out; `log` gets a JSON line per report.

    Raises:
        TrainingError: the loss is no number any more.
    """
    device = target.device
    generator = torch.Generator().manual_seed(settings.seed)
    held_out, rows = _split(len(answers), generator)
    optimizer = _optimizer(drafter, settings.learning_rate, fused=device.type == "cuda")
    drafter.train()
    print(
        f"{len(rows)} sequences to train on, {len(held_out)} held out; "
        f"{sum(weight.numel() for weight in drafter.parameters()) / 1e6:.1f} million parameters on {device}."
    )
    if settings.compiled:
        compile_layers(target)
    progress = Progress(settings.steps, "steps", settings.minutes)
    window = _Window(device)
    with log.open("w") as stream:
        for batch in _forever(answers, rows, settings, generator):
            rate = settings.learning_rate * _share(progress)
            for group in optimizer.param_groups:
                group["lr"] = rate
            blocks, found = _forward(drafter, target, answers, batch, settings, generator)
            found.loss.backward()
            torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            window.add(blocks, found)
            progress.advance()
            ended = progress.fraction >= 1
            if ended or progress.done % settings.log_every == 0:
                line = {
                    "step": progress.done,
                    "seconds": round(progress.seconds, 1),
                    "rate": rate,
                } | window.close()
                if not math.isfinite(line["loss"]):
                    raise TrainingError(
                        f"The loss is {line['loss']} at step {progress.done}: try a lower --learning-rate."
                    )
                stream.write(json.dumps(line) + "\n")
                stream.flush()
                progress.say(_shown(line))
            if ended:
                break
        result: dict[str, Any] = {"steps": progress.done, "settings": asdict(settings)}
        if len(held_out):
            result["held_out"] = evaluate(drafter, target, answers, held_out, settings)
            print(f"Held out: {_shown(result['held_out'])}")
        stream.write(json.dumps(result) + "\n")
    print(f"{progress.done} steps in {minutes_of(progress.seconds)}.")
    return result


@torch.no_grad()
def evaluate(
    drafter: Drafter, target: Any, answers: Answers, rows: torch.Tensor, settings: Settings
) -> dict[str, float]:
    """Mean loss, accuracy of the first drafted slot and chain length, over blocks that are the same at every call."""
    generator = torch.Generator().manual_seed(settings.seed + 1)
    window = _Window(target.device)
    for batch in batches(answers, rows, settings.tokens_per_step, generator):
        window.add(*_forward(drafter, target, answers, batch, settings, generator))
    return window.close()


def _forward(
    drafter: Drafter,
    target: Any,
    answers: Answers,
    batch: Batch,
    settings: Settings,
    generator: torch.Generator,
) -> tuple[Blocks, BlockLoss]:
    device, slots = target.device, drafter.block_size
    tokens = answers.rows(batch.rows, batch.length)
    lengths, prompts = answers.lengths[batch.rows], answers.prompt_lengths[batch.rows]
    most = int((lengths - prompts).max()) - 1
    count = min(max(1, settings.blocks_per_step // len(tokens)), most)
    blocks = choose_blocks(tokens, lengths, prompts, count, slots, generator)
    blocks = Blocks(*(part.to(device) for part in vars(blocks).values()))
    features = context_features(target, tokens.to(device), drafter.target_layer_ids)
    with torch.no_grad():
        embeds = target.get_input_embeddings()(block_tokens(blocks, slots, drafter.mask_token_id)).float()
    draft, part = _compiled() if settings.compiled else (draft_blocks, part_loss)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        # In float32 on a CPU, where the target is in float32, too.
        hidden = draft(drafter, features, blocks.anchors, embeds)
    head = target.get_output_embeddings().weight
    return blocks, block_loss(hidden, head, blocks, settings.decay, part)


@functools.cache
def _compiled() -> tuple[Any, Any]:
    return torch.compile(draft_blocks, dynamic=True), torch.compile(part_loss, dynamic=True)


class _Window:
    """Means over some steps, kept on the device until they are asked for."""

    def __init__(self, device: torch.device) -> None:
        # Loss and steps; first slots right and valid; tokens and blocks of the chain.
        self._sums = torch.zeros(3, 2, dtype=torch.float64, device=device)

    def add(self, blocks: Blocks, found: BlockLoss) -> None:
        first = torch.stack([found.hits[:, :, 0].sum(), blocks.valid[:, :, 0].sum()])
        self._sums[0, 0] += found.loss.detach()
        self._sums[0, 1] += 1
        self._sums[1] += first
        self._sums[2] += chain_length(found.hits, blocks.valid)

    def close(self) -> dict[str, float]:
        """The means, starting anew; a chain length of 0 where every block ran over its sequence's end."""
        names = ("loss", "first_slot", "chain")
        sums = self._sums.tolist()
        self._sums.zero_()
        return {name: total / max(count, 1) for name, (total, count) in zip(names, sums, strict=True)}


def _shown(line: dict[str, float]) -> str:
    return (
        f"loss {line['loss']:.4f}, first slot right {100 * line['first_slot']:.1f} %, "
        f"chain {line['chain']:.2f} tokens"
    )


def _split(count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    # Every 50th sequence is held out.
    shuffled = torch.randperm(count, generator=generator)
    held_out = min(MOST_HELD_OUT, count // 50)
    return shuffled[:held_out], shuffled[held_out:]


def _forever(
    answers: Answers, rows: torch.Tensor, settings: Settings, generator: torch.Generator
) -> Iterator[Batch]:
    while True:
        yield from batches(answers, rows, settings.tokens_per_step, generator)


def _share(progress: Progress) -> float:
    # Of the learning rate: up in a straight line, down in a cosine.
    warmup = min(WARMUP_STEPS, max(1, progress.total // 10))
    rise = min(1.0, (progress.done + 1) / warmup)
    cosine = (1 + math.cos(math.pi * progress.fraction)) / 2
    return rise * (LAST_RATE + (1 - LAST_RATE) * cosine)


def _optimizer(drafter: Drafter, rate: float, fused: bool) -> torch.optim.AdamW:
    matrices = [weight for weight in drafter.parameters() if weight.dim() > 1]
    norms = [weight for weight in drafter.parameters() if weight.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": norms, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), eps=1e-9, fused=fused)

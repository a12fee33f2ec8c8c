"""Training data from the target itself: user messages that it makes up, and its answers to prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .answerers import Answerer, Job
from .progress import Progress, TrainingError

SHORTEST_ANSWER = 2
"""Tokens of an answer; the first one comes with the prompt's forward, and there must be one to draft."""
_PLACEHOLDER = "USER-MESSAGE"


@dataclass(frozen=True)
class Plan:
    """How to answer.

    Attributes:
        temperatures: the prompts take them in turn; 0 is greedy.
        repeat: answers per prompt, each at the next of the temperatures.
        new_tokens: most tokens of an answer.
        max_length: most tokens of prompt and answer together.
        minutes: begin no batch after this time; None for no limit.
    """

    temperatures: Sequence[float]
    repeat: int
    new_tokens: int
    max_length: int
    minutes: float | None = None


def answer_all(
    answerer: Answerer, prompts: Sequence[list[int]], plan: Plan, seed: int
) -> list[tuple[list[int], list[int]]]:
    """Pairs of prompt and answer, those left out that are too long or get no answer worth drafting.

    Raises:
        TrainingError: nothing is left.
    """
    room = [min(plan.new_tokens, plan.max_length - len(prompt)) for prompt in prompts]
    tasks: dict[float, list[int]] = {}
    fitting = [number for number in range(len(prompts)) if room[number] >= SHORTEST_ANSWER]
    for turn in range(plan.repeat):
        for number in fitting:
            temperature = plan.temperatures[(number + turn) % len(plan.temperatures)]
            tasks.setdefault(temperature, []).append(number)
    if len(fitting) < len(prompts):
        print(
            f"{len(prompts) - len(fitting)} of {len(prompts)} prompts left out: they leave no room for an answer."
        )
    work = []
    for temperature, numbers in tasks.items():
        numbers.sort(key=lambda number: len(prompts[number]))
        for part in _parts(numbers, answerer.group):
            most = max(room[number] for number in part)
            work.append(Job(part, [prompts[number] for number in part], most, temperature))
    # In random order, so that a cut by time leaves no kind of prompt out.
    order = torch.randperm(len(work), generator=torch.Generator().manual_seed(seed)).tolist()
    progress, found, tokens = Progress(max(1, len(work)), "batches", plan.minutes), [], 0
    for job, answers in answerer.answer(progress.while_open(work[at] for at in order)):
        for number, answer in zip(job.numbers, answers, strict=True):
            text = answer.tokens[: room[number]]
            if len(text) >= SHORTEST_ANSWER:
                found.append((prompts[number], text))
                tokens += len(text)
        progress.advance()
        progress.say(f"{len(found)} answers, {tokens} tokens, {tokens / progress.seconds:.0f} tokens/s")
    if progress.done < len(work):
        print(f"Stopped after {plan.minutes} minutes: {progress.done} of {len(work)} batches are done.")
    if not found:
        raise TrainingError("No prompt got an answer of at least two tokens.")
    return found


def make_up_prompts(
    answerer: Answerer,
    tokenizer: Any,
    count: int,
    *,
    temperature: float,
    new_tokens: int,
    minutes: float | None,
    beginnings: Sequence[str] = (),
) -> list[str]:
    """Up to `count` different user messages that the target itself makes up behind its chat template's beginning.

    Every second one goes on from one of the `beginnings`, in turn, if there are any. Messages that do not end within
    `new_tokens` are dropped.

    Raises:
        TrainingError: the tokenizer has no chat template whose user message stands in one place.
    """
    before = _before_user_message(tokenizer)
    turns = [part for beginning in beginnings for part in ("", beginning)] or [""]
    template = tokenizer.encode(before, add_special_tokens=False)
    begun = [tokenizer.encode(turn, add_special_tokens=False) for turn in turns]

    def jobs() -> Iterator[Job]:
        # Most end in time and differ; a target that never ends one must not keep this running.
        for first in range(0, 8 * count + 64, answerer.group):
            numbers = [(first + number) % len(turns) for number in range(answerer.group)]
            yield Job(numbers, [template + begun[number] for number in numbers], new_tokens, temperature)

    progress, found, sampled = Progress(count, "messages", minutes), dict[str, None](), 0
    for job, answers in answerer.answer(progress.while_open(jobs())):
        sampled += len(answers)
        for number, answer in zip(job.numbers, answers, strict=True):
            text = tokenizer.decode(begun[number] + answer.tokens, skip_special_tokens=True).strip()
            if text and answer.ended and len(found) < count:
                found[text] = None
        progress.done = len(found)
        progress.say(f"{sampled} sampled")
    if not found:
        raise TrainingError("The target ended no message in time: write prompts by hand.")
    return list(found)


def read_beginnings(file: Path) -> list[str]:
    r"""One a line; ``\n`` in a line is a new line.

    Raises:
        TrainingError: there are none.
    """
    found = [
        line.replace("\\n", "\n") for line in file.read_text(encoding="utf-8").splitlines() if line.strip()
    ]
    if not found:
        raise TrainingError(f"--beginnings {file}: it is empty.")
    return found


def _before_user_message(tokenizer: Any) -> str:
    if not getattr(tokenizer, "chat_template", None):
        raise TrainingError(
            "--model: it has no chat template to make messages up with; write prompts by hand."
        )
    text: str = tokenizer.apply_chat_template([{"role": "user", "content": _PLACEHOLDER}], tokenize=False)
    before, *after = text.split(_PLACEHOLDER)
    if len(after) != 1:
        raise TrainingError("--model: its chat template does not show a user message exactly once.")
    return before


def _parts(numbers: list[int], size: int) -> list[list[int]]:
    return [numbers[at : at + size] for at in range(0, len(numbers), size)]

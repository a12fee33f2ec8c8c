"""Training data from the target itself: user messages that it makes up, and its answers to prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .progress import Progress, TrainingError
from .target import read_stops

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
        batch_size: answers at once.
        minutes: stop before the first batch that starts after this time; None for no limit.
    """

    temperatures: Sequence[float]
    repeat: int
    new_tokens: int
    max_length: int
    batch_size: int
    minutes: float | None = None


def answer_all(
    target: Any, prompts: Sequence[list[int]], plan: Plan, seed: int
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
        work += [(temperature, part) for part in _parts(numbers, plan.batch_size)]
    # In random order, so that a cut by time leaves no kind of prompt out.
    order = torch.randperm(len(work), generator=torch.Generator().manual_seed(seed)).tolist()
    torch.manual_seed(seed)
    progress, found = Progress(max(1, len(work)), "batches", plan.minutes), []
    for temperature, numbers in (work[at] for at in order):
        if progress.fraction >= 1:
            break
        batch = [prompts[number] for number in numbers]
        answers = continue_all(target, batch, max(room[number] for number in numbers), temperature)
        for number, answer in zip(numbers, answers, strict=True):
            if len(answer[: room[number]]) >= SHORTEST_ANSWER:
                found.append((prompts[number], answer[: room[number]]))
        progress.advance()
        tokens = sum(len(answer) for _, answer in found)
        progress.say(f"{len(found)} answers, {tokens} tokens, {tokens / progress.seconds:.0f} tokens/s")
    if progress.done < len(work):
        print(f"Stopped after {plan.minutes} minutes: {progress.done} of {len(work)} batches are done.")
    if not found:
        raise TrainingError("No prompt got an answer of at least two tokens.")
    return found


@torch.inference_mode()
def continue_all(
    target: Any, prompts: Sequence[list[int]], new_tokens: int, temperature: float
) -> list[list[int]]:
    """What the target says behind each prompt, up to and with its stop token; sampled unless `temperature` is 0."""
    from transformers import GenerationConfig

    stops = read_stops(target)
    pad = stops[0] if stops else 0
    width = max(map(len, prompts))
    tokens = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
    real = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    config = GenerationConfig(
        max_new_tokens=new_tokens,
        eos_token_id=stops or None,
        pad_token_id=pad,
        **(sampling if temperature > 0 else {"do_sample": False}),
    )
    # The checkpoint's own sampling defaults would fill in what is not set here.
    kept, target.generation_config = target.generation_config, config
    try:
        output = target.generate(
            tokens.to(target.device), attention_mask=real.to(target.device), generation_config=config
        )
    finally:
        target.generation_config = kept
    return [_up_to_stop(row, set(stops)) for row in output[:, width:].tolist()]


def make_up_prompts(
    target: Any,
    tokenizer: Any,
    count: int,
    *,
    temperature: float,
    new_tokens: int,
    batch_size: int,
    minutes: float | None,
    seed: int,
) -> list[str]:
    """Up to `count` different user messages that the target itself makes up behind its chat template's beginning.

    Messages that do not end within `new_tokens` are dropped.

    Raises:
        TrainingError: the tokenizer has no chat template whose user message stands in one place.
    """
    begin = tokenizer.encode(_before_user_message(tokenizer), add_special_tokens=False)
    stops = set(read_stops(target))
    torch.manual_seed(seed)
    progress, found, batches = Progress(count, "messages", minutes), dict[str, None](), 0
    # Most end in time and differ; a target that never ends one must not keep this running.
    while len(found) < count and progress.fraction < 1 and batches * batch_size < 8 * count + 64:
        batches += 1
        for tokens in continue_all(target, [begin] * batch_size, new_tokens, temperature):
            text = tokenizer.decode(tokens, skip_special_tokens=True).strip()
            if text and tokens[-1] in stops and len(found) < count:
                found[text] = None
        progress.done = len(found)
        progress.say(f"{batches * batch_size} sampled")
    if not found:
        raise TrainingError("The target ended no message in time: write prompts by hand.")
    return list(found)


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


def _up_to_stop(tokens: list[int], stops: set[int]) -> list[int]:
    for at, token in enumerate(tokens):
        if token in stops:
            return tokens[: at + 1]
    return tokens


def _parts(numbers: list[int], size: int) -> list[list[int]]:
    return [numbers[at : at + size] for at in range(0, len(numbers), size)]

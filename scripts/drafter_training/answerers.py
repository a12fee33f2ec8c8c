"""Who continues the prompts: the target loaded here by transformers, or a running SGLang server of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from sglang_ddtree.client import Client

from .progress import TrainingError
from .target import read_stops


@dataclass(frozen=True)
class Job:
    """Prompts that are continued together.

    Attributes:
        numbers: of the prompts, for whoever made the job.
        prompts: token ids.
        new_tokens: most tokens behind each prompt.
        temperature: 0 is greedy.
    """

    numbers: Sequence[int]
    prompts: Sequence[list[int]]
    new_tokens: int
    temperature: float


@dataclass(frozen=True)
class Answer:
    """The tokens behind a prompt; where `ended`, the last one is a stop token."""

    tokens: list[int]
    ended: bool


Answered = tuple[Job, list[Answer]]


class Answerer(Protocol):
    """`group` is the number of prompts that a job should have."""

    group: int

    def answer(self, jobs: Iterator[Job]) -> Iterator[Answered]:
        """Every job with an answer per prompt, in any order; a job is taken only when it can begin."""


class Local:
    """The target on this process's device, job by job."""

    def __init__(self, target: Any, batch_size: int, seed: int) -> None:
        self.group = batch_size
        self._target = target
        torch.manual_seed(seed)

    def answer(self, jobs: Iterator[Job]) -> Iterator[Answered]:
        stops = read_stops(self._target)
        for job in jobs:
            texts = continue_all(self._target, job.prompts, job.new_tokens, job.temperature)
            yield job, [Answer(text, text[-1] in stops) for text in texts]


class Remote:
    """A SGLang server that batches continuously: many small jobs at a time, `batch_size` prompts in all."""

    def __init__(self, base_url: str, batch_size: int, vocab_size: int) -> None:
        self.group = min(batch_size, 16)
        self._jobs = max(1, batch_size // self.group)
        self._vocab_size = vocab_size
        self._client = Client(base_url)
        print(f"{base_url} answers; it serves {self._client.info().get('model_path')}.", flush=True)

    def answer(self, jobs: Iterator[Job]) -> Iterator[Answered]:
        with ThreadPoolExecutor(self._jobs) as pool:
            running: set[Future[Answered]] = set()
            for job in jobs:
                running.add(pool.submit(self._ask, job))
                if len(running) == self._jobs:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
            yield from (future.result() for future in running)

    def _ask(self, job: Job) -> Answered:
        # The server's own defaults would fill in what is not set here.
        sampling = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
        asked = {"temperature": job.temperature, "max_new_tokens": job.new_tokens, **sampling}
        found = self._client.ask(
            "/generate", {"input_ids": [list(prompt) for prompt in job.prompts], "sampling_params": asked}
        )
        return job, [self._read(answer) for answer in found]

    def _read(self, answer: Mapping[str, Any]) -> Answer:
        tokens, reason = answer["output_ids"], answer["meta_info"]["finish_reason"]
        if reason["type"] not in ("stop", "length"):
            raise TrainingError(f"--base-url: the server ended an answer: {reason.get('message', reason)}")
        if max(tokens, default=0) >= self._vocab_size:
            raise TrainingError(
                f"--base-url: it serves another model than --model: it said token {max(tokens)}, the "
                f"vocabulary has {self._vocab_size}."
            )
        return Answer(tokens, reason["type"] == "stop")


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


def _up_to_stop(tokens: list[int], stops: set[int]) -> list[int]:
    for at, token in enumerate(tokens):
        if token in stops:
            return tokens[: at + 1]
    return tokens

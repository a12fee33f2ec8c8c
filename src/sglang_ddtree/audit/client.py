"""What the audit asks of a server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..client import Client, RequestFailed


@dataclass(frozen=True)
class Candidate:
    """A token at one output position; `logprob` in nats."""

    token: int
    logprob: float


@dataclass(frozen=True)
class PlainAnswer:
    """A greedy text of plain decoding: the chosen token and the two most probable ones of every position."""

    chosen: tuple[Candidate, ...]
    top_two: tuple[tuple[Candidate, ...], ...]

    @property
    def output_ids(self) -> tuple[int, ...]:
        return tuple(one.token for one in self.chosen)


class AuditClient(Client):
    """Greedy requests. Every method raises `RequestFailed` when the server does not answer as SGLang does."""

    def encode(self, text: str) -> list[int]:
        """The ids of one user message in the model's chat template; of the plain text where it has none."""
        path = "/v1/tokenize"
        try:
            answer = self.ask(path, {"messages": [{"role": "user", "content": text}]})
        except RequestFailed as error:
            if error.status != 400:
                raise
            answer = self.ask(path, {"prompt": text})
        with self._reading(path):
            return list(answer["tokens"])

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """The text of each sequence of ids, special tokens included."""
        path = "/v1/detokenize"
        answer = self.ask(path, {"tokens": [list(one) for one in sequences], "skip_special_tokens": False})
        with self._reading(path):
            return list(answer["text"])

    def greedy(self, input_ids: Sequence[int], max_new_tokens: int) -> tuple[int, ...]:
        """The output ids, a stop token included."""
        answer = self._generate(input_ids, max_new_tokens)
        with self._reading("/generate"):
            return tuple(answer["output_ids"])

    def greedy_with_logprobs(self, input_ids: Sequence[int], max_new_tokens: int) -> PlainAnswer:
        """The same with log-probabilities; DDTREE servers refuse it."""
        answer = self._generate(input_ids, max_new_tokens, return_logprob=True, top_logprobs_num=2)
        with self._reading("/generate"):
            found = PlainAnswer(
                chosen=_candidates(answer["meta_info"]["output_token_logprobs"]),
                top_two=tuple(_candidates(one) for one in answer["meta_info"]["output_top_logprobs"]),
            )
            if list(found.output_ids) != answer["output_ids"] or len(found.top_two) != len(found.chosen):
                raise ValueError("its log-probabilities are not those of its tokens")
        return found

    def gap_below_best(self, input_ids: Sequence[int], token: int) -> float:
        """How many nats `token` is below the most probable token behind `input_ids`."""
        answer = self._generate(
            input_ids, 1, return_logprob=True, top_logprobs_num=1, token_ids_logprob=[token]
        )
        with self._reading("/generate"):
            (best,) = _candidates(answer["meta_info"]["output_top_logprobs"][0])
            (asked,) = _candidates(answer["meta_info"]["output_token_ids_logprobs"][0])
        return best.logprob - asked.logprob

    def _generate(self, input_ids: Sequence[int], max_new_tokens: int, **fields: Any) -> dict[str, Any]:
        sampling = {"temperature": 0, "max_new_tokens": max_new_tokens}
        answer: dict[str, Any] = self.ask(
            "/generate", {"input_ids": list(input_ids), "sampling_params": sampling, **fields}
        )
        with self._reading("/generate"):
            reason = answer["meta_info"]["finish_reason"]
            if reason["type"] == "abort":
                raise ValueError(f"aborted: {reason.get('message', 'no message')}")
        return answer

    @contextmanager
    def _reading(self, path: str) -> Iterator[None]:
        try:
            yield
        except (KeyError, IndexError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise RequestFailed(f"{self.base_url}{path}: not the answer expected: {reason}") from error


def _candidates(entries: Sequence[Sequence[Any]]) -> tuple[Candidate, ...]:
    """From SGLang's ``[logprob, token id, text or null]``."""
    return tuple(Candidate(int(token), float(logprob)) for logprob, token, *_ in entries)

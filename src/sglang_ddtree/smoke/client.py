"""What the smoke test asks of a server, beyond the audit's requests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..audit.client import AuditClient

TIMEOUT = 120
"""Seconds without a byte: a first request may compile kernels."""


@dataclass(frozen=True)
class Answer:
    """A whole answer of the OpenAI interface; `tokens` were generated, `reason` is why it ended."""

    text: str
    tokens: int
    reason: str


@dataclass(frozen=True)
class Verified:
    """One answer's verify forwards of the target, and the draft tokens that they kept."""

    steps: int
    correct_drafts: int


class SmokeClient(AuditClient):
    """Every method raises `RequestFailed` when the server does not answer as SGLang does."""

    def health(self) -> None:
        """SGLang generates a token for it unless it is busy."""
        with self.open("/health", timeout=TIMEOUT):
            pass

    def models(self) -> list[str]:
        answer = self.ask("/v1/models", timeout=TIMEOUT)
        with self._reading("/v1/models"):
            return [str(model["id"]) for model in answer["data"]]

    def chat(self, model: str, text: str, max_tokens: int) -> Answer:
        """The answer to one user message."""
        path = "/v1/chat/completions"
        messages = [{"role": "user", "content": text}]
        answer = self.ask(path, _openai_body(model, max_tokens) | {"messages": messages}, TIMEOUT)
        with self._reading(path):
            message = answer["choices"][0]["message"]
            # A reasoning model may not have got beyond its thoughts.
            return _whole(answer, message["content"] or message.get("reasoning_content") or "")

    def completion(self, model: str, text: str, max_tokens: int) -> Answer:
        path = "/v1/completions"
        answer = self.ask(path, _openai_body(model, max_tokens) | {"prompt": text}, TIMEOUT)
        with self._reading(path):
            return _whole(answer, answer["choices"][0]["text"])

    def streamed_completion(self, model: str, text: str, max_tokens: int) -> list[str]:
        """The text of every chunk that has some."""
        path = "/v1/completions"
        body = {**_openai_body(model, max_tokens), "prompt": text, "stream": True}
        with self.open(path, json.dumps(body).encode(), TIMEOUT) as response, self._reading(path):
            return [piece for piece in _pieces(response) if piece]

    def verified(self, input_ids: Sequence[int], max_new_tokens: int) -> Verified:
        """Counts of one greedy answer."""
        answer = self._generate(input_ids, max_new_tokens)
        with self._reading("/generate"):
            meta = answer["meta_info"]
            # SGLang leaves these out where no step verified a draft.
            return Verified(int(meta.get("spec_verify_ct", 0)), int(meta.get("spec_num_correct_drafts", 0)))


def _openai_body(model: str, max_tokens: int) -> dict[str, Any]:
    return {"model": model, "temperature": 0, "max_tokens": max_tokens}


def _whole(answer: Mapping[str, Any], text: Any) -> Answer:
    if not isinstance(text, str):
        raise TypeError(f"its text is {text!r:.60}")
    reason = str(answer["choices"][0]["finish_reason"])
    return Answer(text, int(answer["usage"]["completion_tokens"]), reason)


def _pieces(lines: Iterable[bytes]) -> Iterator[str]:
    """Text by text from the events of a streamed completion.

    Raises:
        ValueError: an event reports an error or is cut short, or the stream did not end with ``[DONE]``.
    """
    for line in lines:
        data = line.strip().removeprefix(b"data:").strip()
        if data == b"[DONE]":
            return
        if data:
            event = json.loads(data)
            if "error" in event:
                raise ValueError(f"the stream reports an error: {event['error']}")
            yield from (choice["text"] for choice in event["choices"])
    raise ValueError("the stream ended without [DONE]")

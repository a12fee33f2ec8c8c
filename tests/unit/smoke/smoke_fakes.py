"""A server that answers the smoke test's requests from a script, on top of the audit's."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from unit.audit.fakes import Refusal, Script

TEXT = "Monday, Tuesday"


@dataclass
class SmokeScript(Script):
    """Streams and completes `TEXT`, and verifies in each answer `steps` trees that keep `correct` drafts in all."""

    chunks: tuple[str, ...] = ("Mon", "day, ", "Tuesday")
    texts_whole: tuple[str, ...] = (TEXT,)
    steps: int = 4
    correct: int = 6
    names: tuple[str, ...] = ("the-model",)
    ends_stream: bool = True
    tokens: int = 5
    reason: str = "stop"
    chat_refusal: str | None = None
    completions: int = 0

    def answer(self, path: str, body: Any) -> Any:
        if path == "/health":
            return b""
        if path == "/v1/models":
            return {"data": [{"id": name} for name in self.names]}
        if path == "/v1/chat/completions":
            if self.chat_refusal is not None:
                raise Refusal(self.chat_refusal)
            return self._whole(body, {"message": {"role": "assistant", "content": TEXT}})
        if path == "/v1/completions":
            return self._stream() if body.get("stream") else self._complete(body)
        found = super().answer(path, body)
        if path == "/generate" and self.steps:
            found["meta_info"] |= {"spec_verify_ct": self.steps, "spec_num_correct_drafts": self.correct}
        return found

    def _complete(self, body: Any) -> Any:
        text = self.texts_whole[min(self.completions, len(self.texts_whole) - 1)]
        self.completions += 1
        return self._whole(body, {"text": text})

    def _whole(self, body: Any, choice: dict[str, Any]) -> Any:
        assert body["model"] == self.names[0]
        assert body["temperature"] == 0
        return {
            "choices": [choice | {"finish_reason": self.reason}],
            "usage": {"completion_tokens": self.tokens},
        }

    def _stream(self) -> bytes:
        events = [{"choices": [{"text": chunk, "finish_reason": None}]} for chunk in self.chunks]
        # The last event has a reason and no text; some have no choice at all.
        events += [{"choices": [{"text": "", "finish_reason": "stop"}]}, {"choices": []}]
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        return "".join([*lines, *(["data: [DONE]\n\n"] if self.ends_stream else [])]).encode()

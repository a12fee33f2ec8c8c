"""One streamed answer as times and counts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..client import RequestFailed


@dataclass(frozen=True)
class Timeline:
    """One request, seen from the client. Times in seconds of one monotonic clock.

    `first_tokens` tokens came with the first event, `tokens` in all; `verify_steps` are the target's forwards
    after the prompt's and `correct_drafts` the draft tokens they kept (both 0 under plain decoding).
    `correct_drafts_histogram` counts at index n the steps that kept n drafts.
    """

    sent: float
    first: float
    last: float
    first_tokens: int
    tokens: int
    verify_steps: int
    correct_drafts: int
    output_ids: tuple[int, ...]
    correct_drafts_histogram: tuple[int, ...] = ()

    @property
    def time_to_first_token(self) -> float:
        return self.first - self.sent

    @property
    def decode_time(self) -> float:
        """Seconds from the first token to the last, other requests' prefills in between included."""
        return self.last - self.first

    @property
    def inter_token_latency(self) -> float | None:
        """Mean seconds per token after the first event; None where nothing followed it."""
        rest = self.tokens - self.first_tokens
        return self.decode_time / rest if rest > 0 else None

    @property
    def tokens_per_second(self) -> float:
        """The answer's tokens over the time from sending the request to its last token."""
        return self.tokens / (self.last - self.sent)

    def decode_steps(self, speculative: bool) -> int:
        """Forwards of the target after the prompt's: verify steps, or one per further token."""
        return self.verify_steps if speculative else self.tokens - self.first_tokens


def from_events(sent: float, events: Sequence[tuple[float, bytes]]) -> Timeline:
    """A timeline from ``(time received, JSON of a data line)`` of a streaming ``/generate`` answer.

    Only the first and the last event are decoded: each repeats all tokens so far.

    Raises:
        RequestFailed: there is no event, one is cut short or reports an error, or the last one does not end the answer.
    """
    if not events:
        raise RequestFailed("the server closed a stream without an event")
    try:
        first, last = json.loads(events[0][1]), json.loads(events[-1][1])
    except ValueError as error:
        raise RequestFailed(f"a stream broke off within an event: {error}") from error
    for event in (first, last):
        if "error" in event:
            raise RequestFailed(f"the server answered with an error: {_message(event['error'])}")
    meta = last["meta_info"]
    reason = meta.get("finish_reason")
    if not reason:
        raise RequestFailed(f"a stream ended after {meta.get('completion_tokens')} tokens without a reason")
    if reason.get("type") == "abort":
        raise RequestFailed(f"the server aborted a request: {reason.get('message', 'no message')}")
    return Timeline(
        sent=sent,
        first=events[0][0],
        last=events[-1][0],
        first_tokens=first["meta_info"]["completion_tokens"],
        tokens=meta["completion_tokens"],
        # SGLang leaves these out where no step verified a draft.
        verify_steps=meta.get("spec_verify_ct", 0),
        correct_drafts=meta.get("spec_num_correct_drafts", 0),
        output_ids=tuple(last["output_ids"]),
        correct_drafts_histogram=tuple(meta.get("spec_correct_drafts_histogram", ())),
    )


def _message(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, Mapping) else str(error)

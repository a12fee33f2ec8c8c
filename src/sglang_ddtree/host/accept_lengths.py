"""`meta_info["ddtree_accept_lengths"]`: the tokens that each verify step of a request emitted, for those who ask.

Which step emitted a token travels beside the token, as SGLang's customized info does: so SGLang cuts both at a
stop, streams both and keeps both when it takes a request back. The last event gets the lengths, made from that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from .hooks import declare

FIELD = "ddtree_accept_lengths"
"""In the request's `custom_params`, and in the answer's `meta_info`."""
PREFIX = "ddtree_"
STEPS = "ddtree_step_of_token"
"""On the way between SGLang's processes, never in an answer: for each token the number of its verify step, 0 where a
prefill emitted it."""


def unknown_params(custom_params: Any) -> Iterator[tuple[str, Any]]:
    """Those of our prefix that are neither known nor of the right type."""
    if isinstance(custom_params, dict):
        for name, value in custom_params.items():
            if str(name).startswith(PREFIX) and not (name == FIELD and isinstance(value, bool)):
                yield name, value


def asked(custom_params: Any) -> bool:
    return isinstance(custom_params, dict) and custom_params.get(FIELD) is True


def begin(req: Any) -> None:
    """A request is admitted."""
    if asked(req.sampling_params.custom_params):
        req.customized_info = {**(req.customized_info or {}), STEPS: []}


def note_step(emitted: Sequence[Sequence[int]], processor: Any, result: Any, batch: Any) -> None:
    """After a verify step's tokens have come to the host, before SGLang appends them to the requests."""
    for req, tokens in zip(batch.reqs, emitted, strict=True):
        # What is noted of a finished request lies behind its end.
        if req.customized_info is None or req.is_retracted:
            continue
        steps = req.customized_info.get(STEPS)
        if steps is not None:
            steps += [0] * (len(req.output_ids) - len(steps))
            steps += [req.spec_verify_ct] * len(tokens)


def tell(
    result: None,
    manager: Any,
    meta_info: dict[str, Any],
    state: Any,
    customized_info: dict[str, Any],
    index: int,
    finish_reason: dict[str, Any] | None,
) -> None:
    """After SGLang has put an event's customized info, and that of all events before, into its `meta_info`."""
    steps = meta_info.pop(STEPS, None)
    if steps is None:
        return
    # Reported keys come back into later events.
    state.customized_info_reported_keys.discard(STEPS)
    if not asked((state.obj.sampling_params or {}).get("custom_params")):
        # A request of the same batch asked.
        del state.customized_info_accumulated[STEPS]
    elif finish_reason is not None:
        meta_info[FIELD] = accept_lengths(steps)


def accept_lengths(steps: Sequence[int]) -> list[int]:
    """Tokens per step, from the step of every token."""
    return [len(list(tokens)) for step, tokens in groupby(steps) if step]


def install() -> None:
    """Declare the hooks; `admission` calls `begin`."""
    declare(
        "sglang.srt.managers.scheduler_components.batch_result_processor"
        ".SchedulerBatchResultProcessor._resolve_spec_v2_tokens",
        "after",
        "notes which step emitted a token, for requests that ask; the numbers have just come to the host",
        note_step,
    )
    declare(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager.update_request_meta_info",
        "after",
        "turns the step of every token into the accept lengths of the last event's meta_info",
        tell,
    )

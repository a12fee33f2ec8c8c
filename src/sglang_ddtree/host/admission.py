"""Refuses, request by request, what a tree step does not do: HTTP 400 that names the field."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..config import ALGORITHM
from . import accept_lengths
from .hooks import declare


@dataclass(frozen=True)
class FieldRow:
    """A field of a request, refused when `refused(req)`; `attribute` is where SGLang's `Req` keeps it.

    `got` says what the request asked for, where the field alone does not.
    """

    field: str
    attribute: str
    refused: Callable[[Any], bool]
    why: str
    fix: str = "Leave it out."
    got: Callable[[Any], str] = lambda req: ""

    @property
    def name(self) -> str:
        """One word, as a metric's label."""
        return self.attribute.rpartition(".")[2]


def _sampling(field: str, neutral: Any, why: str, fix: str = "Leave it out.", label: str = "") -> FieldRow:
    return FieldRow(
        label or field,
        f"sampling_params.{field}",
        # An empty value asks for nothing, in SGLang too.
        lambda req: (getattr(req.sampling_params, field) or neutral) != neutral,
        why,
        fix,
    )


def _request(field: str, why: str, label: str = "") -> FieldRow:
    return FieldRow(label or field, field, lambda req: getattr(req, field) not in (None, False), why)


def _seed_is_lost(req: Any) -> bool:
    from sglang.srt.runtime_context import get_exec

    return (
        req.sampling_params.sampling_seed is not None
        and not get_exec().deterministic.enable_deterministic_inference
    )


def _prompt_is_no_text(req: Any) -> bool:
    ids, limit = req.origin_input_ids, req.vocab_size
    if ids is None:
        return False
    return len(ids) == 0 or min(ids) < 0 or (limit is not None and max(ids) >= limit)


def _unknown_params(req: Any) -> list[tuple[str, Any]]:
    return list(accept_lengths.unknown_params(req.sampling_params.custom_params))


def _params_are_no_object(req: Any) -> bool:
    # SGLang checks the type at its OpenAI endpoints alone.
    return not isinstance(req.sampling_params.custom_params, dict | None)


def _shown(value: Any) -> str:
    return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


_MAX_SHOWN = 60
_MAX_TOP_K = 2**31 - 1
_GRAMMAR = "a grammar would have to advance along every branch of the tree"
_PENALTY = "it depends on the tokens before, which differ from node to node"
_DEFAULTS = (
    "Set it to its neutral value. If the model's generation_config.json sets it, start the server with "
    "--sampling-defaults openai."
)
_OUTPUT = "a tree verify does not keep what it returns"

FIELD_ROWS = (
    _sampling("json_schema", None, _GRAMMAR, label="json_schema (response_format, tool_choice)"),
    _sampling("regex", None, _GRAMMAR),
    _sampling("ebnf", None, _GRAMMAR),
    _sampling("structural_tag", None, _GRAMMAR, label="structural_tag (response_format, tool_choice)"),
    _request("return_logprob", _OUTPUT, "return_logprob (logprobs, top_logprobs)"),
    _sampling("frequency_penalty", 0.0, _PENALTY, _DEFAULTS),
    _sampling("presence_penalty", 0.0, _PENALTY, _DEFAULTS),
    _sampling("repetition_penalty", 1.0, _PENALTY, _DEFAULTS),
    _sampling("min_new_tokens", 0, _PENALTY, label="min_new_tokens (min_tokens)"),
    _sampling("logit_bias", None, "it is not added at every node of the tree"),
    FieldRow(
        "sampling_seed (seed)",
        "sampling_params.sampling_seed",
        _seed_is_lost,
        "seeds take effect in deterministic inference only",
        "Leave it out, or start the server with --enable-deterministic-inference (not available on the CPU "
        "platform).",
    ),
    FieldRow(
        "top_k",
        "sampling_params.top_k",
        lambda req: req.sampling_params.top_k > _MAX_TOP_K,
        f"SGLang keeps it as a 32-bit integer, at most {_MAX_TOP_K}",
        "Use -1 for the whole vocabulary.",
    ),
    _sampling("beam_width", 1, "beams and a draft tree exclude each other"),
    FieldRow(
        "watermark",
        "sampling_params.watermark",
        lambda req: req.sampling_params.watermark is not None and req.sampling_params.watermark.enabled,
        "a watermark would have to be sampled at every node of the tree",
    ),
    FieldRow(
        "custom_params",
        "sampling_params.custom_params",
        _params_are_no_object,
        "only a JSON object or null is read, anything else would be ignored",
        "Give an object, or leave it out.",
        got=lambda req: _shown(req.sampling_params.custom_params),
    ),
    FieldRow(
        f"custom_params.{accept_lengths.PREFIX}...",
        "sampling_params.custom_params",
        lambda req: bool(_unknown_params(req)),
        f"of these keys only {accept_lengths.FIELD} is known, and it is true or false",
        got=lambda req: ", ".join(
            f"{_cut(str(name))} = {_shown(value)}" for name, value in _unknown_params(req)
        ),
    ),
    _request("custom_logit_processor", "it would have to run at every node of the tree"),
    _request("lora_id", "an adapter would apply to the target and not to the drafter", "lora_path"),
    _request("session", "sessions are not tested", "session_params"),
    FieldRow(
        "input_ids (text, prompt)",
        "origin_input_ids",
        _prompt_is_no_text,
        "it is empty or has a token outside the vocabulary, at which SGLang's server ends",
        "Give at least one token, all of them of the target's vocabulary.",
    ),
    _request("input_embeds", "prompts given as embeddings are not tested"),
    _request("positional_embed_overrides", "prompts given as embeddings are not tested"),
    _request("token_type_ids", "targets with token types are not served"),
    _request("multimodal_inputs", "multimodal inputs are not served", "image_data, video_data, audio_data"),
    _request("return_hidden_states", _OUTPUT),
    _request("return_sampling_mask", _OUTPUT),
    _request("return_routed_experts", _OUTPUT),
    _request("return_indexer_topk", _OUTPUT),
)


refused_fields: Counter[str] = Counter()
"""`FieldRow.name` -> requests of this process that were refused for it."""


def install() -> None:
    """Declare the hook at the place where the scheduler asks the DFlash family about a request."""
    declare(
        "sglang.srt.speculative.dflash_utils.validate_dflash_request",
        "after",
        "refuses what a tree step would ignore or get wrong, with HTTP 400 and the field's name",
        _validate,
    )


def refusal(req: Any) -> str | None:
    """Why this request is refused, naming every refused field, or None when it can be served."""
    return _message(_refused(req), req)


def _refused(req: Any) -> list[FieldRow]:
    return [row for row in FIELD_ROWS if row.refused(req)]


def _message(refused: list[FieldRow], req: Any) -> str | None:
    if not refused:
        return None
    reasons = "; ".join(_reason(row, row.got(req)) for row in refused)
    return f"{ALGORITHM} does not support {reasons}."


def _reason(row: FieldRow, got: str) -> str:
    return f"{row.field}: {row.why}{f' (got {got})' if got else ''}. {row.fix.rstrip('.')}"


def request_refusal_table() -> list[dict[str, str]]:
    """One row per refused field with the keys `field`, `why`, `fix`, for the README and `doctor`."""
    return [{"field": row.field, "why": row.why, "fix": row.fix} for row in FIELD_ROWS]


def _validate(result: str | None, req: Any, enable_overlap: bool) -> str | None:
    from sglang.srt.runtime_context import get_spec

    if get_spec().speculative_algorithm != ALGORITHM:
        return result
    refused = _refused(req)
    refused_fields.update(row.name for row in refused)
    if refused:
        # SGLang runs a refused request for one token all the same, and ends at a top_k that its tensors cannot hold.
        req.sampling_params.top_k = min(req.sampling_params.top_k, _MAX_TOP_K)
    else:
        accept_lengths.begin(req)
    return _message(refused, req) or result

"""Every row of the request refusals, on a stand-in for SGLang's request."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_ddtree.host import admission

pytestmark = pytest.mark.usefixtures("sglang_with_plugins")


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What the scheduler process has published: a DDTREE server without deterministic inference."""
    import sglang.srt.runtime_context as context

    state = SimpleNamespace(algorithm="DDTREE", deterministic=False)
    deterministic = lambda: SimpleNamespace(enable_deterministic_inference=state.deterministic)  # noqa: E731
    monkeypatch.setattr(context, "get_spec", lambda: SimpleNamespace(speculative_algorithm=state.algorithm))
    monkeypatch.setattr(context, "get_exec", lambda: SimpleNamespace(deterministic=deterministic()))
    return state


def request(sampling: dict[str, Any] | None = None, **fields: Any) -> Any:
    from sglang.srt.sampling.sampling_params import SamplingParams

    neutral = {
        row.attribute: None
        for row in admission.FIELD_ROWS
        if not row.attribute.startswith("sampling_params.")
    }
    switches = {name: False for name in neutral if name.startswith("return_")}
    params = SamplingParams(**(sampling or {}))
    return SimpleNamespace(**(neutral | switches | fields), sampling_params=params, vocab_size=64)


REFUSED_SAMPLING = {
    "json_schema": "{}",
    "regex": "a+",
    "ebnf": 'root ::= "a"',
    "structural_tag": "{}",
    "frequency_penalty": 0.5,
    "presence_penalty": -0.5,
    "repetition_penalty": 1.5,
    "min_new_tokens": 8,
    "logit_bias": {"5": 1.0},
    "sampling_seed": 0,
    "top_k": 2**31,
    "beam_width": 2,
    "watermark": {"enabled": True},
    "custom_params": {"ddtree_accept_length": True},
}
REFUSED_FIELDS = {
    "return_logprob": True,
    "custom_logit_processor": "processor",
    "lora_id": "adapter",
    "session": object(),
    "origin_input_ids": [],
    "input_embeds": [[0.0]],
    "positional_embed_overrides": object(),
    "token_type_ids": [0],
    "multimodal_inputs": object(),
    "return_hidden_states": "last",
    "return_sampling_mask": True,
    "return_routed_experts": True,
    "return_indexer_topk": True,
}


def test_the_cases_cover_every_row() -> None:
    cases = {f"sampling_params.{field}" for field in REFUSED_SAMPLING} | set(REFUSED_FIELDS)
    assert cases == {row.attribute for row in admission.FIELD_ROWS}


@pytest.mark.parametrize(("field", "value"), REFUSED_SAMPLING.items())
def test_refused_sampling_parameter_is_named(field: str, value: Any) -> None:
    message = admission.refusal(request({field: value}))
    assert message is not None
    assert message.startswith(f"DDTREE does not support {field}")


@pytest.mark.parametrize(("field", "value"), REFUSED_FIELDS.items())
def test_refused_request_field_is_named(field: str, value: Any) -> None:
    row = next(row for row in admission.FIELD_ROWS if row.attribute == field)
    message = admission.refusal(request(**{field: value}))
    assert message is not None
    assert message.startswith(f"DDTREE does not support {row.field}: {row.why}")


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05},
        {"n": 3, "stop": ["x"], "stop_regex": "y", "stop_token_ids": [3], "ignore_eos": True},
        {"no_stop_trim": True, "skip_special_tokens": False, "custom_params": {"a": 1}},
        {"json_schema": "", "logit_bias": {}, "frequency_penalty": 0.0, "repetition_penalty": 1.0},
        {"watermark": {"enabled": False}},
        {"top_k": 2**31 - 1},
        {"top_k": -1},
        {"custom_params": {"ddtree_accept_lengths": True, "thinking_budget": 5}},
        {"custom_params": {"ddtree_accept_lengths": False}},
        {"custom_params": {"ddtreeish": 1, "accept_lengths": 1}},
        {"custom_params": {}},
        {"custom_params": None},
    ],
)
def test_what_is_served_passes(sampling: dict[str, Any]) -> None:
    assert admission.refusal(request(sampling)) is None


@pytest.mark.parametrize(("ids", "refused"), [([], True), ([0, 63], False), ([0, 64], True), ([-1, 5], True)])
def test_a_prompt_is_at_least_one_token_of_the_vocabulary(ids: list[int], refused: bool) -> None:
    assert (admission.refusal(request(origin_input_ids=ids)) is not None) == refused


def test_a_refused_request_has_a_top_k_that_sglang_can_hold() -> None:
    refused = request({"top_k": 10**12})
    assert "top_k" in str(admission._validate(None, refused, True))
    assert refused.sampling_params.top_k == 2**31 - 1


def test_all_refused_fields_are_named_at_once() -> None:
    message = admission.refusal(request({"min_new_tokens": 1, "logit_bias": {"1": 1.0}}, return_logprob=True))
    assert message is not None
    assert all(field in message for field in ("min_new_tokens", "logit_bias", "return_logprob"))


@pytest.mark.parametrize(
    ("params", "got"),
    [
        ({"ddtree_accept_lengths": 1}, "ddtree_accept_lengths = 1"),
        ({"ddtree_accept_lengths": None}, "ddtree_accept_lengths = None"),
        ({"ddtree_accept_lengths": "true"}, "ddtree_accept_lengths = 'true'"),
        ({"ddtree_": True, "ddtree_accept_lengths": True}, "ddtree_ = True"),
        ({"ddtree_a": 0, "ddtree_b": [1], "c": 2}, "ddtree_a = 0, ddtree_b = [1]"),
        ({"ddtree_a": "x" * 1000}, f"ddtree_a = '{'x' * 59}..."),
        ({"ddtree_" + "y" * 1000: 1}, f"ddtree_{'y' * 53}... = 1"),
    ],
)
def test_a_custom_parameter_of_our_prefix_is_known_and_a_bool(params: dict[str, Any], got: str) -> None:
    refused = request({"custom_params": params}, customized_info=None)
    message = admission._validate(None, refused, True)
    assert message == (
        "DDTREE does not support custom_params.ddtree_...: of these keys only ddtree_accept_lengths is known, and it "
        f"is true or false (got {got}). Leave it out."
    )
    assert refused.customized_info is None


@pytest.mark.parametrize(
    ("params", "got"),
    [
        ([], "[]"),
        ([["ddtree_accept_lengths", True]], "[['ddtree_accept_lengths', True]]"),
        ("ddtree_accept_lengths", "'ddtree_accept_lengths'"),
        ("", "''"),
        (7, "7"),
        (0, "0"),
        (0.5, "0.5"),
        (True, "True"),
        (False, "False"),
        ("x" * 1000, f"'{'x' * 59}..."),
    ],
)
def test_custom_parameters_are_an_object(params: Any, got: str) -> None:
    refused = request({"custom_params": params}, customized_info=None)
    message = admission._validate(None, refused, True)
    assert message == (
        "DDTREE does not support custom_params: only a JSON object or null is read, anything else would be ignored "
        f"(got {got}). Give an object, or leave it out."
    )
    assert refused.customized_info is None


def test_accept_lengths_are_collected_of_an_admitted_request_that_asks(process: SimpleNamespace) -> None:
    def collected(params: dict[str, Any] | None, **sampling: Any) -> bool:
        one = request({"custom_params": params, **sampling}, customized_info=None)
        admission._validate(None, one, True)
        return one.customized_info is not None

    asking = {"ddtree_accept_lengths": True}
    assert collected(asking)
    assert not collected({"ddtree_accept_lengths": False})
    assert not collected(None)
    assert not collected(asking, regex="a+")
    process.algorithm = "DFLASH"
    assert not collected(asking)


def test_seed_is_served_in_deterministic_inference(process: SimpleNamespace) -> None:
    process.deterministic = True
    assert admission.refusal(request({"sampling_seed": 7})) is None


def test_seed_refusal_names_the_way_out() -> None:
    message = str(admission.refusal(request({"sampling_seed": 7})))
    assert "--enable-deterministic-inference (not available on the CPU platform)" in message


def test_hook_speaks_for_ddtree_only(process: SimpleNamespace) -> None:
    refused = request({"min_new_tokens": 8})
    assert "min_new_tokens" in str(admission._validate(None, refused, True))
    assert admission._validate("theirs", request(), True) == "theirs"
    process.algorithm = "DFLASH"
    assert admission._validate(None, refused, True) is None
    assert admission._validate(None, request({"custom_params": [1]}), True) is None


def test_table_lists_every_row() -> None:
    table = admission.request_refusal_table()
    assert len(table) == len(admission.FIELD_ROWS)
    assert all(set(row) == {"field", "why", "fix"} and all(row.values()) for row in table)


def test_refused_requests_are_counted_by_field(
    monkeypatch: pytest.MonkeyPatch, process: SimpleNamespace
) -> None:
    monkeypatch.setattr(admission, "refused_fields", Counter())
    from sglang.srt.speculative.dflash_utils import validate_dflash_request

    served, refused = request(), request({"regex": "a+", "min_new_tokens": 8}, return_logprob=True)
    for one in (served, refused, request({"regex": "b"})):
        validate_dflash_request(one, enable_overlap=True)
    assert admission.refused_fields == {"regex": 2, "min_new_tokens": 1, "return_logprob": 1}
    process.algorithm = "DFLASH"
    admission._validate(None, refused, enable_overlap=True)
    assert admission.refused_fields.total() == 4

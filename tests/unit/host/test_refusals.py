"""Every row of the startup refusals: the default passes, the refused value is named with its flag."""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any

import pytest

from e2e.checkpoints import make_drafter
from sglang_ddtree.host import refusal_rows, refusals
from sglang_ddtree.host.backend import resolve_attention_backend
from sglang_ddtree.host.recurrent import GDN
from sglang_ddtree.host.refusal_rows import OPTION_ROWS, TARGET_ROWS, OptionRow, TargetRow

pytestmark = pytest.mark.usefixtures("sglang_with_plugins")

# Options of the speculative namespace that DDTREE reads, or that only say how the drafter is loaded.
READ = {
    "speculative_algorithm",
    "speculative_attention_mode",
    "speculative_boundary_reduction",
    "speculative_dflash_block_size",
    "speculative_draft_attention_backend",
    "speculative_draft_kv_cache_dtype",
    "speculative_draft_load_format",
    "speculative_draft_model_path",
    "speculative_draft_model_quantization",
    "speculative_draft_model_revision",
    "speculative_dsa_topk_backend",
    "speculative_eagle_topk",
    "speculative_enable_w4a4_mxfp4_megamoe",
    "speculative_moe_a2a_backend",
    "speculative_moe_runner_backend",
    "speculative_num_draft_tokens",
    "speculative_num_steps",
    "_speculative_draft_quantization_explicitly_set",
}


def defaults() -> dict[str, Any]:
    from sglang.srt.server_args import ServerArgs

    record = ServerArgs(model_path="some/model", speculative_draft_model_path="some/drafter", device="cuda")
    fields = type(record).__struct_fields__
    return {name: getattr(record, name) for name in fields}


def refused_value(row: OptionRow) -> Any:
    candidates = (True, 2, 0.5, "fp4_e2m1", "other")
    return next(value for value in candidates if row.refused(value))


def text_of(**options: Any) -> str:
    with pytest.raises(ValueError, match=r"^DDTREE cannot start: ") as caught:
        refusals.check_in_worker(SimpleNamespace(**(defaults() | options)), target())
    return str(caught.value)


def target(**changes: Any) -> Any:
    plain = {
        "hf_config": SimpleNamespace(architectures=["SomeForCausalLM"]),
        "hf_text_config": SimpleNamespace(layer_types=None),
        "is_hybrid_swa": False,
        "is_local_attention_model": False,
        "attention_chunk_size": None,
        "is_multimodal": False,
        "is_encoder_decoder": False,
        "use_ngram_embedding": False,
        "use_engram": False,
        "family": None,
    }
    return SimpleNamespace(**(plain | changes))


@pytest.fixture(autouse=True)
def named_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "recurrent_family", lambda config: getattr(config, "family", None))
    monkeypatch.setattr(refusal_rows, "follows_accepted_node", lambda config: config.family == GDN)


@pytest.mark.parametrize("row", OPTION_ROWS, ids=lambda row: row.field)
def test_refused_option_is_named_with_reason_and_way_out(row: OptionRow) -> None:
    text = text_of(**{row.field: refused_value(row)})
    assert row.name in text
    assert row.why in text
    assert row.fix.rstrip(".") in text


@pytest.mark.parametrize("row", OPTION_ROWS, ids=lambda row: row.field)
def test_default_is_not_refused(row: OptionRow) -> None:
    assert not row.refused(defaults()[row.field])


def test_every_named_flag_exists() -> None:
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    known = {option for action in parser._actions for option in action.option_strings}
    assert [row.name for row in OPTION_ROWS if row.name not in known] == []


def test_every_speculative_option_is_read_or_refused() -> None:
    from sglang.srt.arg_groups.fields.spec import Spec

    undecided = set(Spec.__struct_fields__) - READ - {row.field for row in OPTION_ROWS}
    assert undecided == set()


def test_plain_server_passes() -> None:
    refusals.check_in_worker(SimpleNamespace(**defaults()), target(), sliding_window_size=None)


def test_all_refused_options_are_listed_at_once() -> None:
    text = text_of(pp_size=2, enable_lora=True, speculative_accept_threshold_acc=0.5)
    assert "--pipeline-parallel-size 2: " in text
    assert "--enable-lora: " in text
    assert "--speculative-accept-threshold-acc 0.5: " in text


@pytest.mark.parametrize(
    ("row", "changes"),
    [
        (TARGET_ROWS[0], {"is_hybrid_swa": True}),
        (TARGET_ROWS[0], {"hf_text_config": SimpleNamespace(layer_types=["sliding_attention"])}),
        (TARGET_ROWS[1], {"is_local_attention_model": True}),
        (TARGET_ROWS[1], {"attention_chunk_size": 8192}),
        (TARGET_ROWS[2], {"is_multimodal": True}),
        (TARGET_ROWS[3], {"is_encoder_decoder": True}),
        (TARGET_ROWS[4], {"use_engram": True}),
    ],
    ids=lambda value: value.name if isinstance(value, TargetRow) else next(iter(value)),
)
def test_refused_target_is_named(row: TargetRow, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^DDTREE cannot start: ") as caught:
        refusals.check_in_worker(SimpleNamespace(**defaults()), target(**changes))
    assert f"{row.name} ['SomeForCausalLM']: {row.why}" in str(caught.value)


def test_unproven_recurrent_family_needs_the_flag() -> None:
    mamba = target(family="Mamba (FalconH1Config)")
    with pytest.raises(ValueError, match=r"with Mamba \(FalconH1Config\) layers: it is not proven") as caught:
        refusals.check_in_worker(SimpleNamespace(**defaults()), mamba)
    assert "--speculative-ddtree-allow-hybrid-unsafe" in str(caught.value)
    options = SimpleNamespace(**defaults(), _ddtree_options={"allow_hybrid_unsafe": True})
    refusals.check_in_worker(options, mamba)


def test_gdn_target_needs_no_flag_and_may_have_a_vision_tower() -> None:
    refusals.check_in_worker(SimpleNamespace(**defaults()), target(family=GDN, is_multimodal=True))


def test_window_of_the_loaded_model_is_refused() -> None:
    with pytest.raises(ValueError, match="the loaded model has a window of 4095"):
        refusals.check_in_worker(SimpleNamespace(**defaults()), target(), sliding_window_size=4095)
    refusals.check_in_worker(SimpleNamespace(**defaults()), target(), sliding_window_size=-1)


def test_table_lists_every_row() -> None:
    table = refusals.refusal_table()
    assert len(table) == 9 + len(OPTION_ROWS) + len(TARGET_ROWS)
    assert all(set(row) == {"option", "allowed", "why"} and all(row.values()) for row in table)


@pytest.mark.parametrize(
    ("backends", "chosen"),
    [
        ({"attention_backend": "triton"}, "triton"),
        ({"attention_backend": "flashinfer"}, None),
        ({"prefill_attention_backend": "triton", "decode_attention_backend": "triton"}, "triton"),
        ({"attention_backend": "fa3"}, None),
        ({"attention_backend": "torch_native"}, None),
        ({"attention_backend": "triton", "decode_attention_backend": "flashinfer"}, None),
    ],
)
def test_backend_must_take_a_tree_mask(
    backends: dict[str, str], chosen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt.platforms import current_platform

    monkeypatch.setattr(type(current_platform), "is_out_of_tree", lambda self: False)
    options = SimpleNamespace(**(defaults() | backends))
    if chosen is None:
        with pytest.raises(ValueError, match=r"--attention-backend .*Use triton, or leave"):
            resolve_attention_backend(options)
    else:
        assert resolve_attention_backend(options) == chosen


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_drafter(tmp_path_factory.mktemp("drafter"), block_size=16, vocabulary=64))


@pytest.mark.parametrize("budget", [2, 8, 32])
def test_published_widths_are_accepted_and_no_others(drafter: str, budget: int) -> None:
    from sglang_ddtree.step.plan import StepPlan

    given = defaults() | {
        "speculative_draft_model_path": drafter,
        "_ddtree_options": {"budget": budget},
    }
    published = StepPlan.resolve(block_size=16, budget=budget, topk_cap=16, vocab_size=64).host_fields()
    assert list(refusals._width_problems(SimpleNamespace(**(given | published)), None)) == []
    for field, value in published.items():
        (problem,) = refusals._width_problems(SimpleNamespace(**(given | {field: value + 1})), None)
        flag = "--" + field.replace("_", "-")
        assert problem.startswith(f"{flag} {value + 1}: DDTREE takes {value} at --speculative-ddtree-budget")


@pytest.mark.parametrize(("value", "refused"), [(None, False), ("triton", False), ("fa3", True)])
def test_draft_backend_must_be_the_targets(
    value: str | None, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt.platforms import current_platform

    monkeypatch.setattr(type(current_platform), "is_out_of_tree", lambda self: False)
    given = {"speculative_draft_attention_backend": value}
    # SGLang's resolution has written a value of its own over the user's.
    resolved = {"attention_backend": "triton", "speculative_draft_attention_backend": "flashinfer"}
    options = SimpleNamespace(**(defaults() | resolved), _raw_input=defaults() | given)
    problems = list(refusals._draft_backend_problems(options))
    expected = "--speculative-draft-attention-backend fa3: one backend serves draft and verify, here triton. "
    assert problems == ([expected + "Leave it out"] if refused else [])

"""Families of recurrent targets by SGLang's own configs, and the memory plan of the one that is served."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_ddtree.host import recurrent
from sglang_ddtree.host.recurrent import (
    GDN,
    RecurrentPlan,
    StateMemory,
    follows_accepted_node,
    recurrent_family,
)
from sglang_ddtree.recurrent import GDNShape, TreeRecord, record_bytes_per_node
from sglang_ddtree.step.plan import StepPlan

pytestmark = pytest.mark.usefixtures("sglang_with_plugins")

MIB = 2**20


def model_config(config: Any) -> Any:
    return SimpleNamespace(hf_config=config, linear_attn_registry_result=None, dtype=torch.bfloat16)


def made(name: str, **fields: Any) -> Any:
    from sglang.srt import configs

    return getattr(configs, name)(**fields)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Qwen3NextConfig", GDN),
        ("Qwen3_5Config", GDN),
        ("Qwen3_5MoeConfig", GDN),
        ("JetNemotronConfig", "variant of GDN (JetNemotronConfig)"),
        ("KimiLinearConfig", "Kimi Delta Attention (KimiLinearConfig)"),
        ("FalconH1Config", "Mamba (FalconH1Config)"),
        ("NemotronHConfig", "Mamba (NemotronHConfig)"),
        ("Lfm2Config", "short convolution (Lfm2Config)"),
    ],
)
def test_family_is_told_by_sglangs_config(name: str, family: str) -> None:
    config = model_config(made(name))
    config.is_draft_model = False
    assert recurrent_family(config) == family
    assert follows_accepted_node(config) == (family == GDN)


def test_lightning_is_told() -> None:
    config = model_config(made("BailingHybridConfig"))
    assert recurrent_family(config) == "Lightning attention (BailingHybridConfig)"


def test_dense_target_has_no_family() -> None:
    from transformers import Qwen3Config

    config = model_config(Qwen3Config())
    assert recurrent_family(config) is None


def test_relative_with_further_states_is_no_plain_gdn() -> None:
    from sglang.srt.configs.qwen4_exp import Qwen4ExpTextConfig

    assert "Qwen4ExpTextConfig" in str(recurrent_family(model_config(Qwen4ExpTextConfig())))


SHAPE = GDNShape(num_k_heads=16, num_v_heads=48, head_k_dim=128, head_v_dim=128, conv_kernel=4)


def plan(width: int, batches: dict[int, int | None] | None = None) -> RecurrentPlan:
    """48 layers of a 27B model."""
    per_node = record_bytes_per_node(SHAPE, torch.bfloat16, torch.bfloat16)
    budget = width - 1 if batches is None else "auto"
    return RecurrentPlan(
        SHAPE,
        48,
        budget,
        batches or {width: None},
        torch.bfloat16,
        torch.bfloat16,
        48 * per_node,
        144 * MIB,
    )


AUTO: dict[int, int | None] = {8: None, 16: None, 32: 16, 64: 8}


@pytest.mark.parametrize(
    ("requests", "nodes"),
    # 64 tokens for up to 8 requests, 32 for up to 16, which is as many until 16 tokens of all requests are more.
    [(1, 64), (5, 320), (8, 512), (16, 512), (32, 512), (33, 528), (48, 768)],
)
def test_auto_records_the_most_that_one_step_verifies(requests: int, nodes: int) -> None:
    assert plan(64, AUTO).nodes(requests) == nodes
    assert plan(64, AUTO).record_bytes(requests) == nodes * plan(2).node_bytes
    assert plan(33).nodes(requests) == 33 * requests


def test_refusal_of_auto_names_what_fits() -> None:
    memory = StateMemory.sized_by_ratio(15 * 2**30, 0.9, 5)
    one = plan(64, AUTO)
    with pytest.raises(ValueError, match=r"48 running requests \(1.71 MiB a node x 768 nodes") as caught:
        one.check_fit(memory, 48)
    requests = int(str(caught.value).split("--max-running-requests ")[1].split(" at budget auto")[0])
    one.check_fit(memory, requests)
    with pytest.raises(ValueError, match="cannot start"):
        one.check_fit(memory, requests + 1)


def test_bytes_of_a_node_are_those_of_the_record() -> None:
    conv, keys, values, gates = 2 * (2 * 2048 + 6144), 2 * 2048, 2 * 6144, 2 * 4 * 48
    assert record_bytes_per_node(SHAPE, torch.bfloat16, torch.bfloat16) == conv + keys + values + gates
    small = GDNShape(1, 2, 16, 16, 4)
    record = TreeRecord.allocate(small, 3, 5, 7, torch.float32, torch.bfloat16, "cpu")
    assert record.nbytes == 3 * 5 * 7 * record_bytes_per_node(small, torch.float32, torch.bfloat16)


def requests_of_sglang(rest: int, ratio: float, slots: int, record: int) -> int:
    """How many requests SGLang's own sizing allows: floor of states, one of them padding, by states a request."""
    states = (rest - record) * ratio / (1 + ratio)
    return int((states - 144 * MIB) // (144 * MIB)) // slots


@pytest.mark.parametrize("width", [2, 17, 65, 129])
@pytest.mark.parametrize("rest", [4, 8, 12, 17, 24, 31, 47, 69])
def test_named_number_of_requests_is_the_largest_that_sglang_serves(rest: int, width: int) -> None:
    one = plan(width)
    rest *= 2**30
    memory = StateMemory.sized_by_ratio(rest, 0.9, 5)
    named = memory.most_requests(one)
    if named:
        one.check_fit(memory, named)
        assert requests_of_sglang(rest, 0.9, 5, one.record_bytes(named)) >= named
    with pytest.raises(ValueError, match="DDTREE cannot start: the recurrent layers need"):
        one.check_fit(memory, named + 1)
    assert requests_of_sglang(rest, 0.9, 5, one.record_bytes(named + 1)) < named + 1


def test_refusal_names_numbers_that_fit_and_are_the_largest() -> None:
    memory = StateMemory.sized_by_ratio(15 * 2**30, 0.9, 5)
    with pytest.raises(ValueError, match="--max-running-requests") as caught:
        plan(129).check_fit(memory, 9)
    text = str(caught.value)
    budget = int(text.split("--speculative-ddtree-budget ")[1].split()[0])
    requests = int(text.split("--max-running-requests ")[1].split()[0])
    assert 1 <= budget < 128
    assert 1 <= requests < 9
    plan(budget + 1).check_fit(memory, 9)
    plan(129).check_fit(memory, requests)
    with pytest.raises(ValueError, match="cannot start"):
        plan(budget + 2).check_fit(memory, 9)
    with pytest.raises(ValueError, match="cannot start"):
        plan(129).check_fit(memory, requests + 1)


def test_given_states_are_paid_whatever_the_requests() -> None:
    memory = StateMemory(4 * 2**30, 0, 21, 1.0)
    record = 4 * 2**30 - 21 * 144 * MIB
    fits = record // plan(17).record_bytes(1)
    assert memory.most_requests(plan(17)) == fits
    plan(17).check_fit(memory, fits)


def test_refusal_says_when_nothing_fits() -> None:
    with pytest.raises(ValueError, match="no budget fits 8 running requests; not one request fits"):
        plan(65).check_fit(StateMemory.sized_by_ratio(200 * MIB, 0.9, 5), 8)


def step_plan(budget: int, block_size: int = 16) -> StepPlan:
    return StepPlan.resolve(block_size=block_size, budget=budget, topk_cap=16, vocab_size=1000)


@pytest.mark.parametrize(
    ("changes", "step", "interval", "expected"),
    [
        ({}, step_plan(128), 256, []),
        (
            {},
            step_plan(129),
            256,
            ["--speculative-ddtree-budget 129: a target with GDN layers is verified up"],
        ),
        ({}, step_plan(16), 16, ["--mamba-track-interval 16: it must be at least the verify width, 17"]),
        ({}, step_plan(16), None, []),
        ({}, step_plan(63, block_size=64), 64, ["--mamba-track-interval 64: it must be at least 128, twice"]),
        ({}, step_plan(63, block_size=64), 128, []),
        ({}, step_plan(63, block_size=32), 64, []),
        ({"linear_key_head_dim": 96}, step_plan(16), 256, ["the target's linear_key_head_dim is 96"]),
        ({"linear_value_head_dim": 8}, step_plan(16), 256, ["the target's linear_value_head_dim is 8"]),
        (
            {"mamba_ssm_dtype": "float16"},
            step_plan(16),
            256,
            ["--mamba-ssm-dtype float16: it must be float32 or"],
        ),
    ],
)
def test_gdn_limits_are_named(
    changes: dict[str, Any], step: StepPlan, interval: int | None, expected: list[str]
) -> None:
    found = recurrent.gdn_problems(model_config(made("Qwen3NextConfig", **changes)), step, interval)
    assert len(found) == len(expected)
    for problem, start in zip(found, expected, strict=True):
        assert problem.startswith(start)


def test_ranks_share_the_heads_evenly_or_not_at_all() -> None:
    config = model_config(made("Qwen3NextConfig"))
    assert recurrent.gdn_problems(config, step_plan(16), None, ranks=8) == []
    assert recurrent.gdn_problems(config, step_plan(16), None, ranks=3) == [
        "--tensor-parallel-size 3: it must divide the target's linear_num_key_heads, which is 16",
        "--tensor-parallel-size 3: it must divide the target's linear_num_value_heads, which is 32",
    ]
    of_rank = recurrent.gdn_shape(made("Qwen3NextConfig"), 4)
    assert (of_rank.num_k_heads, of_rank.num_v_heads, of_rank.head_k_dim) == (4, 8, 128)


def test_a_wide_verify_s_requests_are_those_of_its_largest_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt import runtime_context
    from sglang.srt.arg_groups import overrides

    from sglang_ddtree.host import budget
    from sglang_ddtree.step.widths import CapturePlan

    sizes = [1, 2, 4, 8, 12, 16, 24, 32, 48]
    decode = SimpleNamespace(backend="full", bs=sizes)
    graph = SimpleNamespace(cuda_graph_config=SimpleNamespace(decode=decode))
    monkeypatch.setattr(overrides, "resolved_view", lambda server_args: graph)
    monkeypatch.setattr(runtime_context, "get_exec", lambda: SimpleNamespace(graph=graph))
    monkeypatch.setattr(
        runtime_context, "get_spec", lambda: SimpleNamespace(speculative_dflash_block_size=16)
    )
    monkeypatch.setattr(budget, "_on_cpu", lambda: False)
    monkeypatch.setattr(RecurrentPlan, "of", classmethod(lambda cls, config, plan, batches: (plan, batches)))
    target = SimpleNamespace(**vars(model_config(made("Qwen3NextConfig"))), vocab_size=1000)

    plan, batches = recurrent.recurrent_plan(asked_for("auto"), target)  # type: ignore[misc]
    assert batches == {8: None, 16: None, 32: 16, 64: 8}
    captured = CapturePlan(plan, int(1e6), 1000, records_nodes=True)
    assert {width: max(captured.sizes_of(width, sizes)) for width in (32, 64)} == {32: 16, 64: 8}
    # A batch beyond all graphs runs the narrowest width, though the draft's block be narrower still.
    monkeypatch.setattr(runtime_context, "get_spec", lambda: SimpleNamespace(speculative_dflash_block_size=6))
    _, batches = recurrent.recurrent_plan(asked_for("auto"), target)  # type: ignore[misc]
    assert batches == {8: None, 16: 32, 32: 16, 64: 8}
    _, batches = recurrent.recurrent_plan(asked_for(33), target)  # type: ignore[misc]
    assert batches == {34: None}
    # Without graphs any batch runs any width.
    monkeypatch.setattr(budget, "_on_cpu", lambda: True)
    _, batches = recurrent.recurrent_plan(asked_for("auto"), target)  # type: ignore[misc]
    assert set(batches.values()) == {None}


def asked_for(budget: int | str) -> Any:
    from sglang_ddtree.host.flags import set_options

    server_args = SimpleNamespace(speculative_algorithm="DDTREE")
    set_options(server_args, budget=budget)
    return server_args

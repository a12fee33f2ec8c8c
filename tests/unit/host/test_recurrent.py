"""Families of recurrent targets by SGLang's own configs, and the memory plan of the one that is served."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_ddtree.host import recurrent
from sglang_ddtree.host.recurrent import GDN, RecurrentPlan, follows_accepted_node, recurrent_family
from sglang_ddtree.recurrent import GDNShape, TreeRecord, record_bytes_per_node

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


def plan(width: int) -> RecurrentPlan:
    """48 layers of a 27B model."""
    per_node = record_bytes_per_node(SHAPE, torch.bfloat16, torch.bfloat16)
    return RecurrentPlan(SHAPE, 48, width, torch.bfloat16, torch.bfloat16, 48 * per_node, 144 * MIB)


def test_bytes_of_a_node_are_those_of_the_record() -> None:
    conv, keys, values, gates = 2 * (2 * 2048 + 6144), 2 * 2048, 2 * 6144, 2 * 4 * 48
    assert record_bytes_per_node(SHAPE, torch.bfloat16, torch.bfloat16) == conv + keys + values + gates
    small = GDNShape(1, 2, 16, 16, 4)
    record = TreeRecord.allocate(small, 3, 5, 7, torch.float32, torch.bfloat16, "cpu")
    assert record.nbytes == 3 * 5 * 7 * record_bytes_per_node(small, torch.float32, torch.bfloat16)


def test_memory_that_fits_passes_and_one_byte_less_does_not() -> None:
    needed = 8 * (plan(33).node_bytes * 33 + 5 * 144 * MIB)
    plan(33).check_fit(needed, requests=8, slots_per_request=5)
    with pytest.raises(ValueError, match="DDTREE cannot start: the recurrent layers need"):
        plan(33).check_fit(needed - 1, requests=8, slots_per_request=5)


def test_refusal_names_numbers_that_fit_and_are_the_largest() -> None:
    available = 6 * 2**30
    with pytest.raises(ValueError, match="--max-running-requests") as caught:
        plan(65).check_fit(available, requests=8, slots_per_request=5)
    text = str(caught.value)
    budget = int(text.split("--speculative-ddtree-budget ")[1].split()[0])
    requests = int(text.split("--max-running-requests ")[1].split()[0])
    plan(budget + 1).check_fit(available, requests=8, slots_per_request=5)
    plan(65).check_fit(available, requests=requests, slots_per_request=5)
    with pytest.raises(ValueError, match="cannot start"):
        plan(budget + 2).check_fit(available, requests=8, slots_per_request=5)
    with pytest.raises(ValueError, match="cannot start"):
        plan(65).check_fit(available, requests=requests + 1, slots_per_request=5)


def test_refusal_says_when_nothing_fits() -> None:
    with pytest.raises(ValueError, match="no budget fits 8 running requests; not one request fits"):
        plan(65).check_fit(100 * MIB, requests=8, slots_per_request=5)


@pytest.mark.parametrize(
    ("changes", "width", "interval", "expected"),
    [
        ({}, 129, 256, []),
        ({}, 130, 256, ["--speculative-ddtree-budget 129: a target with GDN layers is verified up to 129"]),
        ({}, 17, 16, ["--mamba-track-interval 16: it must be at least the verify width, 17"]),
        ({}, 17, None, []),
        ({"linear_key_head_dim": 96}, 17, 256, ["the target's linear_key_head_dim is 96"]),
        ({"linear_value_head_dim": 8}, 17, 256, ["the target's linear_value_head_dim is 8"]),
    ],
)
def test_gdn_limits_are_named(
    changes: dict[str, int], width: int, interval: int | None, expected: list[str]
) -> None:
    found = recurrent.gdn_problems(model_config(made("Qwen3NextConfig", **changes)), width, interval)
    assert len(found) == len(expected)
    for problem, start in zip(found, expected, strict=True):
        assert problem.startswith(start)

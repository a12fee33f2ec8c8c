"""What budget a server runs where none, a number or "auto" is given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_ddtree.config import DDTreeConfig
from sglang_ddtree.host.budget import auto_problems, budget_of, plan_for

pytestmark = pytest.mark.usefixtures("sglang_with_plugins")


def server(graphs: str = "full", tunes: bool = False) -> Any:
    decode = SimpleNamespace(backend=graphs)
    return SimpleNamespace(
        cuda_graph_config=SimpleNamespace(decode=decode), disable_flashinfer_autotune=not tunes
    )


def target(name: str) -> Any:
    import transformers
    from sglang.srt import configs

    config = getattr(configs, name, None) or getattr(transformers, name)
    return SimpleNamespace(hf_config=config(), linear_attn_registry_result=None, is_draft_model=False)


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.platforms import current_platform

    monkeypatch.setattr(type(current_platform), "is_out_of_tree", lambda self: False)


@pytest.mark.parametrize(
    ("name", "graphs", "expected"),
    [
        ("LlamaConfig", "full", "auto"),
        ("LlamaConfig", "disabled", 32),
        ("LlamaConfig", "breakable", 32),
        ("Qwen3NextConfig", "full", 32),
        ("FalconH1Config", "full", 32),
    ],
)
@pytest.mark.usefixtures("on_cuda")
def test_the_default_follows_the_load_where_it_can(name: str, graphs: str, expected: Any) -> None:
    assert budget_of(server(graphs), DDTreeConfig(), target(name)) == expected
    assert budget_of(server(graphs), DDTreeConfig(budget=7), target(name)) == 7
    assert list(auto_problems(server(graphs), DDTreeConfig(), target(name))) == []
    problems = list(auto_problems(server(graphs), DDTreeConfig(budget="auto"), target(name)))
    # A GDN target serves it if asked to.
    assert bool(problems) == (expected == 32 and name != "Qwen3NextConfig")
    for problem in problems:
        assert problem.startswith("--speculative-ddtree-budget auto: ")
        assert problem.endswith("Set a number")


@pytest.mark.usefixtures("on_cuda")
def test_auto_on_experts_and_gdn_layers_asks_for_no_tuning_at_startup() -> None:
    auto = DDTreeConfig(budget="auto")
    (problem,) = auto_problems(server(tunes=True), auto, target("Qwen3NextConfig"))
    assert "--disable-flashinfer-autotune" in problem
    assert list(auto_problems(server(), auto, target("Qwen3NextConfig"))) == []
    dense = target("Qwen3_5TextConfig")
    assert list(auto_problems(server(tunes=True), auto, dense)) == []
    dense.quantization = "modelopt_fp8"
    assert len(list(auto_problems(server(tunes=True), auto, dense))) == 1


def test_on_a_cpu_the_default_is_fixed_and_auto_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.platforms import current_platform

    monkeypatch.setattr(type(current_platform), "is_out_of_tree", lambda self: True)
    dense = target("LlamaConfig")
    assert budget_of(server("disabled"), DDTreeConfig(), dense) == 32
    assert list(auto_problems(server("disabled"), DDTreeConfig(budget="auto"), dense)) == []


def test_auto_plans_widths_up_to_sixty_four_and_a_number_plans_one() -> None:
    cfg, dense = server(), target("LlamaConfig")
    plan = plan_for(cfg, DDTreeConfig(budget="auto"), dense, 16, 1000)
    assert (plan.widths, plan.verify_width, plan.budget, plan.max_depth) == ((8, 16, 32, 64), 64, 63, 15)
    plan = plan_for(cfg, DDTreeConfig(budget=32), dense, 16, 1000)
    assert (plan.widths, plan.verify_width) == ((33,), 33)
    # A short block with few candidates has small trees.
    plan = plan_for(cfg, DDTreeConfig(budget="auto", topk_cap=2), dense, 4, 1000)
    assert (plan.widths, plan.verify_width) == ((8, 15), 15)

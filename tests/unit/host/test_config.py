from __future__ import annotations

from typing import Any

import pytest

from sglang_ddtree.config import OPTIONS, DDTreeConfig


def test_defaults_are_those_of_the_options() -> None:
    assert DDTreeConfig() == DDTreeConfig(budget=None, topk_cap=16, allow_hybrid_unsafe=False)
    assert {option.flag: option.default for option in OPTIONS} == {
        "--speculative-ddtree-budget": None,
        "--speculative-ddtree-topk-cap": 16,
        "--speculative-ddtree-allow-hybrid-unsafe": False,
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [("budget", 1), ("budget", 1024), ("budget", "auto"), ("topk_cap", 1), ("topk_cap", 64)],
)
def test_ends_of_the_ranges_are_allowed(field: str, value: Any) -> None:
    assert getattr(DDTreeConfig(**{field: value}), field) == value


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("budget", 0, "--speculative-ddtree-budget must be auto or a whole number from 1 to 1024, got 0."),
        (
            "budget",
            1025,
            "--speculative-ddtree-budget must be auto or a whole number from 1 to 1024, got 1025.",
        ),
        (
            "budget",
            "8",
            "--speculative-ddtree-budget must be auto or a whole number from 1 to 1024, got '8'.",
        ),
        (
            "budget",
            True,
            "--speculative-ddtree-budget must be auto or a whole number from 1 to 1024, got True.",
        ),
        ("topk_cap", 65, "--speculative-ddtree-topk-cap must be a whole number from 1 to 64, got 65."),
        ("topk_cap", 2.0, "--speculative-ddtree-topk-cap must be a whole number from 1 to 64, got 2.0."),
        (
            "allow_hybrid_unsafe",
            1,
            "--speculative-ddtree-allow-hybrid-unsafe must be true or false, got 1.",
        ),
    ],
)
def test_error_names_flag_value_and_range(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=r"^--speculative-ddtree") as caught:
        DDTreeConfig(**{field: value})  # type: ignore[arg-type]
    assert str(caught.value) == message

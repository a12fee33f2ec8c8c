from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from sglang_ddtree.bench.comparable import FIELDS, differences, flags_of, mode, warnings
from unit.bench.fakes import INFO


def changed(field: str, value: Any) -> dict[str, Any]:
    info = deepcopy(INFO)
    *path, last = field.split(".")
    place = info
    for part in path:
        place = place[part]
    place[last] = value
    return info


def compare(info: dict[str, Any], concurrencies: tuple[int, ...] = (1, 8)) -> list[str]:
    return differences("DDTREE 16", flags_of(info), "AR", flags_of(INFO), concurrencies)


def test_equal_flags_may_be_compared() -> None:
    assert compare(deepcopy(INFO)) == []
    assert compare(changed("max_running_requests", 12)) == []


@pytest.mark.parametrize("field", FIELDS)
def test_each_compared_field_is_refused_with_both_values(field: str) -> None:
    (reason,) = compare(changed(field, "other"))
    assert reason.startswith(f"{field} is {flags_of(INFO)[field]!r} in AR and 'other' in DDTREE 16;")
    assert FIELDS[field] in reason


def test_graph_sizes_may_differ_where_both_cover_the_concurrencies() -> None:
    field = "cuda_graph_config.decode.max_bs"
    assert compare(changed(field, 16)) == []
    (reason,) = compare(changed(field, 4))
    assert "is 8 in AR and 4 in DDTREE 16, and --concurrency 8 lies between" in reason
    assert compare(changed(field, 4), (1, 32)) == []  # eager at 32 in both


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("page_size", 16, "CUDA graphs"),
        ("disable_cuda_graph", True, "eager"),
        ("cuda_graph_config.decode.backend", "disabled", "eager"),
        ("device", "cpu", "CPU"),
        ("attention_backend", "ddtree_cpu", "CPU"),
    ],
)
def test_mode_says_how_steps_ran(field: str, value: Any, expected: str) -> None:
    flags = flags_of(changed(field, value))
    assert mode(flags) == expected
    words = {"CUDA graphs": [], "eager": ["Run eager"], "CPU": ["Run on the CPU"]}[expected]
    assert [text[: len(word)] for text, word in zip(warnings(flags, 48, [1]), words, strict=True)] == words


def test_batches_without_a_graph_and_queued_requests_are_told() -> None:
    graphs, queue = warnings(flags_of(INFO), 12, [1, 8, 16])
    assert "above 8 run eager (concurrency 16)" in graphs
    assert "at most 12 requests" in queue

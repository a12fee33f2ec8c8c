"""The metrics as Prometheus' own registry reads them."""

from __future__ import annotations

from functools import partial

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge

from sglang_ddtree.metrics.counts import Totals
from sglang_ddtree.metrics.exporter import Exporter

LABELS = {"model_name": "m", "tp_rank": 0}


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def exporter(registry: CollectorRegistry) -> Exporter:
    return Exporter(
        LABELS, (8, 64), 3, partial(Counter, registry=registry), partial(Gauge, registry=registry)
    )


def value(registry: CollectorRegistry, name: str, **more: str) -> float | None:
    return registry.get_sample_value(f"sglang:ddtree_{name}", {"model_name": "m", "tp_rank": "0", **more})


def test_series_begin_at_zero(registry: CollectorRegistry, exporter: Exporter) -> None:
    assert [value(registry, "steps_total", width=width) for width in ("8", "64")] == [0, 0]
    assert [value(registry, "accepted_drafts_total", depth=depth) for depth in "123"] == [0, 0, 0]
    assert value(registry, "accepted_drafts_total", depth="4") is None
    for name in ("width_switches_total", "verified_trees_total", "timed_steps_total"):
        assert value(registry, name) == 0
    assert value(registry, "expected_tokens", width="8") is None


def test_counters_follow_the_totals_and_gauges_the_last_value(
    registry: CollectorRegistry, exporter: Exporter
) -> None:
    exporter.publish(
        Totals({8: 5, 64: 0}, 1, {8: 1.5, 64: 2.5}, 9, [4], {"regex": 2}, 1, {"draft": 0.5, "verify": 0.0})
    )
    exporter.publish(
        Totals(
            {8: 7, 64: 3},
            1,
            {8: 1.25, 64: 3.5},
            20,
            [9, 6],
            {"regex": 2, "lora_id": 1},
            3,
            {"draft": 0.75, "verify": 2.0},
        )
    )
    assert [value(registry, "steps_total", width=width) for width in ("8", "64")] == [7, 3]
    assert value(registry, "width_switches_total") == 1
    assert [value(registry, "expected_tokens", width=width) for width in ("8", "64")] == [1.25, 3.5]
    assert value(registry, "verified_trees_total") == 20
    assert [value(registry, "accepted_drafts_total", depth=depth) for depth in "123"] == [9, 6, 0]
    assert [value(registry, "refused_requests_total", field=field) for field in ("regex", "lora_id")] == [
        2,
        1,
    ]
    assert value(registry, "timed_steps_total") == 3
    assert [value(registry, "phase_seconds_total", phase=phase) for phase in ("draft", "verify")] == [0.75, 2]

"""The hooks on SGLang's metrics reporter, on stand-ins for scheduler, worker and collector."""

from __future__ import annotations

import logging
from collections import Counter as Tally
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge

from sglang_ddtree.host import admission, metrics

pytestmark = pytest.mark.usefixtures("sglang_with_plugins")


class Widths:
    """A policy's counters; None where the width is fixed."""

    shown: dict[str, Any] | None = None

    def snapshot(self) -> dict[str, Any] | None:
        return self.shown


class Worker:
    def __init__(self) -> None:
        self.plan = SimpleNamespace(verify_width=64, widths=(8, 64), max_depth=15)
        self.widths = Widths()
        self.phases = SimpleNamespace(steps=0, seconds={"draft": 0.0, "verify": 0.0})


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    state = SimpleNamespace(ddtree=True)
    monkeypatch.setattr(metrics, "serves_ddtree", lambda: state.ddtree)
    monkeypatch.setattr(admission, "refused_fields", Tally())
    return state


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def reporter(registry: CollectorRegistry) -> Any:
    collector = SimpleNamespace(
        labels={"model_name": "m"},
        _counter_cls=partial(Counter, registry=registry),
        _gauge_cls=partial(Gauge, registry=registry),
    )
    return SimpleNamespace(
        scheduler=SimpleNamespace(draft_worker=Worker()),
        metrics_collector=collector,
        current_scheduler_metrics_enabled=True,
        forward_ct_decode=40,
        decode_log_interval=40,
    )


def value(registry: CollectorRegistry, name: str, **more: str) -> float | None:
    return registry.get_sample_value(f"sglang:ddtree_{name}", {"model_name": "m", **more})


def decode_line(reporter: Any, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What a report logs, through the logger that SGLang's own report uses."""
    from sglang.srt.managers.scheduler_components import metrics_reporter

    def original(given: Any, graph: bool, batch: Any = None) -> None:
        assert (given, graph, batch) == (reporter, True, "batch")
        metrics_reporter.logger.info("Decode batch, accept len: 2.00, occupancy: 90%")
        metrics_reporter.logger.info("Prefill batch")

    caplog.clear()
    with caplog.at_level(logging.INFO, metrics_reporter.logger.name):
        metrics.report_decode_stats(original, reporter, True, batch="batch")
    assert metrics_reporter.logger.filters == []
    return [record.getMessage() for record in caplog.records]


PLAIN_LINES = ["Decode batch, accept len: 2.00, occupancy: 90%", "Prefill batch"]


def test_the_decode_line_ends_with_the_widths_since_the_last_one(
    reporter: Any, caplog: pytest.LogCaptureFixture
) -> None:
    widths = reporter.scheduler.draft_worker.widths
    widths.shown = {"steps": {"8": 30, "64": 10}, "switches": 1, "expected_tokens": {"8": 1.5, "64": 2.5}}
    assert decode_line(reporter, caplog) == [
        f"{PLAIN_LINES[0]}, verify width: 8 x 30, 64 x 10",
        "Prefill batch",
    ]
    widths.shown["steps"] = {"8": 30, "64": 50}
    assert decode_line(reporter, caplog)[0].endswith("90%, verify width: 64 x 40")


def test_a_fixed_width_is_named_too(reporter: Any, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        metrics.count_accepted(None, reporter.scheduler.draft_worker, [1, 0], batch_size=2)
    assert decode_line(reporter, caplog)[0] == f"{PLAIN_LINES[0]}, verify width: 64 x 3"


def test_between_two_reports_and_without_ddtree_nothing_is_changed(
    reporter: Any, process: SimpleNamespace, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    metrics.count_accepted(None, reporter.scheduler.draft_worker, [1])
    reporter.forward_ct_decode = 41
    assert decode_line(reporter, caplog) == PLAIN_LINES
    reporter.forward_ct_decode, process.ddtree = 40, False
    assert decode_line(reporter, caplog) == PLAIN_LINES
    metrics.publish(None, reporter)
    assert value(registry, "verified_trees_total") is None
    process.ddtree = True
    assert decode_line(reporter, caplog) != PLAIN_LINES
    assert value(registry, "verified_trees_total") == 1


def test_metrics_tell_steps_widths_acceptance_and_refusals(
    reporter: Any, registry: CollectorRegistry
) -> None:
    worker = reporter.scheduler.draft_worker
    worker.widths.shown = {
        "steps": {"8": 2, "64": 1},
        "switches": 1,
        "expected_tokens": {"8": 1.5, "64": 2.5},
        "graph_ms": {},
    }
    for kept in ([2, 0], [1], [3, 1]):
        metrics.count_accepted(None, worker, kept)
    admission.refused_fields.update(["regex"])
    metrics.publish(None, reporter)
    assert [value(registry, "steps_total", width=width) for width in ("8", "64")] == [2, 1]
    assert [value(registry, "accepted_drafts_total", depth=depth) for depth in "1234"] == [4, 2, 1, 0]
    assert value(registry, "verified_trees_total") == 5
    assert value(registry, "width_switches_total") == 1
    assert value(registry, "expected_tokens", width="64") == 2.5
    assert value(registry, "refused_requests_total", field="regex") == 1


def test_metrics_tell_the_times_of_the_phases(reporter: Any, registry: CollectorRegistry) -> None:
    worker = reporter.scheduler.draft_worker
    metrics.count_accepted(None, worker, [1])
    metrics.publish(None, reporter)
    told = [value(registry, "phase_seconds_total", phase=phase) for phase in ("draft", "verify")]
    assert (told, value(registry, "timed_steps_total")) == ([0, 0], 0)
    # The clock goes on with the same dictionary.
    worker.phases.steps = 2
    worker.phases.seconds["verify"] += 0.5
    metrics.count_accepted(None, worker, [1])
    metrics.publish(None, reporter)
    told = [value(registry, "phase_seconds_total", phase=phase) for phase in ("draft", "verify")]
    assert (told, value(registry, "timed_steps_total")) == ([0, 0.5], 2)


def test_a_refusal_alone_is_published(reporter: Any, registry: CollectorRegistry) -> None:
    metrics.publish(None, reporter)
    admission.refused_fields.update(["regex"])
    metrics.publish(None, reporter)
    metrics.publish(None, reporter)
    assert value(registry, "refused_requests_total", field="regex") == 1
    assert value(registry, "steps_total", width="64") == 0


def test_a_server_without_metrics_makes_none(reporter: Any, registry: CollectorRegistry) -> None:
    reporter.current_scheduler_metrics_enabled = False
    metrics.count_accepted(None, reporter.scheduler.draft_worker, [1])
    metrics.publish(None, reporter)
    assert value(registry, "verified_trees_total") is None


def test_sglang_s_own_call_is_counted(reporter: Any, registry: CollectorRegistry) -> None:
    from sglang.srt.speculative.base_spec_worker import BaseSpecWorker

    worker = reporter.scheduler.draft_worker
    BaseSpecWorker.on_verify_complete_cpu(worker, [2, 1], batch_size=2)
    metrics.publish(None, reporter)
    assert [value(registry, "accepted_drafts_total", depth=depth) for depth in "12"] == [2, 1]

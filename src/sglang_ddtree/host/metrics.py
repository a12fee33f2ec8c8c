"""Hooks on SGLang's metrics reporter: DDTREE's metrics, and the widths at the end of the decode log line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ..metrics.counts import AcceptedDrafts, Totals, describe_widths
from ..metrics.exporter import Exporter
from . import admission
from .hooks import declare
from .seams import serves_ddtree

if TYPE_CHECKING:
    from ..step.worker import DDTreeWorker

REPORTER = "sglang.srt.managers.scheduler_components.metrics_reporter"


class Watch:
    """What one worker's scheduler was told of its steps, and what it has passed on."""

    def __init__(self, worker: DDTreeWorker) -> None:
        self.plan, self.widths, self.phases = worker.plan, worker.widths, worker.phases
        self.accepted = AcceptedDrafts()
        self.exporter: Exporter | None = None
        self.passed_on: tuple[int, int] | None = None
        self.logged: dict[int, int] = {}

    def steps(self) -> dict[int, int]:
        """Verify width -> steps since the start."""
        shown = self.widths.snapshot()
        if shown is None:
            return {self.plan.verify_width: self.accepted.steps}
        return {int(width): count for width, count in shown["steps"].items()}

    def widths_since_last_line(self) -> str:
        before, self.logged = self.logged, self.steps()
        return describe_widths(before, self.logged)

    def publish(self, collector: Any) -> None:
        """Bring the metrics of `collector`'s process up to date, if there is news."""
        news = (self.accepted.steps, admission.refused_fields.total())
        if news == self.passed_on:
            return
        self.passed_on = news
        if self.exporter is None:
            self.exporter = _exporter(collector, self.plan.widths, self.plan.max_depth)
        shown = self.widths.snapshot() or {"switches": 0, "expected_tokens": {}}
        self.exporter.publish(
            Totals(
                steps=self.steps(),
                switches=shown["switches"],
                expected_tokens={int(width): one for width, one in shown["expected_tokens"].items()},
                trees=self.accepted.trees,
                accepted=self.accepted.by_depth(),
                refused=dict(admission.refused_fields),
                timed_steps=self.phases.steps,
                phase_seconds=dict(self.phases.seconds),
            )
        )


_watches: WeakKeyDictionary[Any, Watch] = WeakKeyDictionary()


def _watch(worker: DDTreeWorker) -> Watch:
    watch = _watches.get(worker)
    if watch is None:
        watch = _watches[worker] = Watch(worker)
    return watch


def _exporter(collector: Any, widths: Sequence[int], max_depth: int) -> Exporter:
    # SGLang has set the multiprocess folder by now; before, prometheus_client must not be imported.
    from prometheus_client import Counter, Gauge

    counter, gauge = collector._counter_cls or Counter, collector._gauge_cls or Gauge
    return Exporter(collector.labels, widths, max_depth, counter, gauge)


def count_accepted(
    result: None, worker: Any, num_correct_drafts_per_req: list[int], batch_size: int = 0
) -> None:
    if serves_ddtree():
        _watch(worker).accepted.add(num_correct_drafts_per_req)


def report_decode_stats(original: Callable[..., None], reporter: Any, *args: Any, **kwargs: Any) -> None:
    # SGLang calls it at every step and reports at some: the others cost no more than this test.
    if reporter.forward_ct_decode % reporter.decode_log_interval or not serves_ddtree():
        return original(reporter, *args, **kwargs)
    watch = _watch(reporter.scheduler.draft_worker)
    with _decode_line_ends_with(watch.widths_since_last_line()):
        original(reporter, *args, **kwargs)
    return publish(None, reporter)


def publish(result: None, reporter: Any) -> None:
    if reporter.current_scheduler_metrics_enabled and serves_ddtree():
        _watch(reporter.scheduler.draft_worker).publish(reporter.metrics_collector)


@contextmanager
def _decode_line_ends_with(text: str) -> Iterator[None]:
    def add(record: logging.LogRecord) -> bool:
        if text and str(record.msg).startswith("Decode batch"):
            record.msg = f"{record.msg}, {text}"
        return True

    logger = logging.getLogger(REPORTER)
    logger.addFilter(add)
    try:
        yield
    finally:
        logger.removeFilter(add)


def install() -> None:
    """Declare the hooks."""
    declare(
        "sglang.srt.speculative.base_spec_worker.BaseSpecWorker.on_verify_complete_cpu",
        "after",
        "counts accepted draft tokens by depth, where their numbers have just come to the host",
        count_accepted,
    )
    declare(
        f"{REPORTER}.SchedulerMetricsReporter.report_decode_stats",
        "around",
        "the decode log line names the verify widths since the last one; metrics follow SGLang's",
        report_decode_stats,
    )
    declare(
        f"{REPORTER}.SchedulerMetricsReporter._maybe_log_idle_metrics",
        "after",
        "metrics of steps and refusals that no decode report followed",
        publish,
    )

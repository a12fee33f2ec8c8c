"""The Prometheus metrics; SGLang's registry, its multiprocess files and its labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .counts import Totals

NOTHING = Totals({}, 0, {}, 0, (), {}, 0, {})


class Exporter:
    """Publishes totals as counters and gauges; one per process, since a name can be registered once.

    Args:
        labels: SGLang's labels of the scheduler's metrics.
        widths: the verify widths that steps may run.
        max_depth: deepest node that a tree can have.
        counter, gauge: the classes that SGLang's collector uses.
    """

    def __init__(
        self,
        labels: Mapping[str, Any],
        widths: Sequence[int],
        max_depth: int,
        counter: Callable[..., Any],
        gauge: Callable[..., Any],
    ) -> None:
        self.labels = dict(labels)
        self.told = NOTHING
        self.steps = counter(
            name="sglang:ddtree_steps_total",
            documentation="Decode steps launched, by verify width (tokens verified per request).",
            labelnames=[*labels, "width"],
        )
        self.switches = counter(
            name="sglang:ddtree_width_switches_total",
            documentation="Changes of the verify width that a batch size runs; 0 where the budget is fixed.",
            labelnames=[*labels],
        )
        self.expected_tokens = gauge(
            name="sglang:ddtree_expected_tokens",
            documentation="Tokens per request and step expected at a verify width; absent where the budget is fixed.",
            labelnames=[*labels, "width"],
            multiprocess_mode="mostrecent",
        )
        self.trees = counter(
            name="sglang:ddtree_verified_trees_total",
            documentation="Trees verified: one per request and decode step.",
            labelnames=[*labels],
        )
        self.accepted = counter(
            name="sglang:ddtree_accepted_drafts_total",
            documentation="Draft tokens accepted, by depth: verified trees whose accepted path reaches it.",
            labelnames=[*labels, "depth"],
        )
        self.refused = counter(
            name="sglang:ddtree_refused_requests_total",
            documentation="Requests refused, by field; one with several refused fields counts at each.",
            labelnames=[*labels, "field"],
        )
        self.timed_steps = counter(
            name="sglang:ddtree_timed_steps_total",
            documentation="Decode steps whose phases were timed: every 64th.",
            labelnames=[*labels],
        )
        self.phase_seconds = counter(
            name="sglang:ddtree_phase_seconds_total",
            documentation=(
                "Seconds of the timed decode steps by phase: window, draft (the tree's build included), layout, "
                "verify, accept, commit. On CUDA between events on the device, its waits for the host included."
            ),
            labelnames=[*labels, "phase"],
        )
        # A series that begins at 0 shows its first steps as an increase.
        for width in widths:
            self._of(self.steps, width=width)
        for depth in range(1, max_depth + 1):
            self._of(self.accepted, depth=depth)
        self._of(self.switches)
        self._of(self.trees)
        self._of(self.timed_steps)

    def publish(self, now: Totals) -> None:
        """Bring the metrics to `now`."""
        told, self.told = self.told, now
        for width, steps in now.steps.items():
            self._of(self.steps, width=width).inc(steps - told.steps.get(width, 0))
        for width, tokens in now.expected_tokens.items():
            self._of(self.expected_tokens, width=width).set(tokens)
        for depth, accepted in enumerate(now.accepted, 1):
            before = told.accepted[depth - 1] if depth <= len(told.accepted) else 0
            self._of(self.accepted, depth=depth).inc(accepted - before)
        for field, requests in now.refused.items():
            self._of(self.refused, field=field).inc(requests - told.refused.get(field, 0))
        for phase, seconds in now.phase_seconds.items():
            self._of(self.phase_seconds, phase=phase).inc(seconds - told.phase_seconds.get(phase, 0.0))
        self._of(self.timed_steps).inc(now.timed_steps - told.timed_steps)
        self._of(self.switches).inc(now.switches - told.switches)
        self._of(self.trees).inc(now.trees - told.trees)

    def _of(self, metric: Any, **more: Any) -> Any:
        return metric.labels(**self.labels, **more)

"""The Grafana dashboard: each metric that it queries is one that a server exports, with the labels that it names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from itertools import combinations
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge

from sglang_ddtree.host.source_tree import installed_root
from sglang_ddtree.metrics.exporter import Exporter
from unit.deploy.server_flags import FOLDER


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    return json.loads((FOLDER / "grafana-dashboard.json").read_text())


def expressions(dashboard: dict[str, Any]) -> Iterator[str]:
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (one["query"] for one in dashboard["templating"]["list"])


def own_metrics() -> dict[str, set[str]]:
    """Name -> its own labels, of the metrics that this package makes."""
    found: dict[str, set[str]] = {}

    def make(kind: type, **given: Any) -> Any:
        found[given["name"]] = set(given["labelnames"]) - {"model_name"}
        return kind(**given, registry=registry)

    registry = CollectorRegistry()
    Exporter({"model_name": "m"}, (8,), 3, partial(make, Counter), partial(make, Gauge))
    return found


def sglang_metrics() -> dict[str, str]:
    """Name -> kind of metric, from the source of SGLang's collectors."""
    root = installed_root()
    assert root is not None
    source = (root / "srt/observability/metrics_collector.py").read_text()
    return {
        name: kind for kind, name in re.findall(r'(Counter|Gauge|Histogram)\(\s*name="(sglang:\w+)"', source)
    }


def test_every_metric_exists(dashboard: dict[str, Any]) -> None:
    own, sglang = own_metrics(), sglang_metrics()
    exported = set(own) | {f"{name}_bucket" if kind == "Histogram" else name for name, kind in sglang.items()}
    queried = {name for text in expressions(dashboard) for name in re.findall(r"sglang:\w+", text)}
    assert queried - exported == set()
    # Nothing of ours is left out.
    assert set(own) - queried == set()
    assert len(queried - set(own)) >= 5


def test_only_what_grows_has_a_rate(dashboard: dict[str, Any]) -> None:
    for text in expressions(dashboard):
        for name in re.findall(r"sglang:\w+", text):
            grows = name.endswith(("_total", "_bucket"))
            assert (f"rate({name}" in text) == grows, text


def test_labels_are_those_of_the_metric(dashboard: dict[str, Any]) -> None:
    own = own_metrics()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            (first, *_) = re.findall(r"sglang:\w+", target["expr"])
            labels = {"le"} if first.endswith("_bucket") else own.get(first, set())
            assert set(re.findall(r"by \((\w+)\)", target["expr"])) <= labels
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels


def test_panels_have_their_own_place(dashboard: dict[str, Any]) -> None:
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for one, other in combinations((panel["gridPos"] for panel in dashboard["panels"]), 2):
        assert (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in dashboard["panels"])

"""The parts of a step, from the text of `/metrics` to report, table and page."""

from __future__ import annotations

import json
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from sglang_ddtree.bench import parts, plots, svg
from sglang_ddtree.bench.arms import parse_arm
from sglang_ddtree.bench.command import bench
from sglang_ddtree.bench.flow import Plan
from sglang_ddtree.bench.page import page
from sglang_ddtree.bench.parts import Counters, Parts, counters, difference, settled
from sglang_ddtree.bench.prompt_sets import Prompt
from sglang_ddtree.bench.report import Report
from sglang_ddtree.bench.server import RunningServer
from sglang_ddtree.bench.table import table
from sglang_ddtree.client import RequestFailed
from sglang_ddtree.metrics.counts import PHASES, Totals
from sglang_ddtree.metrics.exporter import Exporter
from sglang_ddtree.step import phases
from unit.bench.fakes import ABOUT, INFO, FakeServer, FakeServers, metrics_page

MS = {"window": 0.5, "draft": 1.25, "layout": 0.25, "verify": 5.0, "accept": 0.75, "commit": 1.0}
SECONDS = {phase: ms / 1000 for phase, ms in MS.items()}
SVG = "{http://www.w3.org/2000/svg}"


def test_the_phases_are_those_of_a_step() -> None:
    assert tuple(phases.PhaseClock(phases.HostMark).seconds) == PHASES == tuple(MS)


def test_a_page_gives_steps_and_seconds_of_all_processes_whatever_stands_around_them() -> None:
    lines = [
        "# HELP sglang:ddtree_timed_steps_total Decode steps whose phases were timed: every 64th.",
        "# TYPE sglang:ddtree_timed_steps_total counter",
        'sglang:ddtree_timed_steps_total{model_name="m",dp_rank="0"} 3.0',
        'sglang:num_running_reqs{model_name="m"} 0.0',
        'sglang:ddtree_timed_steps_total{model_name="m",dp_rank="1"} 1.0',
        'sglang:ddtree_timed_steps_created{model_name="m"} 1.7e+09',
        'sglang:ddtree_steps_total{width="8"} 99.0',
        'other_sglang:ddtree_timed_steps_total{width="8"} 99.0',
        *(f'sglang:ddtree_phase_seconds_total{{phase="{phase}",tp_rank="0"}} 0.0' for phase in PHASES[2:]),
        r'sglang:ddtree_phase_seconds_total{model_name="a \"} phase=\",\\",phase="window"} 2.5e-05',
        'sglang:ddtree_phase_seconds_total{phase="draft",tp_rank="0"} 1.5 1700000000000',
        'sglang:ddtree_phase_seconds_total{tp_rank="0",phase="draft"} 0.25',
    ]
    found = counters("\n".join(lines) + "\n")
    assert found == Counters(4, {**dict.fromkeys(PHASES, 0.0), "window": 2.5e-5, "draft": 1.75})


def test_the_exporter_s_own_page_is_read() -> None:
    registry = CollectorRegistry()
    labels = {"model_name": 'a "quoted" {name}', "tp_rank": 0}
    made = Exporter(labels, (8,), 3, partial(Counter, registry=registry), partial(Gauge, registry=registry))
    assert counters(generate_latest(registry).decode()) is None  # no phase before the first report
    made.publish(Totals({8: 640}, 0, {}, 640, [4], {}, 10, SECONDS))
    assert counters(generate_latest(registry).decode()) == Counters(10, SECONDS)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "sglang:num_running_reqs 0.0\n",
        "sglang:ddtree_timed_steps_total 5.0\n",
        metrics_page(5, SECONDS).replace('phase="draft"', 'phase="other"'),
        metrics_page(5, SECONDS).replace("timed_steps", "steps"),
        metrics_page(5, SECONDS).replace("timed_steps_total 5", "timed_steps_total NaN"),
    ],
)
def test_a_page_without_a_counter_has_none(text: str | None) -> None:
    assert counters(text) is None


def test_a_difference_is_the_mean_of_the_steps_in_between() -> None:
    before = counters(metrics_page(7, dict.fromkeys(PHASES, 0.5)))
    after = counters(metrics_page(11, {phase: 0.5 + 4 * SECONDS[phase] for phase in PHASES}))
    assert difference(before, after) == Parts(4, pytest.approx(MS))


def test_too_few_steps_no_counters_and_a_restart_give_no_parts() -> None:
    half = dict.fromkeys(PHASES, 0.5)
    before = Counters(7, half)
    assert difference(before, Counters(9, dict.fromkeys(PHASES, 0.6))) == Parts(2, None)
    assert difference(before, before) == Parts(0, None)
    assert difference(before, Counters(10, half)) == Parts(3, dict.fromkeys(PHASES, 0.0))
    assert difference(None, before) is None
    assert difference(before, None) is None
    # Begun anew: with fewer steps, or with more of them in less time.
    assert difference(before, Counters(4, dict.fromkeys(PHASES, 0.9))) is None
    assert difference(before, Counters(20, {**half, "accept": 0.1})) is None


def pages(steps: Iterable[int]) -> list[str]:
    return [metrics_page(one, SECONDS) for one in steps]


def test_a_server_is_read_until_two_pages_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    left = iter(pages([4, 5, 7, 7, 9]))
    found = settled(lambda: next(left))
    assert found is not None
    assert found.steps == 7
    assert slept == [parts.SETTLE_PAUSE] * 3


def test_a_server_that_goes_on_counting_is_read_for_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now, steps = [0.0], iter(range(1000))
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda pause: now.__setitem__(0, now[0] + pause))
    found = settled(lambda: metrics_page(next(steps), SECONDS))
    assert found is not None
    assert now[0] == pytest.approx(2.0, abs=parts.SETTLE_PAUSE + 0.01)


def test_a_server_without_the_counters_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("waited"))
    assert settled(lambda: None) is None
    assert settled(lambda: "sglang:num_running_reqs 0.0\n") is None


@pytest.mark.parametrize("status", [404, 500, None])
def test_a_server_without_the_page_has_no_metrics(
    status: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RequestFailed("no page", status)

    monkeypatch.setattr(RunningServer, "open", refuse)
    assert RunningServer("http://127.0.0.1:1").metrics() is None


def run(folder: Path, tree: FakeServer, runs: int = 1) -> Report:
    others = {"AR": FakeServer(INFO, 1), "DFLASH": FakeServer(INFO, 2)}
    servers = FakeServers({**others, "DDTREE 16": tree, "DDTREE auto": FakeServer(INFO, 2)})
    arms = [parse_arm(name) for name in servers.servers]
    ids = [[number, 1, 2] for number in range(6)]
    prompts = [Prompt(str(number), "mine", "text") for number in range(6)]
    plan = Plan(arms, (1, 3), (0.0,), runs, 8)
    return bench(plan, prompts, ids, servers, dict(ABOUT), folder)


def timed(seconds: dict[str, float] = SECONDS) -> FakeServer:
    server = FakeServer(INFO, 4)
    server.seconds = seconds
    return server


def test_report_table_page_and_plot_hold_the_parts(tmp_path: Path) -> None:
    found = run(tmp_path, timed(), runs=2)
    plain, chain, tree, untimed = (arm["cells"] for arm in found["arms"])
    # The fake times a step per request: those of the two runs, not of the warm-up.
    assert [cell["timed_steps"] for cell in tree] == [12, 12]
    assert [cell["parts_ms"] for cell in tree] == [pytest.approx(MS)] * 2
    assert {(cell["parts_ms"], cell["timed_steps"]) for cell in [*plain, *chain, *untimed]} == {(None, None)}
    assert json.loads((tmp_path / "bench.json").read_text()) == found
    assert "every 64th" in found["metrics"]["parts_ms"]

    lines = [line.split() for line in table(found).splitlines()]
    header = lines.index(["arm", "T", "C", *PHASES, "sum", "timed", "steps"])
    numbers = ["0.50", "1.25", "0.25", "5.00", "0.75", "1.00", "8.75", "12"]
    assert lines[header + 2 : header + 5] == [
        ["DDTREE", "16", "0", "1", *numbers],
        ["DDTREE", "16", "0", "3", *numbers],
        [],
    ]
    text = page(found)
    assert "<h2>Where a step&#x27;s time goes</h2>" in text
    assert "".join(f"<td>{one}</td>" for one in ["DDTREE 16", "0", "3", *numbers]) in text
    assert "its waits for the host included" in text
    assert "draft holds the tree&#x27;s building" in text

    (picture,) = [one for one in plots.plots(found) if "Where a step" in one]
    root = ET.fromstring(picture)
    bars = [bar.findtext(f"{SVG}title") for bar in root.iter(f"{SVG}rect")]
    assert bars == [f"{phase}, 16 C{number}: {MS[phase]:g}" for number in (1, 3) for phase in PHASES]
    assert [one.text for one in root.iter(f"{SVG}text") if one.get("class") == "value"] == ["8.75"] * 2


def test_without_timed_steps_there_is_no_table_and_no_plot_of_them(tmp_path: Path) -> None:
    for server in (FakeServer(INFO, 4), timed()):
        server.every = 6  # requests per timed step: one in a cell
        found = run(tmp_path, server)
        counted = None if server.seconds is None else 1
        for cell in found["arms"][2]["cells"]:
            assert (cell["parts_ms"], cell["timed_steps"]) == (None, counted)
        assert "timed steps" not in table(found)
        text = page(found)
        assert "Where a step" not in text


def test_parts_of_no_length_have_a_plot() -> None:
    nothing = svg.Series("a", {0: svg.Point(0.0, 0.0, 0.0)}, 0)
    ET.fromstring(svg.stack_plot("t", "x", "y", ["p"], [nothing]))


def test_parts_lie_on_one_another() -> None:
    series = [
        svg.Series(name, {0: svg.Point(value, value, value)}, colour)
        for colour, (name, value) in enumerate([("a", 1.0), ("b", 3.0)])
    ]
    root = ET.fromstring(svg.stack_plot("t", "x", "y", ["p"], series))
    lower, upper = (
        {key: float(bar.get(key, "")) for key in ("y", "height")} for bar in root.iter(f"{SVG}rect")
    )
    assert upper["height"] == pytest.approx(3 * lower["height"], rel=0.01)
    assert upper["y"] + upper["height"] == pytest.approx(lower["y"], abs=0.11)
    assert [one.text for one in root.iter(f"{SVG}text") if one.get("class") == "value"] == ["4"]

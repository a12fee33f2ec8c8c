"""The plots of a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..metrics.counts import PHASES
from .arms import AUTO
from .svg import Point, Series, bar_plot, line_plot, stack_plot

Cells = list[tuple[Mapping[str, Any], Mapping[str, Any]]]


def plots(report: Mapping[str, Any]) -> list[str]:
    """SVG texts: speed-up and acceptance against budget, acceptance by depth, tokens/s against concurrency, step time
    and its parts.

    A plot that has no figures, like one against the budget without DDTREE, is left out.
    """
    cells: Cells = [(arm, cell) for arm in report["arms"] for cell in arm["cells"]]
    return [
        *_speedups(cells),
        *_acceptance(cells),
        *_by_depth(cells),
        *_by_concurrency(cells),
        *_steps(cells),
        *_parts(cells),
    ]


def _speedups(cells: Cells) -> Iterator[str]:
    for name in ("AR", "DFLASH"):
        points = {
            (arm["budget"], _where(cell)): Point(
                cell["speedup"][name], cell["speedup"][name], cell["speedup"][name]
            )
            for arm, cell in cells
            if arm["budget"] is not None and cell["speedup"][name] is not None
        }
        level = {}
        if name == "AR":
            level = {
                _where(cell): cell["speedup"]["AR"]
                for arm, cell in cells
                if arm["name"] == "DFLASH" and cell["speedup"]["AR"] is not None
            }
        yield from _against_budget(
            f"Speed-up against {name}",
            "times the tokens/s",
            points,
            {key: (v, v, v) for key, v in level.items()},
        )


def _acceptance(cells: Cells) -> Iterator[str]:
    points, level = {}, {}
    for arm, cell in cells:
        one = cell["figures"].get("acceptance_length")
        if one is not None and arm["budget"] is not None:
            points[arm["budget"], _where(cell)] = _point(one)
        elif one is not None and arm["name"] == "DFLASH":
            level[_where(cell)] = (one["median"], one["low"], one["high"])
    yield from _against_budget("Acceptance", "tokens per target forward", points, level)


def _against_budget(
    title: str,
    y_label: str,
    points: Mapping[tuple[int | str, str], Point],
    level: Mapping[str, tuple[float, float, float]],
) -> Iterator[str]:
    """DDTREE as lines over its budgets, its "auto" as dots beside them, DFLASH as level dashed lines."""
    if not points:
        return
    budgets = sorted({budget for budget, _ in points}, key=lambda one: (one == AUTO, one))
    places = list(dict.fromkeys([*(where for _, where in points), *level]))
    series = []
    for where in dict.fromkeys(where for _, where in points):
        line = {budgets.index(budget): point for (budget, other), point in points.items() if other == where}
        alone = {budgets.index(AUTO): line.pop(budgets.index(AUTO))} if (AUTO, where) in points else {}
        if line:
            series.append(Series(f"DDTREE, {where}", line, places.index(where)))
        if alone:
            series.append(Series(f"DDTREE auto, {where}", alone, places.index(where), listed=not line))
    for where, values in level.items():
        line = {tick: Point(*values) for tick in range(len(budgets))}
        series.append(Series(f"DFLASH, {where}", line, places.index(where), dashed=True))
    yield line_plot(title, "tree budget (nodes)", y_label, [str(budget) for budget in budgets], series)


def _by_depth(cells: Cells) -> Iterator[str]:
    """One plot per temperature, at its lowest concurrency with drafts."""
    drafted = [(arm, cell) for arm, cell in cells if cell["acceptance_by_depth"]]
    for heat in _temperatures(drafted):
        here = [(arm, cell) for arm, cell in drafted if cell["temperature"] == heat]
        lowest = min(cell["concurrency"] for _, cell in here)
        here = [(arm, cell) for arm, cell in here if cell["concurrency"] == lowest]
        deepest = max(len(cell["acceptance_by_depth"]) for _, cell in here)
        series = [
            Series(
                arm["name"],
                {tick: _point(one) for tick, one in enumerate(cell["acceptance_by_depth"])},
                colour,
                dashed=arm["name"] == "DFLASH",
            )
            for colour, (arm, cell) in enumerate(here)
        ]
        yield line_plot(
            f"Acceptance by depth, temperature {heat:g}, concurrency {lowest}",
            "drafts kept, at least",
            "fraction of the verify steps",
            [str(depth) for depth in range(1, deepest + 1)],
            series,
        )


def _by_concurrency(cells: Cells) -> Iterator[str]:
    for heat in _temperatures(cells):
        here = [(arm, cell) for arm, cell in cells if cell["temperature"] == heat]
        numbers = sorted({cell["concurrency"] for _, cell in here})
        series = []
        for colour, name in enumerate(dict.fromkeys(arm["name"] for arm, _ in here)):
            line = {
                numbers.index(cell["concurrency"]): _point(cell["figures"]["total_tokens_per_s"])
                for arm, cell in here
                if arm["name"] == name
            }
            series.append(Series(name, line, colour, dashed=name in ("AR", "DFLASH")))
        yield line_plot(
            f"Throughput, temperature {heat:g}",
            "concurrency",
            "tokens/s, all requests",
            [str(number) for number in numbers],
            series,
        )


def _steps(cells: Cells) -> Iterator[str]:
    for heat in _temperatures(cells):
        here = [
            (arm, cell)
            for arm, cell in cells
            if cell["temperature"] == heat and "ms_per_step" in cell["figures"]
        ]
        names = list(dict.fromkeys(arm["name"] for arm, _ in here))
        series = []
        for colour, number in enumerate(sorted({cell["concurrency"] for _, cell in here})):
            bars = {
                names.index(arm["name"]): _point(cell["figures"]["ms_per_step"])
                for arm, cell in here
                if cell["concurrency"] == number
            }
            series.append(Series(f"concurrency {number}", bars, colour))
        if series:
            yield bar_plot(f"Time per step, temperature {heat:g}", "arm", "ms per step", names, series)


def _parts(cells: Cells) -> Iterator[str]:
    timed = [(arm, cell) for arm, cell in cells if cell["parts_ms"] is not None]
    for heat in _temperatures(timed):
        here = [(arm, cell) for arm, cell in timed if cell["temperature"] == heat]
        series = []
        for colour, phase in enumerate(PHASES):
            spent = [cell["parts_ms"][phase] for _, cell in here]
            series.append(Series(phase, {tick: Point(v, v, v) for tick, v in enumerate(spent)}, colour))
        yield stack_plot(
            f"Where a step's time goes, temperature {heat:g}",
            "tree budget (nodes) and concurrency C",
            "ms per step",
            [f"{arm['budget']} C{cell['concurrency']}" for arm, cell in here],
            series,
        )


def _temperatures(cells: Cells) -> list[float]:
    return sorted({cell["temperature"] for _, cell in cells})


def _where(cell: Mapping[str, Any]) -> str:
    return f"C {cell['concurrency']}, T {cell['temperature']:g}"


def _point(one: Mapping[str, Any]) -> Point:
    return Point(one["median"], one["low"], one["high"])

"""The report as lines of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

from ..metrics.counts import PHASES
from .parts import LEGEND as PARTS_LEGEND

HEADER = (
    "arm",
    "T",
    "C",
    "tok/s",
    "(min-max)",
    "x AR",
    "x DFLASH",
    "tok/s/req",
    "TTFT ms",
    "ITL ms",
    "accept",
    "steps",
    "ms/step",
    "= AR",
    "ran",
)
DEPTHS = 16  # columns of the table by depth; bench.json has all
LEGEND = (
    "T temperature, C concurrency, tok/s all requests together, accept tokens per target forward, "
    "= AR greedy texts equal to plain decoding's."
)
DEPTH_LEGEND = "Fraction of the verify steps that kept at least d drafts."
PARTS_HEADER = ("arm", "T", "C", *PHASES, "sum", "timed steps")


def rows(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row per temperature, concurrency and arm, in the columns of `HEADER`, then one per arm without figures."""
    cells = _cells(report)
    without = [arm["name"] for arm in report["arms"] if not arm["cells"]]
    empty = ("-",) * (len(HEADER) - 2)
    return [_row(arm, cell) for arm, cell in cells] + [(name, *empty, "failed") for name in without]


def depth_rows(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Header and a row per temperature, concurrency and arm that kept drafts; empty where none did."""
    cells = [(arm, cell) for arm, cell in _cells(report) if cell["acceptance_by_depth"]]
    deepest = min(DEPTHS, max((len(cell["acceptance_by_depth"]) for _, cell in cells), default=0))
    found = [
        (
            arm["name"],
            f"{cell['temperature']:g}",
            str(cell["concurrency"]),
            *(f"{one['median']:.2f}" for one in cell["acceptance_by_depth"][:deepest]),
        )
        for arm, cell in cells
    ]
    header = ("arm", "T", "C", *(f"d={depth}" for depth in range(1, deepest + 1)))
    return [header, *((*row, *("-",) * (len(header) - len(row))) for row in found)] if found else []


def parts_rows(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Header and a row per temperature, concurrency and arm whose steps were timed; empty where none were."""
    found = [
        (
            arm["name"],
            f"{cell['temperature']:g}",
            str(cell["concurrency"]),
            *(f"{cell['parts_ms'][phase]:.2f}" for phase in PHASES),
            f"{sum(cell['parts_ms'].values()):.2f}",
            str(cell["timed_steps"]),
        )
        for arm, cell in _cells(report)
        if cell["parts_ms"] is not None
    ]
    return [PARTS_HEADER, *found] if found else []


def table(report: Mapping[str, Any]) -> str:
    """Table, acceptance by depth, parts of a step, failed arms with their reasons, notes."""
    lines = [*aligned([HEADER, *rows(report)]), "", LEGEND]
    depths = depth_rows(report)
    if depths:
        lines += ["", *aligned(depths), "", DEPTH_LEGEND]
    parts = parts_rows(report)
    if parts:
        lines += ["", *aligned(parts), "", *wrap(PARTS_LEGEND, 120)]
    failures = [f"{arm['name']}: FAILED: {arm['failure']}" for arm in report["arms"] if arm["failure"]]
    for block in (failures, [f"note: {text}" for text in report["notes"]]):
        if block:
            lines += ["", *block]
    return "\n".join(lines)


def _cells(report: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Arm and cell by temperature and concurrency, the arms in their order."""
    cells = [(arm, cell) for arm in report["arms"] for cell in arm["cells"]]
    return sorted(cells, key=lambda pair: (pair[1]["temperature"], pair[1]["concurrency"]))


def _row(arm: Mapping[str, Any], cell: Mapping[str, Any]) -> tuple[str, ...]:
    found = cell["figures"]
    speed = found["total_tokens_per_s"]
    same = cell["identity"]
    return (
        arm["name"],
        f"{cell['temperature']:g}",
        str(cell["concurrency"]),
        f"{speed['median']:.1f}",
        f"{speed['low']:.1f}-{speed['high']:.1f}",
        _number(cell["speedup"]["AR"], 2),
        _number(cell["speedup"]["DFLASH"], 2),
        _median(found, "request_tokens_per_s", 1),
        _median(found, "time_to_first_token_ms", 1),
        _median(found, "inter_token_latency_ms", 2),
        _median(found, "acceptance_length", 2),
        _median(found, "verify_steps", 0),
        _median(found, "ms_per_step", 2),
        "-" if same is None else f"{same['identical']}/{same['compared']}",
        arm["mode"],
    )


def _median(found: Mapping[str, Any], name: str, digits: int) -> str:
    return _number(found[name]["median"] if name in found else None, digits)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines of a table whose first row is the header, ruled off; first and last column to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    last = len(widths) - 1
    lines = [
        "  ".join(
            cell.ljust(width) if column in (0, last) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines.insert(1, "-" * max(map(len, lines)))
    return lines

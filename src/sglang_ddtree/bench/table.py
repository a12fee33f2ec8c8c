"""The report as lines of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
LEGEND = (
    "T temperature, C concurrency, tok/s all requests together, accept tokens per target forward, "
    "= AR greedy texts equal to plain decoding's."
)


def rows(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row per temperature, concurrency and arm, in the columns of `HEADER`, then one per arm without figures."""
    cells = [(arm, cell) for arm in report["arms"] for cell in arm["cells"]]
    cells.sort(
        key=lambda pair: (pair[1]["temperature"], pair[1]["concurrency"])
    )  # stable: arms keep their order
    without = [arm["name"] for arm in report["arms"] if not arm["cells"]]
    empty = ("-",) * (len(HEADER) - 2)
    return [_row(arm, cell) for arm, cell in cells] + [(name, *empty, "failed") for name in without]


def table(report: Mapping[str, Any]) -> str:
    """Table, legend, failed arms with their reasons, notes."""
    lines = [*_aligned([HEADER, *rows(report)]), "", LEGEND]
    failures = [f"{arm['name']}: FAILED: {arm['failure']}" for arm in report["arms"] if arm["failure"]]
    for block in (failures, [f"note: {text}" for text in report["notes"]]):
        if block:
            lines += ["", *block]
    return "\n".join(lines)


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


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
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

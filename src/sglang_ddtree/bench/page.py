"""The report as one HTML page that needs no other file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from . import plots
from .parts import LEGEND as PARTS_LEGEND
from .table import DEPTH_LEGEND, HEADER, LEGEND, depth_rows, parts_rows, rows

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --ink: #1b1f24; --soft: #59636e; --line: #d8dee4; --warn: #9a3412;
  --c0: #0072b2; --c1: #d55e00; --c2: #00805e; --c3: #b0508a; --c4: #946c00; --c5: #4b5ab8;
  --c6: #5d6b78; --c7: #a02c2c; }
@media (prefers-color-scheme: dark) { :root { --back: #14181d; --ink: #e6e9ec; --soft: #9aa4af; --line: #333b44;
  --warn: #ffab70; --c0: #56b4e9; --c1: #ff9248; --c2: #35c79a; --c3: #e48fc0; --c4: #e3b341; --c5: #9aa8ff;
  --c6: #a8b3bf; --c7: #ff7b72; } }
body { background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto;
  max-width: 84rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; } p, li, dd { max-width: 60rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } .soft { color: var(--soft); }
.warn { color: var(--warn); } pre { overflow-x: auto; padding: .6rem; border: 1px solid var(--line); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 34rem), 1fr)); gap: 1.5rem; }
svg { width: 100%; height: auto; font: 12px system-ui, sans-serif; } svg text { fill: var(--ink); }
svg .title { font-size: 14px; font-weight: 600; } svg .tick, svg .label { fill: var(--soft); }
svg .value { font-size: 10px; }
svg .grid { stroke: var(--line); } svg .whisker { stroke: var(--ink); stroke-width: 1.2; }
svg .line { fill: none; stroke-width: 2; } svg .key { stroke-width: 4; }
""" + "\n".join(
    f"svg .line.c{n} {{ stroke: var(--c{n}); }} svg .dot.c{n}, svg .bar.c{n} {{ fill: var(--c{n}); }}"
    for n in range(8)
)


def page(report: Mapping[str, Any]) -> str:
    """A self-contained page: table, notes, plots as inline SVG, where and how it was measured."""
    machine, settings = report["machine"], report["settings"]
    where = ", ".join(machine["gpus"]) or f"no GPU, {machine['cpus']} CPUs"
    runs = "1 run" if settings["runs"] == 1 else f"{settings['runs']} runs"
    summary = (
        f"{report['model']} with {report['draft'] or 'no drafter'}, on {where}, {report['date']}. "
        f"{len(report['prompts'])} prompts, up to {settings['max_new_tokens']} tokens each, "
        f"median of {runs} (lowest to highest)."
    )
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>sglang-ddtree bench: {escape(report['model'])}</title><style>{_STYLE}</style></head><body>",
        "<h1>sglang-ddtree bench</h1>",
        f"<p>{escape(summary)}</p>",
        _items(report["notes"], "note"),
        _items(
            [f"{arm['name']} failed: {arm['failure']}" for arm in report["arms"] if arm["failure"]], "warn"
        ),
        "<h2>Figures</h2>",
        _table([HEADER, *rows(report)]),
        f'<p class="soft">{escape(LEGEND)}</p>',
        *_section("Acceptance by depth", depth_rows(report), DEPTH_LEGEND),
        *_section("Where a step's time goes", parts_rows(report), PARTS_LEGEND),
        '<h2>Plots</h2><div class="plots">',
        *(f"<div>{plot}</div>" for plot in plots.plots(report)),
        "</div><h2>What the figures are</h2><dl>",
        *(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in report["metrics"].items()),
        "</dl><h2>How it was measured</h2>",
        f"<pre>{escape(report['command'])}</pre>",
        _items(
            [f"{name} {version or 'not installed'}" for name, version in report["versions"].items()], "soft"
        ),
        f'<p class="soft">{escape(machine["system"])}</p>',
        "</body></html>",
    ]
    return "\n".join(part for part in parts if part)


def _section(title: str, found: Sequence[Sequence[str]], legend: str) -> list[str]:
    if not found:
        return []
    return [f"<h2>{escape(title)}</h2>", _table(found), f'<p class="soft">{escape(legend)}</p>']


def _table(found: Sequence[Sequence[str]]) -> str:
    header, *others = found
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in others)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _items(texts: Iterable[str], kind: str) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f'<ul class="{kind}">{items}</ul>' if items else ""

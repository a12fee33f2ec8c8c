"""Line and bar plots as SVG text, coloured by the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = 8  # classes c0 to c7 of the page's style sheet
WIDTH, HEIGHT = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 34, 48
LEGEND_ROW = 18


@dataclass(frozen=True)
class Point:
    """A median with the lowest and highest run."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Series:
    """One line, or the bars of one colour: index of a tick -> point. `colour` counts modulo `COLOURS`.

    One that is not `listed` has no entry in the legend.
    """

    name: str
    points: Mapping[int, Point]
    colour: int
    dashed: bool = False
    listed: bool = True

    @property
    def style(self) -> str:
        return f"c{self.colour % COLOURS}"


def line_plot(title: str, x_label: str, y_label: str, ticks: Sequence[str], series: Sequence[Series]) -> str:
    """Lines over evenly spaced `ticks`, with whiskers from the lowest to the highest run; y starts at 0."""
    frame = _Frame(title, x_label, y_label, ticks, series)
    for one in series:
        places = [(frame.x(tick), point) for tick, point in sorted(one.points.items())]
        path = " ".join(f"{x:.1f},{frame.y(point.median):.1f}" for x, point in places)
        frame.add(f'<polyline class="line {one.style}" points="{path}"{_dashes(one)}/>')
        for x, point in places:
            frame.whisker(x, point)
            frame.add(
                f'<circle class="dot {one.style}" cx="{x:.1f}" cy="{frame.y(point.median):.1f}" r="3.5">'
                f"<title>{escape(one.name)}: {_shown(point)}</title></circle>"
            )
    return frame.finish()


def bar_plot(title: str, x_label: str, y_label: str, ticks: Sequence[str], series: Sequence[Series]) -> str:
    """A group of bars per tick, one per series, with whiskers and the median above each; y starts at 0."""
    frame = _Frame(title, x_label, y_label, ticks, series)
    width = 0.8 * frame.spacing / len(series)
    for number, one in enumerate(series):
        for tick, point in sorted(one.points.items()):
            x = frame.x(tick) + (number - len(series) / 2) * width
            top = frame.y(point.median)
            frame.add(
                f'<rect class="bar {one.style}" x="{x + 1:.1f}" y="{top:.1f}" width="{width - 2:.1f}" '
                f'height="{frame.y(0) - top:.1f}"><title>{escape(one.name)}, {escape(ticks[tick])}: '
                f"{_shown(point)}</title></rect>"
            )
            frame.whisker(x + width / 2, point)
            label = min(top, frame.y(point.high)) - 4
            frame.text(x + width / 2, label, _short(point.median), "value", "middle")
    return frame.finish()


def stack_plot(title: str, x_label: str, y_label: str, ticks: Sequence[str], series: Sequence[Series]) -> str:
    """One bar per tick: the medians of the series on one another, the first lowest, and their sum above."""
    sums = [sum(one.points[tick].median for one in series) for tick in range(len(ticks))]
    frame = _Frame(title, x_label, y_label, ticks, series, max(sums))
    width = min(0.8 * frame.spacing, 60)
    for tick, name in enumerate(ticks):
        below = 0.0
        for one in series:
            value = one.points[tick].median
            top, bottom = frame.y(below + value), frame.y(below)
            frame.add(
                f'<rect class="bar {one.style}" x="{frame.x(tick) - width / 2:.1f}" y="{top:.1f}" '
                f'width="{width:.1f}" height="{bottom - top:.1f}"><title>{escape(one.name)}, {escape(name)}: '
                f"{value:.4g}</title></rect>"
            )
            below += value
        frame.text(frame.x(tick), frame.y(below) - 4, _short(below), "value", "middle")
    return frame.finish()


class _Frame:
    """Axes, grid, legend, and where a value lies; `highest` is that of the series' points where it is None."""

    def __init__(
        self,
        title: str,
        x_label: str,
        y_label: str,
        ticks: Sequence[str],
        series: Sequence[Series],
        highest: float | None = None,
    ) -> None:
        if highest is None:
            highest = max(point.high for one in series for point in one.points.values())
        self.step = nice_step(highest * 1.08)
        self.top = self.step * max(1, math.ceil(highest * 1.08 / self.step))
        self.spacing = (WIDTH - LEFT - RIGHT) / len(ticks)
        listed = [one for one in series if one.listed]
        longest = max((len(one.name) for one in listed), default=0)
        per_row = max(1, (WIDTH - LEFT) // (7 * longest + 38))
        self.height = HEIGHT + LEGEND_ROW * math.ceil(len(listed) / per_row)
        start = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" role="img"'
        self.parts = [f'{start} aria-label="{escape(title, quote=True)}">']
        self.text(LEFT, 18, title, "title", "start")
        for number in range(round(self.top / self.step) + 1):
            y = self.y(number * self.step)
            self.add(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            self.text(LEFT - 8, y + 4, _short(number * self.step), "tick", "end")
        for number, tick in enumerate(ticks):
            lines = tick.split(" ") if 7 * len(tick) > self.spacing - 6 else [tick]
            for row, line in enumerate(lines):
                self.text(self.x(number), HEIGHT - BOTTOM + 15 + 12 * row, line, "tick", "middle")
        self.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_label, "label", "middle")
        middle = (TOP + HEIGHT - BOTTOM) / 2
        self.add(
            f'<text class="label" x="14" y="{middle:.1f}" text-anchor="middle" '
            f'transform="rotate(-90 14 {middle:.1f})">{escape(y_label)}</text>'
        )
        for number, one in enumerate(listed):
            x = LEFT + (number % per_row) * (WIDTH - LEFT) / per_row
            y = HEIGHT + LEGEND_ROW * (number // per_row) + 8
            self.add(
                f'<line class="line key {one.style}" x1="{x:.1f}" x2="{x + 20:.1f}" '
                f'y1="{y - 4:.1f}" y2="{y - 4:.1f}"{_dashes(one)}/>'
            )
            self.text(x + 25, y, one.name, "tick", "start")

    def x(self, tick: int) -> float:
        return LEFT + (tick + 0.5) * self.spacing

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / self.top

    def add(self, part: str) -> None:
        self.parts.append(part)

    def text(self, x: float, y: float, text: str, kind: str, anchor: str) -> None:
        self.add(f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>')

    def whisker(self, x: float, point: Point) -> None:
        if point.high > point.low:
            low, high = self.y(point.low), self.y(point.high)
            self.add(f'<line class="whisker" x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>')

    def finish(self) -> str:
        return "\n".join([*self.parts, "</svg>"])


def nice_step(highest: float) -> float:
    """A step of 1, 2 or 5 times a power of ten, of which three to six make `highest`."""
    if highest <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(highest / 3))
    return next(factor * power for factor in (5, 2, 1) if highest / (factor * power) >= 2.5)


def _dashes(one: Series) -> str:
    return ' stroke-dasharray="5 4"' if one.dashed else ""


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _shown(point: Point) -> str:
    return f"{point.median:.4g} ({point.low:.4g} to {point.high:.4g})"

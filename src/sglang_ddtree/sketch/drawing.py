"""A step's tree as lines of text and as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape

from .models import Step

ROW, LETTER, GAP, MARGIN = 22, 8, 36, 16  # pixels; a letter of the 13 px font is below 8 wide
STYLE = (
    "text{font:13px monospace;fill:#444}line{stroke:#bbb}.kept{fill:#06752f;font-weight:bold}"
    "line.kept{stroke:#06752f;stroke-width:2}"
)

Decode = Callable[[int], str]


def as_text(step: Step, decode: Decode) -> str:
    """The root, a line per node below its parent, and what the target accepts; ``*`` marks the accepted path."""
    kept = set(step.accepted())
    children = _children(step)

    def lines(parent: int, indent: str) -> Iterator[str]:
        for place, number in enumerate(children[parent], 1):
            last = place == len(children[parent])
            mark = " *" if number - 1 in kept else ""
            yield f"{indent}{'└─' if last else '├─'} {_node(step, number, decode)}{mark}"
            yield from lines(number, indent + ("   " if last else "│  "))

    return "\n".join([repr(decode(step.root)), *lines(0, ""), "", _verdict(step, decode)])


def as_svg(step: Step, decode: Decode) -> str:
    """The same from left to right, the accepted path in green."""
    kept = {0} | {number + 1 for number in step.accepted()}
    labels = [repr(decode(step.root))] + [_node(step, one + 1, decode) for one in range(len(step.nodes))]
    x, y = _places(step, labels)
    shapes = []
    for number, node in enumerate(step.nodes, 1):
        end = x[node.parent] + LETTER * len(labels[node.parent]) + 4
        shapes.append(
            f'<line{_style(number in kept)} x1="{end}" y1="{y[node.parent] - 4:.1f}" '
            f'x2="{x[number] - 4}" y2="{y[number] - 4:.1f}"/>'
        )
    for number, label in enumerate(labels):
        shapes.append(
            f'<text{_style(number in kept)} x="{x[number]}" y="{y[number]:.1f}">{escape(label)}</text>'
        )
    verdict = _verdict(step, decode)
    width = max(LETTER * len(text) + left for text, left in [*zip(labels, x, strict=True), (verdict, MARGIN)])
    height = max(y) + 2 * ROW
    shapes.append(f'<text x="{MARGIN}" y="{height:.1f}">{escape(verdict)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + MARGIN} {height + MARGIN:.0f}">'
        f"<style>{STYLE}</style>{''.join(shapes)}</svg>\n"
    )


def _places(step: Step, labels: Sequence[str]) -> tuple[list[int], list[float]]:
    """Left end and baseline of every node, the root first: a column per depth, a row per leaf."""
    depth = [0, *(node.depth for node in step.nodes)]
    widest = [0] * (max(depth) + 1)
    for at, label in zip(depth, labels, strict=True):
        widest[at] = max(widest[at], LETTER * len(label))
    columns = [MARGIN]
    for width in widest:
        columns.append(columns[-1] + width + GAP)
    children = _children(step)
    y = [0.0] * len(labels)
    leaves = 0

    def place(number: int) -> None:
        nonlocal leaves
        for child in children[number]:
            place(child)
        if children[number]:
            y[number] = (y[children[number][0]] + y[children[number][-1]]) / 2
        else:
            leaves += 1
            y[number] = MARGIN + ROW * leaves

    place(0)
    return [columns[at] for at in depth], y


def _style(is_kept: bool) -> str:
    return ' class="kept"' if is_kept else ""


def _children(step: Step) -> list[list[int]]:
    """Node, the root being 0 -> its children, the most probable first."""
    found: list[list[int]] = [[] for _ in range(len(step.nodes) + 1)]
    for number, node in enumerate(step.nodes, 1):
        found[node.parent].append(number)
    return found


def _node(step: Step, number: int, decode: Decode) -> str:
    node = step.nodes[number - 1]
    return f"{decode(node.token)!r} {math.exp(node.score):.2g}"


def _verdict(step: Step, decode: Decode) -> str:
    path = step.accepted()
    taken = "".join(decode(step.nodes[number].token) for number in path)
    accepted = f"accepts {len(path)} of {len(step.nodes)} nodes" + (f", {taken!r}" if path else "")
    if len(path) == len(step.text):
        return f"The target {accepted}."
    return f"The target {accepted}, and goes on with {decode(step.text[len(path)])!r}."

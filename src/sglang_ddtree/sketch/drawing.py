"""A step's tree as lines of text and as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Sequence
from html import escape

from .models import Step

ROW, LETTER, GAP, MARGIN = 22, 8, 36, 16  # pixels; a letter of the 13 px font is below 8 wide
STYLE = (
    "text{font:13px monospace;fill:#444}line{stroke:#bbb}.kept{fill:#06752f;font-weight:bold}"
    "line.kept{stroke:#06752f;stroke-width:2}"
)

TEXT_NODES = 256  # of the most probable ones; a larger tree scrolls by and says less

# The legend: a line per mark, only for marks that the drawing has.
NUMBER = "A number is the probability that the drafter gives the path down to its node."
STAR = "* marks the path that the target accepts."
CUT = "(+N) stands where N nodes are cut off: {drawn} of {nodes} nodes are drawn, --svg FILE draws all."
# The root is green, too: it is the target's own, accepted or not.
GREEN = "Green is the target's own text."

Decode = Callable[[int], str]


def as_text(step: Step, decode: Decode) -> str:
    """The root, a line per node below its parent, the legend, and what the target accepts.

    ``*`` marks the accepted path. Of a tree of more than `TEXT_NODES` nodes these are the most probable ones and the
    accepted path; a node whose descendants are cut off has their number behind it.
    """
    kept = set(step.accepted())
    children = _children(step)
    drawn = {number for number in range(1, len(step.nodes) + 1) if number <= TEXT_NODES or number - 1 in kept}
    left_out = _left_out(step, drawn)

    def lines(parent: int, indent: str) -> Iterator[str]:
        below = [number for number in children[parent] if number in drawn]
        for place, number in enumerate(below, 1):
            last = place == len(below)
            mark = " *" if number - 1 in kept else ""
            yield f"{indent}{'└─' if last else '├─'} {_node(step, number, decode)}{mark}{more(number)}"
            yield from lines(number, indent + ("   " if last else "│  "))

    def more(number: int) -> str:
        return f" (+{left_out[number]})" if left_out[number] else ""

    legend = [NUMBER] if step.nodes else []
    if kept:
        legend.append(STAR)
    if len(drawn) < len(step.nodes):
        legend.append(CUT.format(drawn=len(drawn), nodes=len(step.nodes)))
    tree = [repr(decode(step.root)) + more(0), *lines(0, "")]
    return "\n".join([*tree, "", *legend, "", _verdict(step, decode)])


def as_svg(step: Step, decode: Decode) -> str:
    """The same from left to right and whole, the accepted path in green."""
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
    below = [*([NUMBER] if step.nodes else []), GREEN, _verdict(step, decode)]
    texts = [*zip(labels, x, strict=True), *((line, MARGIN) for line in below)]
    width = max(LETTER * len(text) + left for text, left in texts)
    height = max(y) + ROW
    for line in below:
        height += ROW
        shapes.append(f'<text x="{MARGIN}" y="{height:.1f}">{escape(line)}</text>')
    size = (width + MARGIN, f"{height + MARGIN:.0f}")
    # With a size of its own a browser scrolls a large tree. Without one it would shrink it until no word can be read.
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" '
        f'viewBox="0 0 {size[0]} {size[1]}">'
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


def _left_out(step: Step, drawn: Container[int]) -> list[int]:
    """Node -> the nodes not drawn whose nearest drawn ancestor, or else the root, it is."""
    nearest = list(range(len(step.nodes) + 1))
    found = [0] * len(nearest)
    for number, node in enumerate(step.nodes, 1):
        if number not in drawn:
            nearest[number] = nearest[node.parent]
            found[nearest[number]] += 1
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

from __future__ import annotations

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from sglang_ddtree.sketch.drawing import TEXT_NODES, as_svg, as_text
from sglang_ddtree.sketch.models import Step
from sglang_ddtree.tree.reference import Node

#   root R: a (0.5) -> c (0.25), "<" (0.1);  b (0.25)
NODES = [
    Node(ord("a"), 0, 1, math.log(0.5)),
    Node(ord("b"), 0, 1, math.log(0.25)),
    Node(ord("c"), 1, 2, math.log(0.25)),
    Node(ord("<"), 1, 2, math.log(0.1)),
]


def step(text: str) -> Step:
    return Step(ord("R"), NODES, [ord(letter) for letter in text])


def test_the_accepted_path_follows_the_target_s_text_and_need_not_be_the_best() -> None:
    assert step("acd").accepted() == [0, 2]
    assert step("a<z").accepted() == [0, 3]
    assert step("ba").accepted() == [1]
    assert step("ca").accepted() == []
    assert step("a").accepted() == [0]


def test_text_shows_every_node_below_its_parent() -> None:
    assert as_text(step("a<z"), chr).splitlines() == [
        "'R'",
        "├─ 'a' 0.5 *",
        "│  ├─ 'c' 0.25",
        "│  └─ '<' 0.1 *",
        "└─ 'b' 0.25",
        "",
        "A number is the probability that the drafter gives the path down to its node.",
        "* marks the path that the target accepts.",
        "",
        "The target accepts 2 of 4 nodes, 'a<', and goes on with 'z'.",
    ]


def legend(lines: list[str]) -> list[str]:
    """The lines between the tree and what the target accepts."""
    assert (lines[lines.index("")], lines[-2]) == ("", "")
    return lines[lines.index("") + 1 : -2]


def test_legend_has_the_marks_of_the_drawing_and_no_others() -> None:
    number = "A number is the probability that the drafter gives the path down to its node."
    star = "* marks the path that the target accepts."
    cut = "(+N) stands where N nodes are cut off: 256 of 267 nodes are drawn, --svg FILE draws all."
    assert legend(as_text(step("a<z"), chr).splitlines()) == [number, star]
    assert legend(as_text(step("z"), chr).splitlines()) == [number]
    assert legend(as_text(large("z", 11), chr).splitlines()) == [number, cut]
    assert legend(as_text(large("bz", 11), chr).splitlines()) == [number, star, cut]
    assert legend(as_text(large("bz", 0), chr).splitlines()) == [number, star]


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("z", "The target accepts 0 of 4 nodes, and goes on with 'z'."),
        ("ac", "The target accepts 2 of 4 nodes, 'ac'."),
    ],
)
def test_the_last_line_says_what_the_target_accepts(text: str, verdict: str) -> None:
    assert as_text(step(text), chr).splitlines()[-1] == verdict


def test_svg_is_well_formed_and_nothing_overlaps() -> None:
    root = ElementTree.fromstring(as_svg(step("a<z"), chr))
    name = "{http://www.w3.org/2000/svg}"
    texts = root.findall(f"{name}text")
    assert [text.text for text in texts] == [
        *("'R'", "'a' 0.5", "'b' 0.25", "'c' 0.25", "'<' 0.1"),
        "A number is the probability that the drafter gives the path down to its node.",
        "Green is the target's own text.",
        "The target accepts 2 of 4 nodes, 'a<', and goes on with 'z'.",
    ]
    assert [text.text for text in texts if text.get("class") == "kept"] == ["'R'", "'a' 0.5", "'<' 0.1"]
    lines = root.findall(f"{name}line")
    assert [line.get("class") for line in lines] == ["kept", None, None, "kept"]
    at = {text.text: (float(text.attrib["x"]), float(text.attrib["y"])) for text in texts}
    # A column per depth, a row per leaf, each line from the end of the parent's text to the child.
    assert at["'c' 0.25"][0] == at["'<' 0.1"][0] > at["'a' 0.5"][0] == at["'b' 0.25"][0] > at["'R'"][0]
    assert at["'c' 0.25"][1] < at["'a' 0.5"][1] < at["'<' 0.1"][1] < at["'b' 0.25"][1]
    assert all(float(line.attrib["x1"]) < float(line.attrib["x2"]) for line in lines)
    # Below it the legend and the verdict, a row for each.
    ends = [float(text.attrib["y"]) for text in texts[-3:]]
    assert at["'b' 0.25"][1] < ends[0] < ends[1] < ends[2]
    width, height = map(float, re.findall(r"[\d.]+", root.attrib["viewBox"])[2:])
    # Drawn at its own size: a browser would fit a large tree into its window.
    assert (float(root.attrib["width"]), float(root.attrib["height"])) == (width, height)
    assert all(x + 8 * len(text or "") < width and y < height for text, (x, y) in at.items())


def large(text: str, extra: int) -> Step:
    """Two letters of the root, each with nodes below it in turn: `extra` more than the text shows."""
    nodes = [Node(ord("a"), 0, 1, -0.1), Node(ord("b"), 0, 1, -0.2)]
    count = TEXT_NODES + extra
    nodes += [Node(1000 + number, 1 + number % 2, 2, -1.0 - number) for number in range(count - 2)]
    return Step(ord("R"), nodes, [ord(letter) for letter in text])


def cut(lines: list[str]) -> list[str]:
    """The nodes whose line counts others."""
    return [line for line in lines if line.endswith(")")]


def test_text_of_a_tree_as_large_as_it_shows_is_whole() -> None:
    lines = as_text(large("z", 0), chr).splitlines()
    assert sum("─ " in line for line in lines) == TEXT_NODES
    assert "+" not in "".join(lines)


def test_text_of_a_larger_tree_counts_what_it_leaves_out() -> None:
    lines = as_text(large("z", 11), chr).splitlines()
    assert sum("─ " in line for line in lines) == TEXT_NODES
    # The letters' children take turns: 6 and 5 of the 11.
    assert cut(lines) == ["├─ 'a' 0.9 (+6)", "└─ 'b' 0.82 (+5)"]
    assert lines[-5:] == [
        "",
        "A number is the probability that the drafter gives the path down to its node.",
        "(+N) stands where N nodes are cut off: 256 of 267 nodes are drawn, --svg FILE draws all.",
        "",
        "The target accepts 0 of 267 nodes, and goes on with 'z'.",
    ]


def test_the_accepted_path_is_shown_however_improbable() -> None:
    step = large("b" + chr(1000 + TEXT_NODES + 5) + "z", 11)
    assert step.accepted() == [1, TEXT_NODES + 7]
    lines = as_text(step, chr).splitlines()
    assert cut(lines) == ["├─ 'a' 0.9 (+6)", "└─ 'b' 0.82 * (+4)"]
    lowest = lines[lines.index("") - 1]
    assert lowest == f"   └─ {chr(1000 + TEXT_NODES + 5)!r} {math.exp(-1.0 - TEXT_NODES - 5):.2g} *"
    assert f"{TEXT_NODES + 1} of {TEXT_NODES + 11} nodes are drawn" in lines[-3]


def test_nodes_left_out_below_one_that_is_count_where_their_branch_was_cut() -> None:
    nodes = [Node(1000 + number, number, number + 1, -1.0 - number) for number in range(TEXT_NODES + 3)]
    lines = as_text(Step(ord("R"), nodes, [ord("z")]), chr).splitlines()
    assert cut(lines) == [lines[TEXT_NODES]]
    assert lines[TEXT_NODES].endswith(" (+3)")
    roots = Step(ord("R"), [Node(1000 + number, 0, 1, -1.0 - number) for number in range(TEXT_NODES + 2)], [])
    assert as_text(roots, chr).splitlines()[0] == "'R' (+2)"


def test_svg_of_a_large_tree_has_every_node_and_no_overlap() -> None:
    step = large("z", 768)
    root = ElementTree.fromstring(as_svg(step, chr))
    name = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{name}line")) == TEXT_NODES + 768
    places: dict[float, list[float]] = {}
    for text in root.findall(f"{name}text"):
        places.setdefault(float(text.attrib["x"]), []).append(float(text.attrib["y"]))
    for heights in places.values():
        heights.sort()
        assert all(after - before >= 13 for before, after in pairwise(heights))

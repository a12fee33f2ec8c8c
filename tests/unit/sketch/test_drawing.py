from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from sglang_ddtree.sketch.drawing import as_svg, as_text
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
        "The target accepts 2 of 4 nodes, 'a<', and goes on with 'z'.",
    ]


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
    assert [text.text for text in texts[:-1]] == ["'R'", "'a' 0.5", "'b' 0.25", "'c' 0.25", "'<' 0.1"]
    assert [text.text for text in texts if text.get("class") == "kept"] == ["'R'", "'a' 0.5", "'<' 0.1"]
    lines = root.findall(f"{name}line")
    assert [line.get("class") for line in lines] == ["kept", None, None, "kept"]
    at = {text.text: (float(text.attrib["x"]), float(text.attrib["y"])) for text in texts}
    # A column per depth, a row per leaf, each line from the end of the parent's text to the child.
    assert at["'c' 0.25"][0] == at["'<' 0.1"][0] > at["'a' 0.5"][0] == at["'b' 0.25"][0] > at["'R'"][0]
    assert at["'c' 0.25"][1] < at["'a' 0.5"][1] < at["'<' 0.1"][1] < at["'b' 0.25"][1]
    assert all(float(line.attrib["x1"]) < float(line.attrib["x2"]) for line in lines)
    width, height = map(float, re.findall(r"[\d.]+", root.attrib["viewBox"])[2:])
    assert all(x < width and y < height for x, y in at.values())

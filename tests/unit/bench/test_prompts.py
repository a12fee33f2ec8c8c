from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_ddtree.bench.prompt_sets import BUILT_IN, Prompt, PromptError, built_in, read_file


def write(folder: Path, *lines: Any) -> Path:
    path = folder / "mine.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_sets_hold_32_different_prompts(name: str) -> None:
    prompts = built_in(name)
    assert len({prompt.text for prompt in prompts}) == 32 == len({prompt.name for prompt in prompts})
    assert {prompt.source for prompt in prompts} == {name}


def test_rows_of_the_known_sets_are_read(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"prompt": "plain"},
        {"question": "How many?", "answer": "#### 4"},
        "",
        {"question_id": 81, "turns": ["first", "second"]},
        {"task_id": "HumanEval/0", "prompt": "def f():\u2028", "canonical_solution": "..."},
    )
    assert read_file(path) == [
        Prompt("1", "mine.jsonl", "plain"),
        Prompt("2", "mine.jsonl", "How many?"),
        Prompt("81", "mine.jsonl", "first"),
        Prompt("HumanEval/0", "mine.jsonl", "def f():\u2028"),
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{prompt", "line 2: not JSON"),
        ("[1]", r"line 2: got \[1\]"),
        ({"text": "hi"}, r"line 2: no text in it \(its keys: text\)"),
        ({"prompt": 3}, "line 2: no text"),
        ({"prompt": "  "}, "line 2: no text"),
        ({"turns": []}, "line 2: no text"),
        ({}, "its keys: none"),
    ],
)
def test_other_rows_are_refused_with_file_line_and_what_is_accepted(
    tmp_path: Path, row: Any, message: str
) -> None:
    with pytest.raises(PromptError, match=message) as caught:
        read_file(write(tmp_path, {"prompt": "fine"}, row))
    assert "mine.jsonl" in str(caught.value)
    assert '{"question": TEXT} (GSM8K)' in str(caught.value)


def test_files_without_prompts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="no prompt in it"):
        read_file(write(tmp_path, "", " "))
    with pytest.raises(PromptError, match="No such file"):
        read_file(tmp_path / "absent.jsonl")

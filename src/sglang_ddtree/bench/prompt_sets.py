"""Prompts: the built-in sets and JSONL files in the forms of well-known sets."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUILT_IN = ("code", "math", "chat")
ACCEPTED = (
    '{"prompt": TEXT}, {"question": TEXT} (GSM8K), {"turns": [TEXT, ...]} (MT-Bench, its first turn) or '
    '{"prompt": TEXT, "task_id": ID} (HumanEval)'
)
_FOLDER = Path(__file__).parent / "prompts"


class PromptError(ValueError):
    """A prompt file cannot be used; the message names file, line and what is accepted."""


@dataclass(frozen=True)
class Prompt:
    """One user message. `source` is the set or the file that it is from."""

    name: str
    source: str
    text: str


def built_in(name: str) -> list[Prompt]:
    """The 32 prompts of one of the sets in `BUILT_IN`."""
    return read_file(_FOLDER / f"{name}.jsonl", source=name)


def read_file(path: Path, source: str | None = None) -> list[Prompt]:
    """The prompts of a JSONL file, one per row that is not blank.

    Raises:
        PromptError: the file cannot be read or holds no prompt, or a row is in none of the accepted forms.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"--prompts {path}: {error}") from error
    source = source or path.name
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            row = _decode(line, path, number)
            name = next(
                (str(row[key]) for key in ("task_id", "question_id", "id") if key in row), str(number)
            )
            found.append(Prompt(name, source, _text(row, path, number)))
    if not found:
        raise PromptError(f"--prompts {path}: no prompt in it; each row may be {ACCEPTED}.")
    return found


def _decode(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise PromptError(
            f"--prompts {path}, line {number}: not JSON ({error}); a row may be {ACCEPTED}."
        ) from error
    if not isinstance(row, dict):
        raise PromptError(
            f"--prompts {path}, line {number}: got {line.strip()[:60]}; a row may be {ACCEPTED}."
        )
    return row


def _text(row: dict[str, Any], path: Path, number: int) -> str:
    text: Any = None
    if "prompt" in row:
        text = row["prompt"]
    elif "question" in row:
        text = row["question"]
    elif isinstance(row.get("turns"), list) and row["turns"]:
        text = row["turns"][0]
    if not isinstance(text, str) or not text.strip():
        keys = ", ".join(row) or "none"
        raise PromptError(
            f"--prompts {path}, line {number}: no text in it (its keys: {keys}); a row may be {ACCEPTED}."
        )
    return text

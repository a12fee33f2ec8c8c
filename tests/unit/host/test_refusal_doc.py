from __future__ import annotations

from pathlib import Path

from sglang_ddtree.host.refusal_doc import page

DOC = Path(__file__).parents[3] / "docs" / "refusals.md"


def test_the_page_of_refusals_is_what_the_code_refuses() -> None:
    assert DOC.read_text() == page(), "run scripts/refusal-tables"

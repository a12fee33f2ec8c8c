"""The Markdown of the repository, as far as the tests of the documentation read it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^(```|~~~)")
_LINK = re.compile(r"!?\[[^\]]*\]\(\s*([^)\s]+)\s*\)")
_CODE_SPAN = re.compile(r"`([^`]+)`")
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$")


@dataclass(frozen=True)
class Page:
    """One Markdown file."""

    file: Path

    @property
    def name(self) -> str:
        return self.file.relative_to(ROOT).as_posix()

    @cached_property
    def text(self) -> str:
        return self.file.read_text()

    @cached_property
    def prose(self) -> str:
        """Without code: neither indented and fenced blocks nor code spans."""
        return _CODE_SPAN.sub("", "\n".join(line for line, is_code in self._lines() if not is_code))

    @cached_property
    def code(self) -> list[str]:
        """Code blocks, lines that go on joined, one item per line, and all code spans."""
        block = "\n".join(line if is_code else "" for line, is_code in self._lines())
        lines = [line.strip() for line in block.replace("\\\n", " ").splitlines() if line.strip()]
        spans = "\n".join(line for line, is_code in self._lines() if not is_code)
        return [*lines, *_CODE_SPAN.findall(spans)]

    @cached_property
    def links(self) -> list[str]:
        return _LINK.findall(self.prose)

    @cached_property
    def anchors(self) -> set[str]:
        lines = [line for line, is_code in self._lines() if not is_code]
        return {slug(match[1]) for match in map(_HEADING.match, lines) if match}

    def tables(self, *columns: str) -> list[list[str]]:
        """The cells of all rows of the tables with exactly this header."""
        found, inside = [], False
        for line in self.text.splitlines():
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if not line.startswith("|"):
                inside = False
            elif tuple(cells) == columns:
                inside = True
            elif inside and set(line) - set("|- :"):
                found.append(cells)
        return found

    def _lines(self) -> list[tuple[str, bool]]:
        found, fenced, before = [], False, ""
        indented = False
        for line in self.text.splitlines():
            if _FENCE.match(line):
                fenced = not fenced
                found.append((line, True))
            else:
                # Four columns open a block after an empty line, unless they go on with a list's item.
                indented = line.startswith("    ") and (indented or not before.strip())
                found.append((line, fenced or indented))
            before = line
        return found


def slug(heading: str) -> str:
    """The anchor that both GitHub and MkDocs give to a heading."""
    words = re.sub(r"[^\w\s-]", "", heading.replace("`", "").lower()).strip()
    return re.sub(r"[\s]", "-", words)


def all_pages() -> list[Page]:
    """README, the other pages at the top, those in docs/ and those beside results."""
    files = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("benchmarks/results/*/*.md")]
    return [Page(file) for file in sorted(files)]

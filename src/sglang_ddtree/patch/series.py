"""The patches that come with this package, one folder for each SGLang version they fit."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from . import unified
from .unified import DiffError, Hunk

VERSIONS = Path(__file__).parent / "versions"
"""In a checkout a link to `patches/`; a wheel holds the files."""

LOADER = "srt/plugins/__init__.py"
"""The patched file that calls this package."""

_PREFIX = "sglang-"


@dataclass(frozen=True)
class Patch:
    """One change of one file; `original` and `patched` are the SHA-256 of the file before and after it."""

    name: str
    purpose: str
    file: str
    original: str
    patched: str
    hunks: tuple[Hunk, ...]

    def apply(self, text: bytes) -> bytes:
        """The patched text; raises `DiffError` when `text` is not the original."""
        return self._checked(unified.apply(self.hunks, text), self.patched)

    def undo(self, text: bytes) -> bytes:
        """The original text; raises `DiffError` when `text` is not the patched one."""
        return self._checked(unified.apply([hunk.reversed() for hunk in self.hunks], text), self.original)

    def _checked(self, text: bytes, expected: str) -> bytes:
        if sha256(text) != expected:
            raise DiffError(f"{self.name} gives {self.file} the hash {sha256(text)}, expected {expected}")
        return text


def sha256(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def versions(folder: Path = VERSIONS) -> list[str]:
    """The SGLang versions that have patches."""
    return sorted(path.name.removeprefix(_PREFIX) for path in folder.glob(f"{_PREFIX}*"))


def load(version: str, folder: Path = VERSIONS) -> list[Patch]:
    """The patches for one version in their order; none for a version that has no folder.

    Raises `DiffError` for a patch that lacks a header line, or when two change the same file.
    """
    patches = [_read(path) for path in sorted((folder / f"{_PREFIX}{version}").glob("*.patch"))]
    files = [patch.file for patch in patches]
    if len(set(files)) < len(files):
        raise DiffError(f"two patches for SGLang {version} change the same file: {files}")
    return patches


def _read(path: Path) -> Patch:
    content = path.read_bytes()
    header = content.partition(b"\n--- ")[0].decode()
    fields = dict(re.findall(r"^(File|Original|Patched): (?:sha256 )?(\S+)$", header, re.MULTILINE))
    name, hunks = unified.parse(content)
    if set(fields) != {"File", "Original", "Patched"} or name != f"sglang/{fields['File']}":
        raise DiffError(f"{path}: the header must name File, Original and Patched; it changes {name}")
    purpose = header.partition("\n")[0]
    return Patch(path.name, purpose, fields["File"], fields["Original"], fields["Patched"], hunks)

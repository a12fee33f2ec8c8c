"""Applies unified diffs strictly: no fuzz and no offset, every line must stand where the diff says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


class DiffError(ValueError):
    """A diff that cannot be read, or a text that is not the one it was made from."""


@dataclass(frozen=True)
class Hunk:
    """The lines `old`, from the 1-based line `old_start` on, become `new`; line ends included."""

    old_start: int
    old: tuple[bytes, ...]
    new_start: int
    new: tuple[bytes, ...]

    def reversed(self) -> Hunk:
        return Hunk(self.new_start, self.new, self.old_start, self.old)


def parse(diff: bytes) -> tuple[str, tuple[Hunk, ...]]:
    """The one file that `diff` changes, without its `a/`, and the hunks; text before `---` is skipped.

    Raises `DiffError` for anything but one file's hunks whose lines all end in a newline.
    """
    lines = split_lines(diff)
    start = next((index for index, line in enumerate(lines) if line.startswith(b"--- ")), len(lines))
    old, new = (line.decode().rstrip("\n") for line in (*lines[start : start + 2], b"", b"")[:2])
    if not old.startswith("--- a/") or new != f"+++ b/{old[len('--- a/') :]}":
        raise DiffError(f"expected `--- a/FILE` and `+++ b/FILE` of one file, got {old!r} and {new!r}")
    hunks, position = [], start + 2
    while position < len(lines):
        hunk, position = _parse_hunk(lines, position)
        hunks.append(hunk)
    if not hunks:
        raise DiffError(f"no hunk for {old[len('--- a/') :]}")
    return old[len("--- a/") :], tuple(hunks)


def apply(hunks: Iterable[Hunk], text: bytes) -> bytes:
    """`text` with all hunks applied; raises `DiffError` naming the first line that is not as expected."""
    lines = split_lines(text)
    result: list[bytes] = []
    position = 0
    for hunk in hunks:
        first = _index(hunk.old_start, hunk.old)
        if not position <= first <= len(lines):
            raise DiffError(
                f"a hunk at line {hunk.old_start} does not fit: {position}..{len(lines)} are left"
            )
        result += lines[position:first]
        if len(result) != _index(hunk.new_start, hunk.new):
            raise DiffError(f"the hunk at line {hunk.old_start} should become line {hunk.new_start}")
        for offset, expected in enumerate(hunk.old):
            found = lines[first + offset] if first + offset < len(lines) else b""
            if found != expected:
                raise DiffError(f"line {first + offset + 1}: expected {expected!r}, found {found!r}")
        result += hunk.new
        position = first + len(hunk.old)
    return b"".join(result + lines[position:])


def split_lines(text: bytes) -> list[bytes]:
    """Lines with their newline; only `\\n` ends one, as in diff."""
    return re.findall(rb"[^\n]*\n|[^\n]+", text)


def _index(start: int, lines: Sequence[bytes]) -> int:
    # A side without lines names the line before it.
    return start - 1 if lines else start


def _parse_hunk(lines: list[bytes], position: int) -> tuple[Hunk, int]:
    match = _HUNK.match(lines[position])
    if match is None:
        raise DiffError(f"line {position + 1}: expected a hunk `@@ -N,N +N,N @@`, got {lines[position]!r}")
    old_start, old_count, new_start, new_count = (1 if n is None else int(n) for n in match.groups())
    old: list[bytes] = []
    new: list[bytes] = []
    while len(old) < old_count or len(new) < new_count:
        position += 1
        line = lines[position] if position < len(lines) else b""
        if line[:1] not in (b" ", b"-", b"+") or not line.endswith(b"\n"):
            raise DiffError(f"line {position + 1}: expected a line of the hunk, got {line!r}")
        if line[:1] in b" -":
            old.append(line[1:])
        if line[:1] in b" +":
            new.append(line[1:])
    if (len(old), len(new)) != (old_count, new_count):
        raise DiffError(f"line {position + 1}: the hunk is longer than its header says")
    return Hunk(old_start, tuple(old), new_start, tuple(new)), position + 1

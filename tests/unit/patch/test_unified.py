"""A diff applies where it says and to what it says, or not at all."""

from __future__ import annotations

import random

import pytest

from sglang_ddtree.patch import unified
from sglang_ddtree.patch.unified import DiffError

BEFORE = b"one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten"
AFTER = b"zero\none\ntwo\nTHREE\nfour\nfive\nsix\neight\n\tnine \nten"
DIFF = b"""\
Why this is changed.

--- a/folder/file.py
+++ b/folder/file.py
@@ -1,4 +1,5 @@ first
+zero
 one
 two
-three
+THREE
 four
@@ -6,4 +7,3 @@
 six
-seven
 eight
-nine
+\tnine\x20
"""


def test_hunks_give_the_text_written_by_hand() -> None:
    file, hunks = unified.parse(DIFF)
    assert file == "folder/file.py"
    assert unified.apply(hunks, BEFORE) == AFTER
    assert unified.apply([hunk.reversed() for hunk in hunks], AFTER) == BEFORE


def test_only_a_newline_ends_a_line() -> None:
    _, hunks = unified.parse(b"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\r\x0c\xe2\x80\xa8b\n+c\n")
    assert unified.apply(hunks, b"a\r\x0c\xe2\x80\xa8b\nd\r\n") == b"c\nd\r\n"


@pytest.mark.parametrize(
    ("hunk", "before", "after"),
    [
        (b"@@ -0,0 +1 @@\n+new\n", b"", b"new\n"),
        (b"@@ -1,0 +2 @@\n+new\n", b"a\nb\n", b"a\nnew\nb\n"),
        (b"@@ -2 +1,0 @@\n-b\n", b"a\nb\nc\n", b"a\nc\n"),
        (b"@@ -1 +0,0 @@\n-a\n", b"a\n", b""),
    ],
    ids=["into an empty file", "without context", "only removed", "to an empty file"],
)
def test_a_side_may_be_empty(hunk: bytes, before: bytes, after: bytes) -> None:
    _, hunks = unified.parse(b"--- a/f\n+++ b/f\n" + hunk)
    assert unified.apply(hunks, before) == after
    assert unified.apply([one.reversed() for one in hunks], after) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BEFORE.replace(b"two", b"two "), r"line 2: expected b'two\\n', found b'two \\n'"),
        (b"more\n" + BEFORE, r"line 1: expected b'one\\n', found b'more\\n'"),
        (BEFORE.replace(b"\n", b"\r\n"), "line 1"),
        (BEFORE[: BEFORE.index(b"nine")], r"line 9: expected b'nine\\n', found b''"),
        (BEFORE.replace(b"\nten", b""), r"line 9: expected b'nine\\n', found b'nine'"),
        (b"one\n", "line 2"),
        (AFTER, "line 1"),
    ],
    ids=[
        "a blank",
        "shifted by a line",
        "line ends",
        "cut",
        "no newline at the end",
        "short",
        "applied before",
    ],
)
def test_context_that_differs_is_refused(text: bytes, message: str) -> None:
    _, hunks = unified.parse(DIFF)
    with pytest.raises(DiffError, match=message):
        unified.apply(hunks, text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"--- a/", b"--- x/"),
        (b"+++ b/folder", b"+++ b/other"),
        (b"-1,4 +1,5", b"-1,5 +1,5"),
        (b"-6,4 +7,3", b"-6,3 +7,3"),
        (b"-6,4 +7,3", b"-6,4 +6,3"),
        (b"-6,4 +7,3", b"-3,4 +7,3"),
        (b" eight\n", b" eight\n\n"),
        (b" eight\n", b"eight\n"),
        (b"+\tnine\x20\n", b"+\tnine\x20\n\\ No newline at end of file\n"),
        (b"+\tnine\x20\n", b"+\tnine\x20\n--- a/second\n+++ b/second\n@@ -1 +1 @@\n-a\n+b\n"),
        (DIFF[DIFF.index(b"@@") :], b""),
        (DIFF, b""),
    ],
)
def test_diff_that_is_not_sound_is_refused(old: bytes, new: bytes) -> None:
    assert DIFF.count(old) == 1
    with pytest.raises(DiffError):
        unified.apply(unified.parse(DIFF.replace(old, new))[1], BEFORE)


def test_random_edits_give_the_text_they_were_made_from() -> None:
    source = random.Random(0)
    for _ in range(300):
        before, after, diff = _random_edit(source)
        _, hunks = unified.parse(diff)
        assert unified.apply(hunks, before) == after, diff
        assert unified.apply([hunk.reversed() for hunk in hunks], after) == before, diff


def _random_edit(source: random.Random) -> tuple[bytes, bytes, bytes]:
    # The diff is written down along with the edit, kept and changed pieces in turn.
    before: list[bytes] = []
    after: list[bytes] = []
    diff = [b"--- a/f\n+++ b/f\n"]
    for _ in range(source.randint(1, 4)):
        kept = _random_lines(source, 1, 6)
        before, after = before + kept, after + kept
        head, tail = _random_lines(source, 0, 3), _random_lines(source, 0, 3)
        removed, added = _random_lines(source, 0, 3), _random_lines(source, 0, 3)
        old, new = head + removed + tail, head + added + tail
        if not removed + added:
            continue
        old_start, new_start = len(before) + bool(old), len(after) + bool(new)
        diff.append(b"@@ -%d,%d +%d,%d @@\n" % (old_start, len(old), new_start, len(new)))
        for mark, lines in ((b" ", head), (b"-", removed), (b"+", added), (b" ", tail)):
            diff += [mark + line for line in lines]
        before, after = before + old, after + new
    if len(diff) == 1:
        return _random_edit(source)
    return b"".join(before), b"".join(after), b"".join(diff)


def _random_lines(source: random.Random, least: int, most: int) -> list[bytes]:
    return [
        b"%s\n" % source.choice((b"a", b"b", b"", b"-", b"--- a/f"))
        for _ in range(source.randint(least, most))
    ]

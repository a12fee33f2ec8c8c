"""A file in pieces, for ways that carry only small files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from .progress import TrainingError

LIST = "pieces.json"
MEGABYTE = 1_000_000


def split(file: Path, out: Path, megabytes: int) -> list[Path]:
    """Cut `file` into pieces of at most `megabytes` million bytes in `out`, with a list that `join` reads.

    Raises:
        TrainingError: no such file, or pieces without size.
    """
    if megabytes < 1:
        raise TrainingError(f"--megabytes must be at least 1, got {megabytes}.")
    if not file.is_file():
        raise TrainingError(f"{file}: no such file.")
    content = file.read_bytes()
    step = megabytes * MEGABYTE
    out.mkdir(parents=True, exist_ok=True)
    pieces = []
    for number, begin in enumerate(range(0, max(1, len(content)), step)):
        pieces.append(out / f"{file.name}.{number:03d}")
        pieces[-1].write_bytes(content[begin : begin + step])
    listed = {
        "name": file.name,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "pieces": [piece.name for piece in pieces],
    }
    (out / LIST).write_text(json.dumps(listed, indent=2) + "\n")
    return [*pieces, out / LIST]


def join(folder: Path, out: Path) -> Path:
    """Put the pieces in `folder` together again as the file `out`.

    Raises:
        TrainingError: a piece is absent or the whole is not what was split.
    """
    try:
        listed = json.loads((folder / LIST).read_text())
        content = b"".join((folder / Path(name).name).read_bytes() for name in listed["pieces"])
        digest = listed["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainingError(f"{folder}: its pieces cannot be joined: {error}") from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise TrainingError(f"{folder}: the pieces are not those of the file that was split.")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(content)
    return out

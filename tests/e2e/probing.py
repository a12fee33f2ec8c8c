"""The test-only plugin in `probe/`, as tests use it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROBE = Path(__file__).parent / "probe"


def environment(
    *,
    trace: Path | None = None,
    script: Path | None = None,
    argmax: bool = False,
    logits: bool = False,
    chain: bool = False,
    stray: bool = False,
    unproven: bool = False,
    widths: Sequence[int] = (),
) -> dict[str, str]:
    """Variables that switch the probe on in a server's processes."""
    variables = {"PYTHONPATH": str(PROBE)}
    if trace is not None:
        variables["DDTREE_PROBE_TRACE"] = str(trace)
    if script is not None:
        variables["DDTREE_PROBE_SCRIPT"] = str(script)
    for name, wanted in (
        ("ARGMAX", argmax),
        ("LOGITS", logits),
        ("CHAIN", chain),
        ("STRAY", stray),
        ("UNPROVEN", unproven),
    ):
        if wanted:
            variables[f"DDTREE_PROBE_{name}"] = "1"
    if widths:
        variables["DDTREE_PROBE_WIDTHS"] = ",".join(map(str, widths))
    return variables


def read_trace(trace: Path) -> dict[str, list[dict[str, Any]]]:
    """Decode steps in order, by request."""
    steps: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in trace.read_text().splitlines():
        record = json.loads(line)
        steps[record["rid"]].append(record)
    return dict(steps)


def node_paths(record: dict[str, Any]) -> list[tuple[int, ...]]:
    """A traced tree as token paths from the root's children on, in node order."""
    paths: list[tuple[int, ...]] = [()]
    for token, parent in zip(record["tokens"][1:], record["parents"][1:], strict=True):
        paths.append((*paths[parent], token))
    return paths[1:]

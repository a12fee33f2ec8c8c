"""A server whose drafts are scripted: every accepted path can be had on demand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from e2e import probing
from e2e.serving import Server

NEW_TOKENS = 40


class Stage:
    """One server, one script after the other."""

    def __init__(self, server: Server, script: Path, trace: Path) -> None:
        self.server, self._script, self._trace = server, script, trace

    def play(self, texts: dict[str, list[int]], **script: Any) -> None:
        """From now on request number i of `texts` accepts accept[i] tokens a step; see `probe/ddtree_probe.py`."""
        self._script.write_text(json.dumps({"texts": texts, "ranks": [0], **script}))
        self._trace.write_text("")

    def steps(self) -> dict[str, list[dict[str, Any]]]:
        return probing.read_trace(self._trace)


@contextmanager
def open_stage(
    launch: Callable[..., AbstractContextManager[Server]],
    folder: Path,
    target: Path,
    drafter: Path,
    *,
    environment: dict[str, str] | None = None,
    **options: Any,
) -> Iterator[Stage]:
    script, trace = folder / "script.json", folder / "trace"
    script.write_text("{}")
    with launch(
        target,
        environment=probing.environment(trace=trace, script=script) | (environment or {}),
        speculative_algorithm="DDTREE",
        speculative_draft_model_path=drafter,
        **options,
    ) as server:
        yield Stage(server, script, trace)


def payload(rid: str, prompt: list[int], **sampling: Any) -> dict[str, Any]:
    params = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True, **sampling}
    return {"rid": rid, "input_ids": prompt, "sampling_params": params}

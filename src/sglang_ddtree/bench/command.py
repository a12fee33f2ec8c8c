"""`sglang-ddtree bench`: from the command line to table, bench.json and bench.html."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from ..usage import UsageError
from . import arguments as usage
from .flow import ArmResult, Plan, Servers, measure
from .machine import machine, versions
from .page import page
from .progress import Progress
from .prompt_sets import Prompt
from .report import Report, report, succeeded
from .table import table
from .tokens import TokenizerError, encode
from .turns import measure_in_turns


def run(arguments: argparse.Namespace) -> int:
    """Measure what the command line asks for; the exit code is that of the command."""
    try:
        usage.check_numbers(arguments)
        usage.check_checkpoints(arguments)
        arms, words, prompts = usage.arms(arguments), usage.server_words(arguments), usage.prompts(arguments)
        folder = _make_folder(arguments.out)
    except UsageError as error:
        print(f"sglang-ddtree bench: error: {error}", file=sys.stderr)
        return 2
    plan = Plan(
        arms,
        arguments.concurrency,
        arguments.temperature,
        arguments.runs,
        arguments.max_new_tokens,
        arguments.in_turns,
    )
    from .server import Servers as RealServers

    servers = RealServers(arguments.model, arguments.draft, words, folder, arguments.start_timeout)
    with _signals_as_exceptions():
        try:
            ids, templated = encode(arguments.model, prompts, "--trust-remote-code" in words)
            about = {**_about(arguments), "chat_template": templated}
            found = bench(plan, prompts, ids, servers, about, folder, arguments.keep_going)
        except TokenizerError as error:
            print(f"sglang-ddtree bench: error: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print(f"\nStopped. Arms measured to the end are in {folder}.", file=sys.stderr)
            return 130
    print(f"\n{table(found)}\n\nWritten: {folder / 'bench.json'}, {folder / 'bench.html'}")
    return 0 if succeeded(found) else 1


def bench(
    plan: Plan,
    prompts: Sequence[Prompt],
    ids: Sequence[Sequence[int]],
    servers: Servers,
    about: dict[str, Any],
    folder: Path,
    keep_going: bool = False,
) -> Report:
    """Measure the arms as `measure` does; write ``bench.json`` and ``bench.html`` into `folder` after each."""
    described = [
        {"name": prompt.name, "source": prompt.source, "tokens": len(one)}
        for prompt, one in zip(prompts, ids, strict=True)
    ]

    def save(results: Sequence[ArmResult]) -> Report:
        found = report(plan, results, described, about)
        (folder / "bench.json").write_text(json.dumps(found) + "\n", encoding="utf-8")
        (folder / "bench.html").write_text(page(found), encoding="utf-8")
        return found

    with Progress(len(plan.arms) * len(plan.cells) * plan.runs * len(ids)) as progress:
        if plan.in_turns:
            return save(measure_in_turns(plan, ids, servers, progress, save))
        return save(measure(plan, ids, servers, progress, save, keep_going))


def _about(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "model": arguments.model,
        "draft": arguments.draft,
        "server_args": arguments.server_arg,
        "command": shlex.join(["sglang-ddtree", *sys.argv[1:]]),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": versions(),
        "machine": machine(),
    }


def _make_folder(out: Path | None) -> Path:
    """The folder for the results, made now: an unwritable one is found before hours of work."""
    folder = out if out is not None else Path(f"sglang-ddtree-bench-{datetime.now():%Y%m%d-%H%M%S}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {folder}: {error.strerror}.") from error
    if not os.access(folder, os.W_OK):
        raise UsageError(f"--out {folder} is not writable.")
    return folder


@contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """Let SIGTERM, SIGHUP and Ctrl-C unwind, so that the servers' context managers run."""
    handlers: dict[signal.Signals, Any] = {
        signal.SIGTERM: _exit_on_signal,
        signal.SIGHUP: _exit_on_signal,
        # A shell that starts this in the background has it ignore Ctrl-C's signal.
        signal.SIGINT: signal.default_int_handler,
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit_on_signal(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)

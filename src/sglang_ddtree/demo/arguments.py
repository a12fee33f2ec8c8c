"""The command line of the demo: `sglang-ddtree demo` and `scripts/demo`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from .. import usage
from ..config import FIXED_BUDGET
from ..usage import BUDGET, UsageError

DESCRIPTION = """\
Serve the demo pair with DDTREE on the CPU, stream its answers, compare it with plain decoding and DFLASH.

This shows that the answers are the same and how many target forwards they take. It says nothing about speed:
on a CPU a wider forward costs more, on a GPU hardly.
"""
EPILOG = """\
exit code: 0 all went well; 1 a server failed or the target could not be prepared, with --paths: it is not there yet;
2 wrong usage.
"""
PROMPTS = (
    "I just moved to a new city and don't know anyone. How can I make friends?",
    "Write a Python function that reverses a string.",
    "There are 12 pencils in a box. How many pencils are in 6 boxes?",
)
OWN_FLAGS = usage.own_flags(
    "demo",
    model="the demo serves its own target",
    draft="the demo's drafter fits no other target",
    algorithm="the demo serves DDTREE",
    budget="give --budget to the demo",
)
TO_STDOUT = Path("-")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags on a parser."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add(
        "--serve", action="store_true", help="leave the DDTREE server up until Ctrl-C, without the comparison"
    )
    usage.add_server_arg(parser, "the --serve server's")
    add(
        "--budget",
        type=int,
        default=FIXED_BUDGET,
        metavar="N",
        help=f"nodes of the draft tree, {BUDGET.low} to {BUDGET.high} (default: %(default)s)",
    )
    add(
        "--prompt",
        action="append",
        metavar="TEXT",
        help="a user message instead of the three built-in ones; may be repeated",
    )
    add("--paths", action="store_true", help="print where target and drafter are; nothing is made or started")
    add(
        "--json",
        type=Path,
        nargs="?",
        const=TO_STDOUT,
        metavar="PATH",
        help="also write the table's figures, or why there are none, to this file; with --paths, and without PATH, "
        "print them as JSON",
    )


def check(arguments: argparse.Namespace) -> list[str]:
    """The words of all ``--server-arg``.

    Raises:
        UsageError: a flag's value, or two flags together, cannot be used.
    """
    if not BUDGET.low <= arguments.budget <= BUDGET.high:
        limits = f"from {BUDGET.low} to {BUDGET.high}"
        raise UsageError(f"--budget must be a whole number {limits}, got {arguments.budget}")
    if arguments.prompt and not all(text.strip() for text in arguments.prompt):
        raise UsageError("--prompt must not be empty")
    if arguments.server_arg and not arguments.serve:
        raise UsageError(
            "--server-arg needs --serve: the comparison starts its servers with flags of its own"
        )
    if arguments.paths and arguments.serve:
        raise UsageError("--paths starts nothing; leave out --serve")
    _check_json(arguments)
    return usage.server_words(arguments.server_arg, OWN_FLAGS)


def _check_json(arguments: argparse.Namespace) -> None:
    path = arguments.json
    if path is None:
        return
    if arguments.paths:
        if path != TO_STDOUT:
            raise UsageError(f"--json {path}: with --paths it takes no file, and prints")
    elif arguments.serve:
        raise UsageError("--json needs the comparison, which --serve leaves out")
    elif path == TO_STDOUT:
        raise UsageError("--json needs a PATH: the answers are on the standard output")
    else:
        problem = _why_not_writable(path)
        if problem:
            raise UsageError(f"--json {path}: {problem}")


def _why_not_writable(path: Path) -> str | None:
    """Found out before minutes of work, not after them."""
    if path.is_dir():
        return "is a folder"
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist"
    place = path if path.exists() else path.parent
    return None if os.access(place, os.W_OK) else f"{place} is not writable"

"""`sglang-ddtree tree`: from the command line to the drawing."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..usage import BUDGET, UsageError, require_checkpoint

DESCRIPTION = """\
Draw the tree of the first decode step behind a prompt: what the drafter proposes, how probable it finds each path
(its whole product, over the full vocabulary), and what the target accepts greedily. Runs both models with transformers,
in float32 on a CPU and in bfloat16 on a GPU; no server is needed.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags on the subcommand's parser."""
    parser.description = DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--prompt", required=True, metavar="TEXT", help="one user message")
    add("--model", required=True, metavar="DIR", help="the target, a folder or a hub id")
    add("--draft", required=True, type=Path, metavar="DIR", help="the drafter's folder")
    add(
        "--budget",
        type=int,
        default=16,
        metavar="N",
        help=f"nodes of the tree, {BUDGET.low} to {BUDGET.high} (default: 16)",
    )
    add("--svg", type=Path, metavar="FILE", help="draw it into this file, too, every node of it")


def run(arguments: argparse.Namespace) -> int:
    """Draw what the command line asks for; 2 where it cannot be drawn."""
    from ..bench.tokens import TokenizerError
    from ..host.checkpoint import CheckpointError
    from .drawing import as_svg, as_text
    from .models import SketchError, first_step

    try:
        if not BUDGET.low <= arguments.budget <= BUDGET.high:
            limits = f"from {BUDGET.low} to {BUDGET.high}"
            raise SketchError(f"--budget must be a whole number {limits}, got {arguments.budget}.")
        if not arguments.draft.is_dir():
            raise SketchError(f"--draft {arguments.draft}: no such folder.")
        require_checkpoint("--model", arguments.model)
        step, tokenizer = first_step(arguments.model, arguments.draft, arguments.prompt, arguments.budget)
        print(as_text(step, tokenizer.decode))
        if arguments.svg is not None:
            arguments.svg.write_text(as_svg(step, tokenizer.decode), encoding="utf-8")
    except (UsageError, SketchError, CheckpointError, TokenizerError, OSError) as error:
        print(f"sglang-ddtree tree: error: {error}", file=sys.stderr)
        return 2
    return 0

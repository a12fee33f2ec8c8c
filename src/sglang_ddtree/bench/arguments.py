"""The command line of `sglang-ddtree bench`."""

from __future__ import annotations

import argparse
from pathlib import Path

from .. import usage
from ..usage import UsageError
from .arms import ALLOWED, DEFAULT_ARMS, Arm, parse_arm
from .prompt_sets import ACCEPTED, BUILT_IN, Prompt, PromptError, built_in, read_file

DESCRIPTION = """\
Measure plain decoding (AR), DFLASH and DDTREE on this machine: one real server per arm, one after the other, all
with the same flags, over HTTP with streaming. Prints a table and writes bench.json and bench.html. With --in-turns
the servers stand at once and run follows run arm by arm.

An arm that its server refuses, or that would run with other flags than the first arm, is reported with the reason;
the others are measured. Where no server has started and two failed with the same reason the bench stops.
"""
EPILOG = """\
example:
  sglang-ddtree bench --model Qwen/Qwen3-8B --draft z-lab/Qwen3-8B-DFlash-b16 --set math --concurrency 1 8 \\
    --server-arg="--attention-backend triton" --server-arg="--disable-prefill-cuda-graph"

exit code: 0 all arms measured; 1 an arm failed or was refused, or greedy texts differ in float32; 2 wrong usage.
"""
# Set by the arms, or breaking what is read from the answers.
OWN_FLAGS = {
    **usage.own_flags(
        "bench",
        model="give --model to the bench",
        draft="give --draft to the bench",
        algorithm="choose with --arm",
        budget='choose with --arm "DDTREE N"',
    ),
    "--incremental-streaming-output": "the answers' last event would lack the token ids",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags on the subcommand's parser."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--model", required=True, metavar="M", help="the target, a folder or a hub id")
    add("--draft", metavar="D", help="its DFlash drafter; needed by every arm except AR")
    add(
        "--arm",
        action="append",
        metavar="ARM",
        help=f"{ALLOWED}; may be repeated (default: {', '.join(DEFAULT_ARMS)})",
    )
    add("--prompts", type=Path, metavar="FILE", help=f"JSONL; a row may be {ACCEPTED}")
    add(
        "--set",
        dest="sets",
        action="append",
        choices=BUILT_IN,
        help="a built-in set of 32 prompts; may be repeated (default: all three)",
    )
    add("--limit", type=int, metavar="N", help="only the first N prompts of each set or of the file")
    add(
        "--concurrency", type=int, nargs="+", default=[1], metavar="C", help="requests in flight (default: 1)"
    )
    add("--temperature", type=float, nargs="+", default=[0.0, 1.0], metavar="T", help="(default: 0 1)")
    add("--runs", type=int, default=5, metavar="N", help="runs over all prompts per figure (default: 5)")
    add("--max-new-tokens", type=int, default=256, metavar="N", help="per answer (default: 256)")
    usage.add_server_arg(parser, "every server's")
    add(
        "--start-timeout",
        type=float,
        default=1800,
        metavar="S",
        help="seconds a server may take (default: 1800)",
    )
    add(
        "--keep-going",
        action="store_true",
        help="try every arm, even where no server has started and two failed with the same reason",
    )
    add(
        "--in-turns",
        action="store_true",
        help="start all servers first and let them measure in turns, run by run, for a machine whose pace changes; "
        "they must fit on it together (--server-arg=--max-total-tokens=N); waiting servers are paused",
    )
    add(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for the results (default: sglang-ddtree-bench-DATE-TIME)",
    )


def arms(arguments: argparse.Namespace) -> list[Arm]:
    """The arms in the order given.

    Raises:
        UsageError: one cannot be, is there twice, or lacks the drafter.
    """
    try:
        found = [parse_arm(text) for text in arguments.arm or DEFAULT_ARMS]
    except ValueError as error:
        raise UsageError(str(error)) from error
    for arm in found:
        if found.count(arm) > 1:
            raise UsageError(f'--arm "{arm.name}" is given {found.count(arm)} times; once is enough.')
        if arm.is_speculative and not arguments.draft:
            raise UsageError(f'--arm "{arm.name}" needs a drafter: give --draft, or choose --arm AR alone.')
    return found


def server_words(arguments: argparse.Namespace) -> list[str]:
    """The words of all ``--server-arg``.

    Raises:
        UsageError: one does not parse, or is a flag that the bench sets itself.
    """
    return usage.server_words(arguments.server_arg, OWN_FLAGS)


def prompts(arguments: argparse.Namespace) -> list[Prompt]:
    """The prompts of ``--prompts`` or of the sets.

    Raises:
        UsageError: both are given, or the file cannot be used.
    """
    if arguments.prompts is not None and arguments.sets:
        raise UsageError("--prompts and --set exclude each other; give one of them.")
    try:
        if arguments.prompts is not None:
            return read_file(arguments.prompts)[: arguments.limit]
        names = dict.fromkeys(arguments.sets or BUILT_IN)
        return [prompt for name in names for prompt in built_in(name)[: arguments.limit]]
    except PromptError as error:
        raise UsageError(str(error)) from error


def check_checkpoints(arguments: argparse.Namespace) -> None:
    """Raise `UsageError` naming the flag whose folder is not there."""
    usage.require_checkpoint("--model", arguments.model)
    if arguments.draft is not None:
        usage.require_checkpoint("--draft", arguments.draft)


def check_numbers(arguments: argparse.Namespace) -> None:
    """Raise `UsageError` naming the flag whose number is out of range or there twice."""
    for flag in ("--runs", "--max-new-tokens", "--limit", "--concurrency"):
        value = getattr(arguments, flag[2:].replace("-", "_"))
        for one in value if isinstance(value, list) else [value]:
            if one is not None and one < 1:
                raise UsageError(f"{flag} must be a whole number from 1, got {one}.")
    for one in arguments.temperature:
        if not 0 <= one < float("inf"):
            raise UsageError(f"--temperature must be a number from 0, got {one}.")
    for flag, values in (("--concurrency", arguments.concurrency), ("--temperature", arguments.temperature)):
        if len(set(values)) < len(values):
            raise UsageError(f"{flag} has a value twice: {' '.join(map(str, values))}.")
    if not arguments.start_timeout > 0:
        raise UsageError(f"--start-timeout must be more than 0 seconds, got {arguments.start_timeout}.")

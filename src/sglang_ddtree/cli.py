"""The command `sglang-ddtree`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout

from . import __version__
from .audit.command import add_arguments as add_audit_arguments
from .bench.arguments import add_arguments
from .demo.arguments import add_arguments as add_demo_arguments
from .patch.command import add_arguments as add_patch_arguments
from .sketch.command import add_arguments as add_tree_arguments
from .smoke.command import add_arguments as add_smoke_arguments
from .usage import Parser, join_server_args

PRINT_JSON = ("doctor", "smoke", "patch")
"""The subcommands whose --json takes no file."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; the exit code is 0 when it found what it should."""
    words = join_server_args(sys.argv[1:] if argv is None else argv)
    parser = Parser(prog="sglang-ddtree", description="Tools of DDTREE for SGLang.")
    parser.add_argument("--version", action="version", version=f"sglang-ddtree {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_doctor(commands.add_parser("doctor", help="check whether DDTREE can start on this machine"))
    _add_demo(commands.add_parser("demo", help="serve the demo pair on the CPU, or print its folders"))
    _add_bench(commands.add_parser("bench", help="measure AR, DFLASH and DDTREE on this machine"))
    _add_audit(
        commands.add_parser("audit", help="compare a running server's greedy texts with plain decoding's")
    )
    _add_smoke(commands.add_parser("smoke", help="test that a running server answers, with DDTREE"))
    _add_tree(commands.add_parser("tree", help="draw the tree of one decode step"))
    _add_patch(commands.add_parser("patch", help="make an SGLang without plugins load this package"))
    if _prints_json(words):
        for one in (parser, *commands.choices.values()):
            one.on_error = _print_error
    arguments = parser.parse_args(words)
    try:
        code = int(arguments.run(arguments))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Who read the output has enough. The interpreter would try to write the rest once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (Exception, KeyboardInterrupt) as error:
        # Not foreseen. A report is the last thing that a subcommand prints, so there is none yet.
        if parser.on_error is not None:
            parser.on_error(f"{type(error).__name__}: {error}")
        raise


def _prints_json(words: Sequence[str]) -> bool:
    """Whether the standard output must be one JSON object, whatever happens."""
    command = words[0] if words else ""
    takes_no_file = command in PRINT_JSON or (command == "demo" and "--paths" in words)
    return takes_no_file and "--json" in words


def _print_error(error: str) -> None:
    print(json.dumps({"error": error}, indent=2))


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--draft", metavar="PATH", help="a drafter to check, a folder or a hub id")
    parser.add_argument("--model", metavar="PATH", help="the target that the drafter is for")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    from .host import doctor

    with redirect_stdout(sys.stderr):  # for what SGLang and transformers may print on the way
        findings = doctor.examine(arguments.draft, arguments.model)
    print(json.dumps(doctor.as_json(findings), indent=2) if arguments.json else doctor.as_text(findings))
    return 0 if doctor.would_start(findings) else 1


def _add_demo(parser: argparse.ArgumentParser) -> None:
    add_demo_arguments(parser)
    parser.set_defaults(run=_demo)


def _demo(arguments: argparse.Namespace) -> int:
    from .demo.runner import run

    return run(arguments)


def _add_bench(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser)
    parser.set_defaults(run=_bench)


def _bench(arguments: argparse.Namespace) -> int:
    from .bench.command import run

    return run(arguments)


def _add_audit(parser: argparse.ArgumentParser) -> None:
    add_audit_arguments(parser)
    parser.set_defaults(run=_audit)


def _audit(arguments: argparse.Namespace) -> int:
    from .audit.command import run

    return run(arguments)


def _add_smoke(parser: argparse.ArgumentParser) -> None:
    add_smoke_arguments(parser)
    parser.set_defaults(run=_smoke)


def _smoke(arguments: argparse.Namespace) -> int:
    from .smoke.command import run

    return run(arguments)


def _add_tree(parser: argparse.ArgumentParser) -> None:
    add_tree_arguments(parser)
    parser.set_defaults(run=_tree)


def _tree(arguments: argparse.Namespace) -> int:
    from .sketch.command import run

    return run(arguments)


def _add_patch(parser: argparse.ArgumentParser) -> None:
    add_patch_arguments(parser)
    parser.set_defaults(run=_patch)


def _patch(arguments: argparse.Namespace) -> int:
    from .patch.command import run

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())

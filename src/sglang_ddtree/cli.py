"""The command `sglang-ddtree`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from . import __version__
from .audit.command import add_arguments as add_audit_arguments
from .bench.arguments import add_arguments, join_server_args
from .patch.command import add_arguments as add_patch_arguments
from .sketch.command import add_arguments as add_tree_arguments
from .smoke.command import add_arguments as add_smoke_arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; the exit code is 0 when it found what it should."""
    parser = argparse.ArgumentParser(prog="sglang-ddtree", description="Tools of DDTREE for SGLang.")
    parser.add_argument("--version", action="version", version=f"sglang-ddtree {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_doctor(commands.add_parser("doctor", help="check whether DDTREE can start on this machine"))
    _add_bench(commands.add_parser("bench", help="measure AR, DFLASH and DDTREE on this machine"))
    _add_audit(
        commands.add_parser("audit", help="compare a running server's greedy texts with plain decoding's")
    )
    _add_smoke(commands.add_parser("smoke", help="test that a running server answers, with DDTREE"))
    _add_tree(commands.add_parser("tree", help="draw the tree of one decode step"))
    _add_patch(commands.add_parser("patch", help="make an SGLang without plugins load this package"))
    arguments = parser.parse_args(join_server_args(sys.argv[1:] if argv is None else argv))
    return int(arguments.run(arguments))


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--draft", metavar="PATH", help="a drafter to check, a folder or a hub id")
    parser.add_argument("--model", metavar="PATH", help="the target that the drafter is for")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    from .host import doctor

    findings = doctor.examine(arguments.draft, arguments.model)
    print(json.dumps(doctor.as_json(findings), indent=2) if arguments.json else doctor.as_text(findings))
    return 0 if doctor.would_start(findings) else 1


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

"""`sglang-ddtree smoke`: from the command line to one line per check."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial

from ..audit.report import about_plain
from ..client import RequestFailed
from ..usage import UsageError, require_server_url
from .checks import CHECKS, FAIL, OK, SKIPPED, Result, identity, perform
from .client import SmokeClient

FORMAT = 1
DESCRIPTION = """\
Ask a running server a few short questions: does it answer, stream, decode with DDTREE and accept draft tokens? With
--against, are its greedy texts those of a plain server of the same model?
"""
EPILOG = """\
example:
  sglang-ddtree smoke --base-url http://127.0.0.1:30000

exit code: 0 every check passed or was skipped; 1 a check failed; 2 wrong usage, or nobody answers at an address. With
--json there is a report in each case; "error" says why the checks were not made.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags on the subcommand's parser."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--base-url", required=True, metavar="URL", help="the server to test")
    add("--against", metavar="URL", help="a server of the same model with plain decoding")
    add("--json", action="store_true", help="print the report as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Test what the command line names; the exit code is that of the command."""
    found: list[Result] = []
    error: str | None = None
    asked = "identity"  # the check that fails where nobody answers
    try:
        server, plain = SmokeClient(require_server_url("--base-url", arguments.base_url)), None
        if arguments.against is not None:
            plain = SmokeClient(require_server_url("--against", arguments.against))
            about_plain(plain)
        asked = "health"
        for result in results(server, plain):
            found.append(result)
            if not arguments.json:
                print(f"{result.status:<7}  {result.check:<10}  {result.detail}", flush=True)
        code = 1 if any(result.status == FAIL for result in found) else 0
    except (UsageError, RequestFailed) as reason:
        error, code = str(reason), 2
        if isinstance(reason, RequestFailed) and reason.status is None:
            flag = "--base-url" if asked == "health" else "--against"
            error += f"; is the server up yet, and is {flag} right?"
        print(f"sglang-ddtree smoke: error: {error}", file=sys.stderr)
        if isinstance(reason, RequestFailed):
            found = _unanswered(asked, error, arguments.against is not None)
    except KeyboardInterrupt:
        error, code = "stopped before all checks were made", 130
        print("\nStopped.", file=sys.stderr)
    if arguments.json:
        report = {
            "format": FORMAT,
            "base_url": arguments.base_url,
            "against": arguments.against,
            "passed": code == 0,
            "error": error,
            "checks": [asdict(result) for result in found],
        }
        print(json.dumps(report, indent=2, ensure_ascii=False))
    return code


def _unanswered(asked: str, error: str, has_plain: bool) -> list[Result]:
    """The results where nobody answers the check `asked`: that one failed, the others were not made."""
    names = ["health", *(name for name, _ in CHECKS), *(["identity"] if has_plain else [])]
    return [
        Result(name, FAIL, error) if name == asked else Result(name, SKIPPED, f"{asked} failed")
        for name in names
    ]


def results(server: SmokeClient, plain: SmokeClient | None) -> Iterator[Result]:
    """One result per check, as each is done.

    A server that is not healthy is asked nothing else: each request might wait for its whole timeout.

    Raises:
        RequestFailed: nobody answers at the address.
    """
    checks = [(name, partial(check, server)) for name, check in CHECKS]
    if plain is not None:
        checks.append(("identity", partial(identity, server, plain)))
    try:
        server.health()
    except RequestFailed as error:
        if error.status is None:
            raise
        yield Result("health", FAIL, str(error))
        yield from (Result(name, SKIPPED, "the server is not healthy") for name, _ in checks)
        return
    yield Result("health", OK, "/health answers 200")
    yield from (perform(name, check) for name, check in checks)

"""`sglang-ddtree audit`: from the command line to the report."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..bench.progress import Progress
from ..bench.prompt_sets import ACCEPTED, Prompt, PromptError, read_file
from ..client import RequestFailed
from ..usage import UsageError, require_server_url
from .client import AuditClient, PlainAnswer
from .compare import BOUNDS, Divergence, compare, default_bound
from .report import FORMAT, Audited, Difference, Text, about, about_plain, as_json, as_text

CONTEXT = 16  # tokens shown before a difference
DESCRIPTION = """\
Compare the greedy texts of a running server with those of a plain one (no --speculative-algorithm), token for token.
At the first difference of each text the plain server's log-probabilities tell how far the other token was from the
one it chose: within the bound it is a near tie, which rounding can turn, beyond it a fault.
"""
EPILOG = f"""\
The default bound follows the plain server's dtype: {BOUNDS["bfloat16"]} nats in bfloat16, where logits between 16 and
32 are 0.125 apart and rounding may move each of the two tokens by two such steps; {BOUNDS["float16"]} in float16;
{BOUNDS["float32"]} in float32.

example:
  sglang-ddtree audit --base-url http://127.0.0.1:30000 --against http://127.0.0.1:30001 --prompts prompts.jsonl

exit code: 0 all texts identical or with a near tie only; 1 a fault; 2 wrong usage, or a server that does not answer.
Only the texts of --base-url decide between 0 and 1.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags on the subcommand's parser."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--base-url", required=True, metavar="URL", help="the server to audit")
    add("--against", required=True, metavar="URL", help="a server of the same model with plain decoding")
    add("--chain", metavar="URL", help="a third one, like DFLASH, whose rate of differences is told beside")
    add("--prompts", required=True, type=Path, metavar="FILE", help=f"JSONL; a row may be {ACCEPTED}")
    add("--limit", type=int, metavar="N", help="only the first N prompts")
    add("--max-tokens", type=int, default=256, metavar="N", help="per text (default: 256)")
    add("--concurrency", type=int, default=1, metavar="N", help="prompts in flight (default: 1)")
    add("--bound", type=float, metavar="NATS", help="the largest gap of a near tie (default: see below)")
    add("--json", type=Path, metavar="OUT", help="write the report, or why there is none, to this file, too")


def run(arguments: argparse.Namespace) -> int:
    """Audit what the command line asks for; the exit code is that of the command."""
    try:
        _check(arguments)
        prompts = read_file(arguments.prompts)[: arguments.limit]
        plain = AuditClient(arguments.against)
        plain_about = about_plain(plain)
        roles = {"--base-url": arguments.base_url, "--chain": arguments.chain}
        clients = {role: AuditClient(url) for role, url in roles.items() if url is not None}
        described = {role: about(client.base_url, client.info()) for role, client in clients.items()}
        bound = default_bound(plain_about["dtype"]) if arguments.bound is None else arguments.bound
        texts = audit(
            plain, list(clients.values()), prompts, arguments.max_tokens, arguments.concurrency, bound
        )
        audited = [
            Audited(role, described[role], column)
            for role, column in zip(clients, zip(*texts, strict=True), strict=True)
        ]
        if arguments.json is not None:
            _write(arguments.json, as_json(plain_about, audited, bound))
    except (UsageError, PromptError, RequestFailed) as error:
        print(f"sglang-ddtree audit: error: {error}", file=sys.stderr)
        _write_error(arguments.json, str(error))
        return 2
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        _write_error(arguments.json, "stopped before all texts were compared")
        return 130
    print(as_text(plain_about, audited, bound))
    return 1 if audited[0].faults else 0


def audit(
    plain: AuditClient,
    others: Sequence[AuditClient],
    prompts: Sequence[Prompt],
    max_tokens: int,
    concurrency: int,
    bound: float,
) -> list[list[Text]]:
    """Prompt -> server of `others` -> its text, compared with `plain`'s; `bound` in nats.

    Raises:
        RequestFailed: a server refused a prompt or went away.
    """

    def one(prompt: Prompt) -> list[Text]:
        try:
            ids = plain.encode(prompt.text)
            answer = plain.greedy_with_logprobs(ids, max_tokens)
            found = [
                _text(plain, prompt.name, ids, answer, other.greedy(ids, max_tokens), bound)
                for other in others
            ]
        except RequestFailed as error:
            raise RequestFailed(f"prompt {prompt.name}: {error}") from error
        progress.advance()
        return found

    with Progress(len(prompts)) as progress, ThreadPoolExecutor(concurrency) as pool:
        progress.say(f"{len(prompts)} prompts, {1 + len(others)} servers")
        try:
            return list(pool.map(one, prompts))
        finally:
            pool.shutdown(cancel_futures=True)


def _text(
    plain: AuditClient,
    name: str,
    input_ids: Sequence[int],
    answer: PlainAnswer,
    other: Sequence[int],
    bound: float,
) -> Text:
    def before(position: int) -> list[int]:
        return [*input_ids, *answer.output_ids[:position]]

    where = compare(
        answer, other, bound, lambda position, token: plain.gap_below_best(before(position), token)
    )
    if where is None:
        return Text(name, len(other), None)
    return Text(name, where.position + 1, _shown(plain, where, before(where.position)))


def _shown(plain: AuditClient, where: Divergence, before: Sequence[int]) -> Difference:
    tokens = dict.fromkeys(one for one in (where.plain, where.other, where.second) if one is not None)
    context, *texts = plain.decode([before[-CONTEXT:], *([one] for one in tokens)])
    return Difference(where, context, dict(zip(tokens, texts, strict=True)))


def _check(arguments: argparse.Namespace) -> None:
    """Raise `UsageError` naming the flag that cannot be used."""
    for flag in ("--base-url", "--against", "--chain"):
        url = getattr(arguments, flag[2:].replace("-", "_"))
        if url is not None:
            require_server_url(flag, url)
    for flag in ("--limit", "--max-tokens", "--concurrency"):
        number = getattr(arguments, flag[2:].replace("-", "_"))
        if number is not None and number < 1:
            raise UsageError(f"{flag} must be a whole number from 1, got {number}.")
    if arguments.bound is not None and not 0 <= arguments.bound < math.inf:
        raise UsageError(f"--bound must be a number of nats from 0, got {arguments.bound}.")
    if arguments.json is not None and not arguments.json.absolute().parent.is_dir():
        raise UsageError(f"--json {arguments.json}: there is no folder {arguments.json.absolute().parent}.")


def _write_error(path: Path | None, error: str) -> None:
    """Leave no report of an earlier audit that could be taken for this one's."""
    if path is not None:
        with suppress(UsageError):  # told already, or less than what is told
            _write(path, {"format": FORMAT, "error": error})


def _write(path: Path, report: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--json {path}: {error.strerror}.") from error

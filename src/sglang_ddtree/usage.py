"""What the subcommands ask of their command lines."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn
from urllib.parse import urlsplit

from .config import OPTIONS
from .host.checkpoint import is_missing

BUDGET = next(option for option in OPTIONS if option.field == "budget")


class UsageError(ValueError):
    """The command line, or what it names, does not fit; the message names the flag."""


class Parser(argparse.ArgumentParser):
    """Tells `on_error` what is wrong with the words before it ends the process."""

    on_error: Callable[[str], None] | None = None

    def error(self, message: str) -> NoReturn:
        if self.on_error is not None:
            self.on_error(message)
        super().error(message)


def require_server_url(flag: str, url: str) -> str:
    """`url`. Raises `UsageError` unless it is scheme, host and perhaps port."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"{flag} must be like http://127.0.0.1:30000, got {url}.")
    return url


def require_checkpoint(flag: str, path: str) -> None:
    """Raise `UsageError` unless `path` is there, or can be a hub id."""
    if is_missing(path):
        raise UsageError(f"{flag} {path}: no such folder.")


def own_flags(tool: str, *, model: str, draft: str, algorithm: str, budget: str) -> dict[str, str]:
    """The flags that `tool` sets on the servers that it starts -> the way to choose them, or that there is none."""
    return {
        "--model-path": model,
        "--model": model,
        "--speculative-algorithm": algorithm,
        "--speculative-draft-model-path": draft,
        "--speculative-draft-model": draft,
        BUDGET.flag: budget,
        "--host": f"the {tool} chooses it",
        "--port": f"the {tool} chooses it",
        "--api-key": f"the {tool} sends none",
    }


def add_server_arg(parser: argparse.ArgumentParser, whose: str) -> None:
    """Declare ``--server-arg``; the line must go through `join_server_args` before it is parsed."""
    parser.add_argument(
        "--server-arg",
        action="append",
        default=[],
        metavar="WORDS",
        help=f'words for {whose} command line: --server-arg="--page-size 16"; may be repeated',
    )


def join_server_args(argv: Sequence[str]) -> list[str]:
    """``--server-arg --flag`` as one word: argparse takes the second for a flag of its own otherwise."""
    words: list[str] = []
    for word in argv:
        if words and words[-1] == "--server-arg":
            words[-1] = f"--server-arg={word}"
        else:
            words.append(word)
    return words


def server_words(texts: Sequence[str], own: Mapping[str, str]) -> list[str]:
    """The words of all ``--server-arg``.

    Raises:
        UsageError: one does not parse, or is a flag of `own`, which the tool sets itself.
    """
    words: list[str] = []
    for text in texts:
        try:
            words += shlex.split(text)
        except ValueError as error:
            raise UsageError(f"--server-arg {text!r}: {error}.") from error
    for word in words:
        reason = own.get(word.partition("=")[0])
        if reason is not None:
            raise UsageError(f"--server-arg must not set {word.partition('=')[0]}: {reason}.")
    return words

"""What the subcommands ask of their command lines."""

from __future__ import annotations

from urllib.parse import urlsplit


class UsageError(ValueError):
    """The command line, or what it names, does not fit; the message names the flag."""


def require_server_url(flag: str, url: str) -> str:
    """`url`. Raises `UsageError` unless it is scheme, host and perhaps port."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"{flag} must be like http://127.0.0.1:30000, got {url}.")
    return url

"""The audit as plain data and as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..bench.table import aligned
from ..client import Client
from ..usage import UsageError
from .compare import Divergence

FORMAT = 1
HEADER = (
    "server",
    "texts",
    "identical",
    "near ties",
    "faults",
    "tokens",
    "differences per 1000 tokens",
)


@dataclass(frozen=True)
class Difference:
    """A divergence with what a reader sees: the text before it, and the text of each of its tokens."""

    where: Divergence
    context: str
    token_texts: Mapping[int, str]


@dataclass(frozen=True)
class Text:
    """One prompt's text of one server; `tokens` were compared, the first different one included."""

    prompt: str
    tokens: int
    difference: Difference | None


@dataclass(frozen=True)
class Audited:
    """All texts of one server. `role` is the flag that named it, `about` what it serves."""

    role: str
    about: Mapping[str, Any]
    texts: Sequence[Text]

    @property
    def name(self) -> str:
        return f"{self.role} ({self.about['algorithm']})"

    @property
    def differences(self) -> list[tuple[Text, Difference]]:
        return [(text, text.difference) for text in self.texts if text.difference is not None]

    @property
    def near_ties(self) -> int:
        return sum(one.where.is_near_tie for _, one in self.differences)

    @property
    def faults(self) -> int:
        return len(self.differences) - self.near_ties

    @property
    def tokens(self) -> int:
        return sum(text.tokens for text in self.texts)

    @property
    def per_1000_tokens(self) -> float:
        return 1000 * len(self.differences) / self.tokens


def about(url: str, info: Mapping[str, Any]) -> dict[str, Any]:
    """What the report tells of a server, from its ``/server_info``."""
    return {
        "url": url,
        "algorithm": info.get("speculative_algorithm") or "plain",
        "model": info.get("model_path"),
        "dtype": info.get("dtype"),
        "sglang": info.get("version"),
        "launch_command": info.get("launch_command"),
    }


def about_plain(server: Client) -> dict[str, Any]:
    """The same of the server behind --against. Raises `UsageError` when it does not decode plainly."""
    found = about(server.base_url, server.info())
    if found["algorithm"] != "plain":
        raise UsageError(f"--against must decode plainly; {server.base_url} runs {found['algorithm']}.")
    return found


def as_json(plain: Mapping[str, Any], audited: Sequence[Audited], bound: float) -> dict[str, Any]:
    """Everything, ready for JSON; gaps and the bound in nats."""
    return {
        "format": FORMAT,
        "bound_nats": bound,
        "plain": dict(plain),
        "servers": [
            {
                "role": one.role,
                **one.about,
                "texts": len(one.texts),
                "identical": len(one.texts) - len(one.differences),
                "near_ties": one.near_ties,
                "faults": one.faults,
                "tokens": one.tokens,
                "differences_per_1000_tokens": one.per_1000_tokens,
                "differences": [
                    {
                        "prompt": text.prompt,
                        "verdict": _verdict(found),
                        **asdict(found.where),
                        "context": found.context,
                        "token_texts": {str(token): one for token, one in found.token_texts.items()},
                    }
                    for text, found in one.differences
                ],
            }
            for one in audited
        ],
    }


def as_text(plain: Mapping[str, Any], audited: Sequence[Audited], bound: float) -> str:
    """Every difference, the faults last, then the table and the servers."""
    lines: list[str] = []
    for one in audited:
        for text, found in sorted(one.differences, key=lambda pair: not pair[1].where.is_near_tie):
            lines += [*_difference(one.name, text.prompt, found, bound), ""]
    rows = [
        (
            one.name,
            str(len(one.texts)),
            str(len(one.texts) - len(one.differences)),
            str(one.near_ties),
            str(one.faults),
            str(one.tokens),
            f"{one.per_1000_tokens:.2f}",
        )
        for one in audited
    ]
    lines += [*aligned([HEADER, *rows]), ""]
    servers = [("--against", plain), *((one.role, one.about) for one in audited)]
    lines += [
        f"{role}: {server['algorithm']}, {server['model']}, dtype {server['dtype']}, {server['url']}"
        for role, server in servers
    ]
    return "\n".join(lines)


def _difference(name: str, prompt: str, found: Difference, bound: float) -> Iterator[str]:
    where = found.where
    yield f"{_verdict(found).upper()}: {name}, prompt {prompt}, token {where.position}"
    yield f"  behind      {found.context!r}"
    yield f"  --against   {_token(found, where.plain)}"
    below = "" if where.gap is None else f", {where.gap:.4f} nats below (bound {bound:g})"
    yield f"  {name.partition(' ')[0]:<10}  {_token(found, where.other)}{below}"
    if where.top_gap is not None and where.other != where.second:
        yield f"  second      {_token(found, where.second)}, {where.top_gap:.4f} nats below"


def _token(found: Difference, token: int | None) -> str:
    return "(the text had ended)" if token is None else f"{found.token_texts[token]!r} ({token})"


def _verdict(found: Difference) -> str:
    return "near tie" if found.where.is_near_tie else "fault"

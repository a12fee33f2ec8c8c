"""What the demo measures: tokens against target forwards, and whether the tokens are plain decoding's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

LABELS = {"plain": "plain", "dflash": "DFLASH (chain)", "ddtree": "DDTREE"}


@dataclass(frozen=True)
class Figures:
    """One way of decoding, all prompts together.

    `target_forwards` counts every forward of the target that a request took part in, its prompt's included:
    plain decoding needs one per token.
    """

    tokens: int
    target_forwards: int
    accept_length: float  # tokens per target forward
    identical: bool  # every output token id equals plain decoding's


def figures(answers: Sequence[Mapping[str, Any]], plain: Sequence[Mapping[str, Any]]) -> Figures:
    """The figures of one server's ``/generate`` answers, compared with the plain server's to the same."""
    tokens = sum(len(answer["output_ids"]) for answer in answers)
    forwards = sum(target_forwards(answer) for answer in answers)
    identical = [answer["output_ids"] for answer in answers] == [answer["output_ids"] for answer in plain]
    return Figures(tokens, forwards, round(tokens / forwards, 3), identical)


def target_forwards(answer: Mapping[str, Any]) -> int:
    """Forwards of the target for one answer: the prompt's and one per verify step, or one per token."""
    # SGLang leaves spec_verify_ct out where no step verified a draft.
    verify_steps = answer["meta_info"].get("spec_verify_ct", 0)
    return 1 + verify_steps if verify_steps else len(answer["output_ids"])


def as_json(measured: Mapping[str, Figures]) -> dict[str, dict[str, Any]]:
    return {name: asdict(one) for name, one in measured.items()}


def table(measured: Mapping[str, Figures]) -> str:
    """The figures as lines of text, one per way of decoding."""
    rows = [("", "tokens", "target forwards", "acceptance length", "identical to plain")]
    for name, one in measured.items():
        same = "yes" if one.identical else "no"
        rows.append(
            (LABELS[name], str(one.tokens), str(one.target_forwards), f"{one.accept_length:.2f}", same)
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])] + [
            cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)

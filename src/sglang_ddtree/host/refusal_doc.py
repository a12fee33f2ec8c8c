"""What DDTREE refuses, as a page: `python -m sglang_ddtree.host.refusal_doc`."""

from __future__ import annotations

from .admission import request_refusal_table
from .refusals import refusal_table


def page() -> str:
    """Markdown, made from the tables that the refusals themselves read."""
    lines = [
        "# What DDTREE refuses",
        "",
        "Made from the code by `scripts/refusal-tables`.",
        "",
        "## Server options and targets, at startup",
        "",
        "| option | allowed | why |",
        "|---|---|---|",
        *(f"| {row['option']} | {row['allowed']} | {row['why']} |" for row in refusal_table()),
        "",
        "## Request fields, with HTTP 400",
        "",
        "| field | why | what to do |",
        "|---|---|---|",
        *(f"| `{row['field']}` | {row['why']} | {row['fix']} |" for row in request_refusal_table()),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(), end="")

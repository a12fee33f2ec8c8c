"""Checks the SGLang at hand against the table of names that this package uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .. import __version__
from ..cpu.platform import is_selected
from .admission import FIELD_ROWS
from .contract_table import ROWS, SERVER_ARGS_FIELDS, Row
from .refusal_rows import OPTION_ROWS
from .source_tree import SourceTree, installed_root

TESTED_VERSIONS = ("0.5.23",)


@dataclass(frozen=True)
class Mismatch:
    """A name of SGLang that is not what the package was written against."""

    name: str
    expected: str
    found: str
    used_by: str

    def __str__(self) -> str:
        return f"{self.name}: expected {self.expected}, found {self.found} (used by {self.used_by})"


def check_contract(root: Path | None = None) -> list[Mismatch]:
    """The names that the SGLang in the package folder `root`, by default the installed one, does not offer.

    Parses its source files; imports nothing of it. An absent SGLang is one mismatch.
    """
    root = root or installed_root()
    if root is None:
        return [Mismatch("sglang", f"version {' or '.join(TESTED_VERSIONS)}", "not installed", "everything")]
    return list(_mismatches(SourceTree(root)))


def found_version(root: Path | None = None) -> str:
    """The version of that SGLang, "not installed" or "unknown"."""
    root = root or installed_root()
    return SourceTree(root).version() if root else "not installed"


def describe(mismatches: Iterable[Mismatch], root: Path | None = None) -> str:
    """The one error text for all mismatches: SGLang found, names, versions tested, what to do."""
    listed = "".join(f"\n  {mismatch}" for mismatch in mismatches)
    return (
        f"sglang_ddtree {__version__} does not fit SGLang {found_version(root)}: DDTREE is not registered. "
        f"Missing or changed:{listed}\n"
        f"Tested with SGLang {', '.join(TESTED_VERSIONS)}. "
        f"Fix: pip install sglang=={TESTED_VERSIONS[-1]}, or a release of sglang-ddtree for this SGLang."
    )


def all_rows() -> list[Row]:
    """The written table and the rows that follow from the request refusals."""
    return [*ROWS, *_request_rows()]


def _request_rows() -> Iterator[Row]:
    # Two refusals may read the same attribute.
    for attribute in dict.fromkeys(row.attribute for row in FIELD_ROWS):
        if attribute.startswith("sampling_params."):
            name = attribute.replace("sampling_params", "SamplingParams")
            yield Row("sglang.srt.sampling.sampling_params", name, None, "host.admission")
        else:
            yield Row("sglang.srt.managers.schedule_batch", f"Req.{attribute}", None, "host.admission")


def _mismatches(tree: SourceTree) -> Iterator[Mismatch]:
    for row in all_rows():
        if row.used_by.startswith("cpu.") and not is_selected():
            continue
        name = f"{row.module}.{row.name}"
        definition = tree.find(row.module, row.name)
        if definition is None:
            yield Mismatch(name, _call(row.parameters), "nothing", row.used_by)
        elif row.parameters is not None and tree.signature(definition) != row.parameters:
            yield Mismatch(name, _call(row.parameters), _call(tree.signature(definition)), row.used_by)
    fields = tree.server_args_fields()
    for field in sorted({*SERVER_ARGS_FIELDS, *(row.field for row in OPTION_ROWS)} - fields):
        yield Mismatch(f"sglang.srt.server_args.ServerArgs.{field}", "a field", "nothing", "host.refusals")


def _call(parameters: str | None) -> str:
    return "a definition" if parameters is None else f"({parameters})"

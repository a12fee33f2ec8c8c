"""`sglang-ddtree patch`: from the command line to the report."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ..host.source_tree import installed_root
from ..usage import UsageError
from .installation import ORIGINAL, PATCHED, Installation, inspect
from .operations import Refused, apply, revert
from .series import versions
from .transaction import Failed
from .unified import DiffError

DESCRIPTION = f"""\
Make SGLang {", ".join(versions())} load this package by itself, for an installation that does not find its entry point
or leaves it out (SGLANG_PLUGINS, a vendored SGLang, a package that is only on PYTHONPATH). Restart running servers
afterwards.
"""
EPILOG = """\
exit code: 0 done, or for status patched or original in full; 1 refused and nothing changed, or for status anything
else; 2 wrong usage, no SGLang there, or an error on the way.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the action and the flags on the subcommand's parser."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add(
        "action",
        choices=("status", "apply", "revert"),
        help="apply and revert also repair what was interrupted",
    )
    target_help = "SGLang's package folder, which holds srt/ (default: the installed one)"
    add("--target", type=Path, metavar="DIR", help=target_help)
    add("--json", action="store_true", help="print the report as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Do what the command line asks for; the exit code is that of the command."""
    report: dict[str, Any] = {"action": arguments.action, "done": False, "message": "", "problems": []}
    try:
        root = _root(arguments.target)
        code = _act(arguments.action, root, report)
        report |= _described(inspect(root))
    except (UsageError, DiffError, OSError) as error:
        report["message"], code = str(error), 2
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        print(_as_text(report), file=sys.stderr if code == 2 or report["problems"] else sys.stdout)
    return code


def _act(action: str, root: Path, report: dict[str, Any]) -> int:
    if action == "status":
        installation = inspect(root)
        report["message"] = installation.describe()
        report["done"] = installation.state in (ORIGINAL, PATCHED)
        return 0 if report["done"] else 1
    try:
        report["message"] = apply(root) if action == "apply" else revert(root)
    except Refused as refused:
        report["message"] = "refused, nothing was changed"
        report["problems"] = [vars(problem) for problem in refused.problems]
        return 1
    except Failed as error:
        report["message"] = str(error)
        return 2
    report["done"] = True
    return 0


def _root(target: Path | None) -> Path:
    root = target or installed_root()
    if root is None:
        raise UsageError("SGLang is not installed for this Python; --target names its package folder.")
    if not (root / "srt").is_dir():
        hint = f" Try --target {root / 'sglang'}." if (root / "sglang" / "srt").is_dir() else ""
        raise UsageError(f"{root} is not SGLang's package folder: it holds no srt/.{hint}")
    return root


def _described(installation: Installation) -> dict[str, Any]:
    return {
        "target": str(installation.root),
        "version": installation.version,
        "state": installation.state,
        "files": [
            {
                "file": file.patch.file,
                "state": file.state,
                "found": file.found,
                "original": file.patch.original,
                "patched": file.patch.patched,
                "patch": file.patch.name,
                "purpose": file.patch.purpose,
            }
            for file in installation.files
        ],
    }


def _as_text(report: dict[str, Any]) -> str:
    if "state" not in report:
        return f"sglang-ddtree patch: error: {report['message']}"
    lines = [f"SGLang {report['version']} in {report['target']}: {report['state']}", report["message"]]
    for problem in report["problems"]:
        lines.append("  {file}\n    found    {found}\n    expected {expected}\n    {fix}".format(**problem))
    if not report["problems"]:
        for file in report["files"]:
            lines.append(f"  {file['state']:<8}  {file['file']}  ({file['purpose']})")
            if file["state"] == "changed":
                lines.append(f"    found    {file['found']}")
                lines.append(f"    expected {file['original']} (original) or {file['patched']} (patched)")
    if report["done"] and report["action"] != "status":
        lines.append("Restart servers afterwards.")
    return "\n".join(lines)

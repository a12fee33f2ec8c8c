"""What the templates of `scripts/deploy` are held against: SGLang's own parsers and sources."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Sequence
from pathlib import Path

from sglang_ddtree.host.source_tree import installed_root

FOLDER = Path(__file__).parents[3] / "scripts" / "deploy"


def parse_server_flags(words: Sequence[str]) -> argparse.Namespace:
    """What `sglang.launch_server` reads from `words`; call it with the plugins loaded.

    Raises:
        SystemExit: a flag is unknown or its value is none that it takes.
    """
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(exit_on_error=False)
    ServerArgs.add_cli_args(parser)
    return parser.parse_args(list(words))


def draining_signal() -> str:
    """The signal at which SGLang lets running requests finish, from the source of its TokenizerManager."""
    root = installed_root()
    assert root is not None
    tree = ast.parse((root / "srt/managers/tokenizer_manager.py").read_text())
    drains = {
        function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        and any(
            isinstance(node, ast.Assign) and ast.unparse(node).endswith("gracefully_exit = True")
            for node in ast.walk(function)
        )
    }
    (found,) = (
        ast.unparse(call.args[0]).removeprefix("signal.")
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and ast.unparse(call.func).endswith("add_signal_handler")
        and ast.unparse(call.args[1]).rpartition(".")[2] in drains
    )
    return found

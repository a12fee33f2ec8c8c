"""DDTREE's options on SGLang's own surfaces: command line, YAML file, `Engine(...)`, `/server_info`.

The values travel on the `ServerArgs` record as one bookkeeping attribute, which its pickling keeps, so
that the scheduler process reads what the launcher was given.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..config import ALGORITHM, OPTIONS, DDTreeConfig, Option
from .hooks import declare

_ATTRIBUTE = "_ddtree_options"
_ENGINE_MODULE = "sglang.srt.entrypoints.engine"


def install() -> None:
    """Declare the hooks that add, keep and show the options; teach `Engine` its keywords."""
    record = "sglang.srt.server_args.ServerArgs"
    declare(f"{record}.add_cli_args", "after", "adds the DDTREE flags to the parser", _add_cli_args)
    declare(f"{record}.from_cli_args", "after", "keeps the DDTREE flags on the record", _from_cli_args)
    declare(f"{record}.resolved_dict", "after", "shows the DDTREE flags in /server_info", _resolved_dict)
    # A worker process never builds an Engine; importing it there would cost seconds.
    if _ENGINE_MODULE in sys.modules or multiprocessing.parent_process() is None:
        _teach_engine()


def ddtree_config(server_args: Any) -> DDTreeConfig:
    """The options of this server, defaults filled in; `server_args` is a record or a view of one.

    Raises `ValueError` when a value is out of range.
    """
    return DDTreeConfig(**getattr(server_args, _ATTRIBUTE, None) or {})


def set_options(server_args: Any, **options: int | bool | str) -> None:
    """Put options, named as in `DDTreeConfig`, on a `ServerArgs` record that is not yet resolved.

    Raises `ValueError` for a value out of range and for options given to another algorithm.
    """
    DDTreeConfig(**options)  # type: ignore[arg-type]
    algorithm = server_args.speculative_algorithm
    if options and str(algorithm).upper() != ALGORITHM:
        given = ", ".join(f"{o.flag} {options[o.field]}" for o in OPTIONS if o.field in options)
        raise ValueError(
            f"{given}: only --speculative-algorithm {ALGORITHM} reads this, the algorithm is {algorithm}. "
            f"Set --speculative-algorithm {ALGORITHM} or leave the option out."
        )
    setattr(server_args, _ATTRIBUTE, dict(options))


def _add_cli_args(result: None, parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("DDTREE speculative decoding (sglang-ddtree)")
    for option in OPTIONS:
        # No argparse default: only so does the record know what the user wrote.
        if option.is_switch:
            group.add_argument(
                option.flag, action="store_true", default=None, help=f"{option.help} Default: false."
            )
        else:
            group.add_argument(
                option.flag,
                type=_number(option),
                default=None,
                metavar="N" if option.word is None else f"{option.word}|N",
                help=f"{option.help} Default: {option.default_text or option.default}, "
                f"range: {option.low}..{option.high}.",
            )


def _number(option: Option) -> Callable[[str], int | str]:
    def parse(text: str) -> int | str:
        try:
            return option.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"must be {option.allowed}, got {text!r}") from error

    return parse


def _from_cli_args(result: Any, cls: type, args: argparse.Namespace) -> Any:
    options = _given(vars(args))
    _require_config_was_read(getattr(args, "config", None), result.speculative_algorithm, options)
    set_options(result, **options)
    return result


def _require_config_was_read(path: str | None, algorithm: str | None, options: dict[str, Any]) -> None:
    # SGLang replaces the words "--config FILE" by what the file holds, so a path that is left over was not
    # read, and a server that the file meant to run DDTREE would start plain.
    if path is None:
        return
    if str(algorithm).upper() == ALGORITHM or options or _mentions_ddtree(path):
        raise ValueError(
            f"--config={path}: SGLang reads a config file only when the flag and the file are two words. "
            f"Write --config {path}"
        )


def _mentions_ddtree(path: str) -> bool:
    try:
        return ALGORITHM in Path(path).read_text(errors="replace").upper()
    except (OSError, ValueError):
        return False


def _resolved_dict(result: dict[str, Any], server_args: Any) -> dict[str, Any]:
    if str(result.get("speculative_algorithm")).upper() == ALGORITHM:
        result.update(_shown(server_args))
    return result


def _shown(server_args: Any) -> dict[str, Any]:
    from sglang.srt.arg_groups.overrides import model_config_of, resolved_view

    from .budget import budget_of

    config = ddtree_config(server_args)
    shown = config.as_server_info()
    if config.budget is None:
        budget = budget_of(resolved_view(server_args), config, model_config_of(server_args))
        shown["speculative_ddtree_budget"] = budget
    return shown


def _given(values: dict[str, Any]) -> dict[str, Any]:
    found = {option.field: values.get(option.attribute) for option in OPTIONS}
    return {field: value for field, value in found.items() if value is not None}


class _EngineServerArgs:
    """Stands in for `Engine.server_args_class`: takes the DDTREE keywords, passes the others on."""

    def __init__(self, inner: Callable[..., Any]) -> None:
        self.inner = inner

    def __call__(self, **kwargs: Any) -> Any:
        options = _given(kwargs)
        names = {option.attribute for option in OPTIONS}
        record = self.inner(**{name: value for name, value in kwargs.items() if name not in names})
        set_options(record, **options)
        return record


def _teach_engine() -> None:
    from sglang.srt.entrypoints.engine import Engine

    if not isinstance(Engine.server_args_class, _EngineServerArgs):
        Engine.server_args_class = _EngineServerArgs(Engine.server_args_class)

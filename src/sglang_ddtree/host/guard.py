"""Makes a request for DDTREE fail with the reason when DDTREE could not be registered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..config import ALGORITHM, OPTIONS


def install(message: str) -> None:
    """Raise `RuntimeError(message)` where SGLang meets the name DDTREE or a DDTREE flag.

    Does nothing to any other server. An SGLang that lacks one of the two places only logs that, and
    answers with its own "unknown" error.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    prefix = OPTIONS[0].flag.removesuffix(OPTIONS[0].field)

    def refuse_flags(argv: list[str], *args: Any, **kwargs: Any) -> None:
        if any(str(argument).startswith(prefix) for argument in argv):
            raise RuntimeError(message)

    def refuse_name(original: Callable[..., Any], cls: type, name: str | None) -> Any:
        if str(name).upper() == ALGORITHM:
            raise RuntimeError(message)
        return original(cls, name)

    HookRegistry.register("sglang.srt.server_args.prepare_server_args", refuse_flags, HookType.BEFORE)
    HookRegistry.register(
        "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.from_string", refuse_name, HookType.AROUND
    )

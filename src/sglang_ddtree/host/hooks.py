"""The hooks that this package puts on SGLang, each with its reason, and the proof that they hold."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["before", "after", "around", "replace"]


@dataclass(frozen=True)
class Hook:
    """`function` runs before, after, around or instead of `target`, a dotted path into SGLang."""

    target: str
    kind: Kind
    reason: str
    function: Callable[..., Any]


_declared: list[Hook] = []


def declare(target: str, kind: Kind, reason: str, function: Callable[..., Any]) -> None:
    """Register `function` as a hook on `target`; declaring the same hook again does nothing.

    SGLang applies the hooks after every plugin has loaded and only logs one that it cannot apply:
    call `verify_applied` before relying on them.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    hook = Hook(target, kind, reason, function)
    if hook in _declared:
        return
    _declared.append(hook)
    HookRegistry.register(target, function, HookType(kind))


def declared() -> tuple[Hook, ...]:
    """The hooks declared so far in this process."""
    return tuple(_declared)


def unapplied() -> list[Hook]:
    """The declared hooks that a call of their target would not run."""
    return [hook for hook in _declared if not _is_applied(hook)]


def verify_applied() -> None:
    """Raise `RuntimeError` naming every declared hook that is not in effect in this process."""
    missing = unapplied()
    if missing:
        listed = "; ".join(f"{hook.kind} {hook.target} ({hook.reason})" for hook in missing)
        raise RuntimeError(
            f"DDTREE cannot start: SGLang did not apply {len(missing)} of {len(_declared)} hooks: {listed}. "
            'Its log names the cause ("Failed to apply hooks to ..."); `sglang-ddtree doctor` shows all.'
        )


def _is_applied(hook: Hook) -> bool:
    # The registry's own record is not enough: a target that another plugin had hooked before is marked
    # as patched and skips ours. So look for our function in the chain of wrappers that is called.
    owner_path, _, name = hook.target.rpartition(".")
    try:
        owner = pkgutil.resolve_name(owner_path)
    except (ImportError, AttributeError):
        return False
    current = vars(owner).get(name)
    while current is not None:
        current = getattr(current, "__func__", current)  # below @staticmethod and @classmethod
        if current is hook.function:
            return True
        cells = getattr(current, "__closure__", None) or ()
        if any(_content(cell) is hook.function for cell in cells):
            return True
        current = getattr(current, "__wrapped__", None)
    return False


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return None

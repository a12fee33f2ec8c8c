"""A hook counts as applied only when a call of its target runs it."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator

import pytest

from sglang_ddtree.host import hooks

pytestmark = pytest.mark.usefixtures("sglang_with_plugins")


@pytest.fixture
def victim(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A module with a function, a class method and a static method to hook."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    module = types.ModuleType("ddtree_hook_victim")

    class Owner:
        @classmethod
        def of_class(cls) -> str:
            return "plain"

        @staticmethod
        def of_none() -> str:
            return "plain"

    module.function = lambda: "plain"  # type: ignore[attr-defined]
    module.Owner = Owner  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(hooks, "_declared", [])
    yield module
    for target in [t for t in HookRegistry._hooks if t.startswith(module.__name__)]:
        del HookRegistry._hooks[target]
        HookRegistry._patched.discard(target)


def hooked(result: str, *args: object) -> str:
    return "hooked"


@pytest.mark.parametrize("name", ["function", "Owner.of_class", "Owner.of_none"])
def test_applied_hook_is_recognised(victim: types.ModuleType, name: str) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry

    hooks.declare(f"{victim.__name__}.{name}", "after", "a test", hooked)
    assert [hook.target for hook in hooks.unapplied()] == [f"{victim.__name__}.{name}"]
    HookRegistry.apply_hooks()
    hooks.verify_applied()


def test_hook_on_a_missing_name_is_named(victim: types.ModuleType) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry

    hooks.declare(f"{victim.__name__}.gone", "after", "keeps the tests honest", hooked)
    HookRegistry.apply_hooks()
    with pytest.raises(RuntimeError, match=r"1 of 1 hooks: after .*\.gone \(keeps the tests honest\)"):
        hooks.verify_applied()


def test_hook_on_a_target_that_was_patched_before_is_named(victim: types.ModuleType) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    target = f"{victim.__name__}.function"
    HookRegistry.register(target, lambda result: "other", HookType.AFTER)
    HookRegistry.apply_hooks()
    hooks.declare(target, "after", "comes too late", hooked)
    HookRegistry.apply_hooks()
    assert target in HookRegistry._patched
    assert victim.function() == "other"
    with pytest.raises(RuntimeError, match="comes too late"):
        hooks.verify_applied()


def test_declaring_twice_hooks_once(victim: types.ModuleType) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry

    for _ in range(2):
        hooks.declare(f"{victim.__name__}.function", "after", "a test", hooked)
    assert len(hooks.declared()) == 1
    assert len(HookRegistry._hooks[f"{victim.__name__}.function"]) == 1


def test_every_hook_of_the_package_is_applied() -> None:
    assert len(hooks.declared()) >= 5
    hooks.verify_applied()

from __future__ import annotations

import ast
import inspect
import linecache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from sglang_ddtree.cpu import shims
from sglang_ddtree.cpu.shims import Shim, shim_status


def shim(name: str, *, needed: bool = True, fails: bool = False, calls: list[str] | None = None) -> Shim:
    def apply() -> None:
        if fails:
            raise AttributeError("no such name")
        if calls is not None:
            calls.append(name)

    return Shim(name=name, answers="srt/file.py:1", why="a reason", needed=lambda: needed, apply=apply)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shims, "_outcomes", {})


def test_each_needed_shim_is_applied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    table = (shim("first", calls=calls), shim("idle", needed=False, calls=calls), shim("last", calls=calls))
    monkeypatch.setattr(shims, "SHIMS", table)
    monkeypatch.setenv("SGLANG_PLATFORM", "ddtree_cpu")
    shims.load()
    assert [row["status"] for row in shim_status()] == ["applied", "not needed", "applied"]
    assert calls == ["first", "last"]


def test_a_shim_that_does_not_fit_is_refused_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shims, "SHIMS", (shim("broken", fails=True), shim("sound")))
    monkeypatch.setenv("SGLANG_PLATFORM", "ddtree_cpu")
    broken, sound = shim_status()
    assert (broken["status"], broken["reason"]) == ("refused", "AttributeError: no such name")
    assert sound["status"] == "applied"


@pytest.mark.parametrize("platform", [None, "npu"])
def test_another_platform_gets_no_shim(monkeypatch: pytest.MonkeyPatch, platform: str | None) -> None:
    calls: list[str] = []
    monkeypatch.setattr(shims, "SHIMS", (shim("first", calls=calls),))
    monkeypatch.delenv("SGLANG_PLATFORM", raising=False)
    if platform is not None:
        monkeypatch.setenv("SGLANG_PLATFORM", platform)
    shims.load()
    assert calls == []
    assert shim_status()[0]["status"] == "not needed"


LINES = {
    "absent-torchvision": "import torchvision",
    "attention-backend": "DRAFT_ATTENTION_BACKEND_CHOICES",
    "record-stream": "record_stream",
    "input-embeds-dtype": "bfloat16()",
    "last-loc": "get_last_loc_triton",
    "assign-rows": "assign_req_to_token_pool[",
    "pin-memory": "track_mask_cpu.pin_memory()",
    **{
        function.strip("_").replace("_", "-"): launches
        for _, function, _, launches, _ in shims._HYBRID_KERNELS
    },
}


@pytest.mark.skipif(version("sglang") != "0.5.23", reason="the line numbers are SGLang 0.5.23's")
def test_every_shim_names_the_line_it_answers() -> None:
    spec = find_spec("sglang")
    assert spec is not None
    assert spec.origin is not None
    for one in shims.SHIMS:
        path, _, number = one.answers.partition(":")
        assert LINES[one.name] in linecache.getline(str(Path(spec.origin).parent / path), int(number))


def source_of(module: str) -> str:
    """Without importing SGLang, which would settle on a platform for the whole process."""
    spec = find_spec("sglang")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent.joinpath(*module.split(".")[1:]).with_suffix(".py").read_text()


@pytest.mark.parametrize("row", shims._HYBRID_KERNELS, ids=lambda row: row[1])
def test_a_replacement_takes_the_parameters_of_its_kernel(row: tuple[str, str, int, str, Any]) -> None:
    module, name, _, _, replacement = row
    tree = ast.parse(source_of(module))
    (kernel,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    given = kernel.args
    wanted = [argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    found = inspect.signature(replacement).parameters
    assert [one for one in found if one != "kwargs"] == wanted
    assert ("kwargs" in found) == (given.kwarg is not None)

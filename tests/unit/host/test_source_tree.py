"""Names are found by parsing, wherever a package defines, imports or inherits them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_ddtree.host.source_tree import SourceTree

FILES = {
    "_version.py": "__version__ = version = '9.9.9'\n",
    "srt/plain.py": (
        "import torch\nLIMIT = 3\nannotated: int\n"
        "def function(a, /, b, *rest, c=1, **more): ...\n"
        "class Base:\n    def inherited(self, x): ...\n"
        "class Owner(Base):\n    field: int = 1\n"
        "    def __init__(self):\n        self.attribute = 1\n"
        "    @property\n    def prop(self): ...\n"
    ),
    "srt/package/__init__.py": (
        "from .inner import renamed as offered\nfrom sglang.srt.package import circular\n"
    ),
    "srt/package/inner.py": (
        "from sglang.srt.plain import function as renamed\nfrom torch import nn as outside\n"
    ),
    "srt/guarded.py": "try:\n    from sglang.srt.plain import Owner\nexcept ImportError:\n    Owner = None\n",
    "srt/rebound.py": "class Built:\n    def method(self, y): ...\nBuilt = make(Built)\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> SourceTree:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return SourceTree(tmp_path)


@pytest.mark.parametrize(
    ("module", "name", "signature"),
    [
        ("sglang.srt.plain", "function", "a, /, b, *rest, c, **more"),
        ("sglang.srt.plain", "Owner.inherited", "self, x"),
        ("sglang.srt.plain", "Owner.prop", "self"),
        ("sglang.srt.plain", "Owner.field", None),
        ("sglang.srt.plain", "Owner.attribute", None),
        ("sglang.srt.plain", "LIMIT", None),
        ("sglang.srt.plain", "annotated", None),
        ("sglang.srt.package", "offered", "a, /, b, *rest, c, **more"),
        ("sglang.srt.package.inner", "outside", None),
        ("sglang.srt.guarded", "Owner.inherited", "self, x"),
        ("sglang.srt.rebound", "Built.method", "self, y"),
    ],
)
def test_found_with_its_signature(tree: SourceTree, module: str, name: str, signature: str | None) -> None:
    definition = tree.find(module, name)
    assert definition is not None
    assert tree.signature(definition) == signature


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("sglang.srt.absent", "function"),
        ("sglang.srt.plain", "absent"),
        ("sglang.srt.plain", "Owner.absent"),
        ("sglang.srt.plain", "function.member"),
        ("sglang.srt.package", "circular"),
    ],
)
def test_not_found(tree: SourceTree, module: str, name: str) -> None:
    assert tree.find(module, name) is None


def test_version_is_the_stated_one(tree: SourceTree, tmp_path: Path) -> None:
    assert tree.version() == "9.9.9"
    (tmp_path / "_version.py").unlink()
    assert SourceTree(tmp_path).version() == "unknown"

"""SGLang with this package's plugins loaded, once for all tests of this folder that need it."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest


@pytest.fixture(scope="session")
def sglang_with_plugins() -> None:
    torch = pytest.importorskip("torch")
    if find_spec("sglang") is None:
        pytest.fail("these tests need SGLang: install the CPU set or `pip install sglang==0.5.23`")
    if not torch.cuda.is_available():
        os.environ.setdefault("SGLANG_PLATFORM", "ddtree_cpu")
    from sglang.srt.plugins import load_plugins

    load_plugins()

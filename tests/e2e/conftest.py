"""Checkpoints, the oracle and servers, made once a session."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

from e2e import checkpoints, hybrid_checkpoints, serving
from e2e.hf import GreedyOracle

# Threads that wait for each other at every product come to a halt beside a busy server.
torch.set_num_threads(1)

Launch = Callable[..., AbstractContextManager[serving.Server]]


@pytest.fixture(scope="session")
def checkpoint_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="session")
def tiny_target(checkpoint_root: Path) -> Path:
    return checkpoints.make_target(checkpoint_root / "target")


@pytest.fixture(scope="session")
def tiny_drafter(checkpoint_root: Path) -> Path:
    """Block size 16."""
    return checkpoints.make_drafter(checkpoint_root / "drafter-16", block_size=16)


@pytest.fixture(scope="session")
def tiny_drafter_8(checkpoint_root: Path) -> Path:
    return checkpoints.make_drafter(checkpoint_root / "drafter-8", block_size=8)


@pytest.fixture(scope="session")
def tiny_drafters(tiny_drafter: Path, tiny_drafter_8: Path) -> dict[int, Path]:
    """Block size -> drafter."""
    return {16: tiny_drafter, 8: tiny_drafter_8}


@pytest.fixture(scope="session")
def oracle(tiny_target: Path) -> GreedyOracle:
    return GreedyOracle(tiny_target)


@pytest.fixture(scope="session")
def hybrid_target(checkpoint_root: Path) -> Path:
    """Gated DeltaNet layers and full attention, in Qwen3.5's form."""
    return hybrid_checkpoints.make_hybrid_target(checkpoint_root / "hybrid", "qwen3_5")


@pytest.fixture(scope="session")
def hybrid_oracle(hybrid_target: Path) -> GreedyOracle:
    return GreedyOracle(hybrid_target)


@pytest.fixture(scope="session")
def demo_target() -> Path:
    """SmolLM2-135M-Instruct, prepared on the first use (93 MB download)."""
    from sglang_ddtree.demo.target import prepare

    return prepare()


@pytest.fixture(scope="session")
def demo_drafter() -> Path:
    from sglang_ddtree.demo import DRAFTER

    return DRAFTER


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """``with launch(model, page_size=4, ...) as server``; see `serving.launch`.

    The servers' logs stay in pytest's base folder.
    """
    folder = tmp_path_factory.mktemp("servers")
    numbers = itertools.count(1)

    def start(model: Path, **options: Any) -> AbstractContextManager[serving.Server]:
        return serving.launch(model, folder / f"server-{next(numbers)}.log", **options)

    return start

"""The entry point that SGLang calls in each of its processes before arguments are parsed."""

from __future__ import annotations

import logging
import multiprocessing

from .cpu.platform import first_advice, is_selected
from .host import contract, guard

logger = logging.getLogger(__name__)

_loaded = False
_failure: str | None = None
_callers: list[str] = []


def load() -> None:
    """Register DDTREE with the SGLang of this process.

    On an SGLang that does not meet the contract nothing is registered: one error says why, and choosing
    DDTREE there fails with the same text. A second call does nothing.
    """
    _callers.append("entry point")
    _load()


def load_from_patch() -> None:
    """What an SGLang patched by `sglang-ddtree patch` calls: `load`, and the CPU shims of the other entry point."""
    _callers.append("patch")
    if is_selected():
        from .cpu import shims

        shims.load()
    _load()


def callers() -> tuple[str, ...]:
    """Who called in this process, "entry point" or "patch"; the first one loaded the package."""
    return tuple(_callers)


def _load() -> None:
    global _loaded
    if _loaded:
        return
    _loaded = True

    mismatches = contract.check_contract()
    if mismatches:
        _stand_aside(contract.describe(mismatches))
        return
    try:
        _register()
    except Exception as error:
        problem = f"sglang_ddtree could not register DDTREE: {type(error).__name__}: {error}"
        _stand_aside(first_advice(problem))
        logger.debug("registration failed", exc_info=True)


def failure() -> str | None:
    """Why `load` registered nothing in this process; None when it did or was not called."""
    return _failure


def _register() -> None:
    from .host import (
        accept_lengths,
        admission,
        backend,
        drafter,
        flags,
        metrics,
        recurrent_seams,
        seams,
        verify_attention,
        verify_metadata,
    )
    from .step import algorithm

    algorithm.register()
    flags.install()
    backend.install()
    drafter.install()
    admission.install()
    seams.install()
    recurrent_seams.install()
    verify_attention.install()
    verify_metadata.install()
    metrics.install()
    accept_lengths.install()


def _stand_aside(message: str) -> None:
    global _failure
    _failure = message
    # SGLang's workers load the plugin too: the launcher alone reports, so that the error is read once.
    if multiprocessing.parent_process() is None:
        logger.error(message)
    guard.install(message)

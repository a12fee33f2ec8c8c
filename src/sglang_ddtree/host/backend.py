"""Which attention backend verifies the tree."""

from __future__ import annotations

from typing import Any

from ..config import ALGORITHM
from ..cpu.platform import PLATFORM_NAME
from .hooks import declare

CUDA_BACKENDS = ("triton",)
CPU_BACKEND = PLATFORM_NAME  # the platform has one backend, named as it


def install() -> None:
    """Declare the hook that makes triton the default of a DDTREE server on CUDA."""
    declare(
        "sglang.srt.arg_groups.attention_hook.handle_deterministic_inference",
        "before",
        "the last step before SGLang picks a backend; its pick on Hopper, fa3, ignores a tree mask",
        _prefer_triton,
    )


def resolve_attention_backend(server_args: Any) -> str:
    """The one backend of prefill, decode and verify of a server in resolution.

    Raises `ValueError` when it cannot take a tree mask or when prefill and decode differ.
    """
    prefill = server_args.prefill_attention_backend or server_args.attention_backend
    decode = server_args.decode_attention_backend or server_args.attention_backend
    allowed = _allowed(server_args)
    if prefill != decode or prefill not in allowed:
        found = prefill if prefill == decode else f"{prefill} for prefill and {decode} for decode"
        raise ValueError(
            f"DDTREE does not support --attention-backend {found}: one backend must serve prefill and decode "
            f"and take a tree mask. Use {' or '.join(allowed)}, or leave the option out."
        )
    return str(prefill)


def _allowed(server_args: Any) -> tuple[str, ...]:
    from sglang.srt.platforms import current_platform

    if current_platform.is_out_of_tree():
        return (CPU_BACKEND,)
    return CUDA_BACKENDS


def _prefer_triton(server_args: Any) -> None:
    from sglang.srt.arg_groups.overrides import (
        declare_resolution,
        is_attention_backend_not_set,
        resolving_view,
    )
    from sglang.srt.platforms import current_platform

    cfg = resolving_view(server_args)
    wanted = str(cfg.speculative_algorithm).upper() == ALGORITHM
    if wanted and is_attention_backend_not_set(cfg) and not current_platform.is_out_of_tree():
        declare_resolution(server_args, "sglang_ddtree", attention_backend=CUDA_BACKENDS[0])

"""The platform class: what SGLang asks a device that it does not know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform

from sglang_ddtree.cpu.platform import PLATFORM_NAME
from sglang_ddtree.cpu.torch_ops import window_cache_locs

SPECULATIVE_ALGORITHMS = frozenset({"DFLASH", "DDTREE"})


class DDTreeCpuPlatform(CpuDeviceMixin, SRTPlatform):
    """Plain torch on the CPU: no Triton, no graphs, one attention backend that takes a tree mask."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    capabilities = PlatformCapabilities(supports_triton=False, graph_capture=False)

    def get_device(self, device_id: int = 0) -> str:
        # The string: SGLang stores it as the server's `--device` (srt/utils/common.py:1122).
        return "cpu"

    def get_default_attention_backend(self) -> str:
        return PLATFORM_NAME

    def get_default_speculative_draft_attention_backend(self, algorithm: str) -> str:
        return PLATFORM_NAME

    def supports_speculative_algorithm(self, algorithm: str) -> bool:
        return algorithm in SPECULATIVE_ALGORITHMS

    def supports_speculative_draft_attention_backend(self, algorithm: str, backend: str) -> bool:
        return algorithm in SPECULATIVE_ALGORITHMS and backend == PLATFORM_NAME

    def get_kv_pool_cls(self, *, kind: str) -> type | None:
        if kind != "mha":
            return None
        # Imported late: SGLang makes the platform object before its memory pools can be imported.
        from sglang_ddtree.cpu.kv_pool import CpuMHATokenToKVPool

        return CpuMHATokenToKVPool

    def get_speculative_cache_locs_fn(self) -> Callable[..., torch.Tensor]:
        return window_cache_locs

    def support_mamba_cache_extra_buffer(self) -> bool:
        # Snapshots of recurrent states for the radix cache: cpu/hybrid_ops.py copies them.
        return True

    def get_compile_backend(self, mode: str | None = None) -> str:
        return "eager"

    def apply_server_args_defaults(self, server_args: Any) -> None:
        # By now SGLang has put in its own choice for a CPU: intel_amx needs a CPU with AMX, torch_native takes no tree
        # mask. What the user gave is in the snapshot of the input.
        _require_own_backend(getattr(server_args, "_raw_input", None) or {})
        server_args.attention_backend = PLATFORM_NAME
        server_args.sampling_backend = "pytorch"


def _require_own_backend(given: Mapping[str, Any]) -> None:
    for field in ("attention_backend", "prefill_attention_backend", "decode_attention_backend"):
        value = given.get(field)
        if value not in (None, PLATFORM_NAME):
            raise ValueError(
                f"--{field.replace('_', '-')} {value}: the platform {PLATFORM_NAME} has one attention backend, "
                f"{PLATFORM_NAME}. Use it, or leave the option out."
            )

"""The KV pool of the CPU platform: SGLang's, with rows moved by torch instead of a Triton copy."""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool


class CpuMHATokenToKVPool(MHATokenToKVPool):
    """Speculative decoding asks the stock pool for a Triton row copy, warmed up when the pool is made."""

    def __init__(self, *args: Any, enable_kv_cache_copy: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, enable_kv_cache_copy=False, **kwargs)
        self.use_native_move_kv_cache = True

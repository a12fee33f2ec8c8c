"""The rehearsal at startup leaves no variant of SGLang's move of KV rows to be compiled while requests wait."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from unit.tree.stub_driver import compiling_for_hopper

pytestmark = [
    pytest.mark.usefixtures("sglang_with_plugins"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),
]
RUNNING = 40


def variants(batches: list[int], rows: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """What SGLang's move compiles for these batches, on slices as the walk's kernel returns them."""
    from sglang.kernels.ops.kvcache import cache_move
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    kernel, found = cache_move.copy_all_layer_kv_cache_tiled, set()

    class Recorder:
        def __getitem__(self, grid: Any) -> Any:
            return lambda *args, **options: found.add(id(kernel.warmup(*args, grid=(1,), **options)))

    pool = SimpleNamespace(
        use_native_move_kv_cache=False,
        data_ptrs=torch.zeros(2, dtype=torch.uint64),
        data_strides=torch.zeros(2, dtype=torch.int64),
        _kv_copy_config={"num_locs_upper": chunk, "bytes_per_tile": 128, "byte_tiles": 1, "num_warps": 4},
        _move_native_fp4_scales=lambda *args: None,
    )
    with monkeypatch.context() as patched, compiling_for_hopper():
        patched.setattr(cache_move, "copy_all_layer_kv_cache_tiled", Recorder())
        for batch in batches:
            targets, sources = torch.zeros(5, batch, rows, dtype=torch.int64)[1:3]
            MHATokenToKVPool._move_kv_cache_impl(pool, targets.view(-1), sources.view(-1))
    return found


@pytest.mark.parametrize(("rows", "chunk"), [(3, 128), (8, 256), (16, 256)])
def test_every_variant_of_the_move_is_rehearsed(
    rows: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang_ddtree.step.prewarm import move_batches

    every = variants(list(range(1, RUNNING + 1)), rows, chunk, monkeypatch)
    rehearsed = move_batches(rows, RUNNING)
    assert variants(rehearsed, rows, chunk, monkeypatch) == every
    assert len(rehearsed) < 20
    if rows != 16:
        powers_of_two = [batch for batch in rehearsed if batch & (batch - 1) == 0]
        assert variants(powers_of_two, rows, chunk, monkeypatch) < every, "the control"

"""A replay's index tensors are filled inside the graph, and nowhere else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.usefixtures("sglang_with_plugins")


class _Translator:
    """Gathers as SGLang's kernel does, from a table of one row per request."""

    def __init__(self, *, translates: bool = False) -> None:
        self.translates = translates
        self.req_to_token = torch.arange(6 * 100).view(6, 100)
        self.calls = 0

    def _reads_translated(self, kind: Any) -> bool:
        return self.translates

    def pack_read_stream(
        self,
        plan: Any,
        *,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        indptr: torch.Tensor,
        out: torch.Tensor,
        num_token_blocks: int,
    ) -> None:
        self.calls += 1
        for request, row in enumerate(req_pool_indices[: len(seq_lens)].tolist()):
            start, length = int(indptr[request]), int(seq_lens[request])
            out[start : start + length] = self.req_to_token[row, :length]


def backend(**changed: Any) -> Any:
    made = {
        "sliding_window_size": None,
        "use_sliding_window_kv_pool": False,
        "dllm_attention": None,
        "enable_deterministic": False,
        "kv_index_translator": _Translator(),
        "qo_indptr": torch.zeros(9, dtype=torch.int32),
        "kv_indptr": torch.zeros(9, dtype=torch.int32),
        "mask_indptr": torch.zeros(9, dtype=torch.int64),
        "cuda_graph_kv_indices": torch.zeros(800, dtype=torch.int64),
        "_target_verify_num_tokens_per_req": lambda spec_info: 4,
    }
    return SimpleNamespace(**made | changed)


def batch(mode: str = "TARGET_VERIFY") -> Any:
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    return SimpleNamespace(
        forward_mode=ForwardMode[mode],
        batch_size=3,
        seq_lens=torch.tensor([5, 1, 3]),
        req_pool_indices=torch.tensor([2, 0, 4]),
        kv_loc_plan=None,
        spec_info=None,
    )


@pytest.fixture(autouse=True)
def ddtree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_ddtree.host.verify_metadata.serves_ddtree", lambda: True)


def originals() -> tuple[list[str], Any, Any]:
    seen: list[str] = []
    return seen, lambda *_: seen.append("outside"), lambda *_: seen.append("inside")


def test_the_graph_fills_what_a_verify_reads() -> None:
    from sglang_ddtree.host.verify_metadata import prepare_inside, prepare_outside

    seen, outside, inside = originals()
    found, there = backend(), batch()
    prepare_outside(outside, found, there, False)
    assert seen == []
    assert found.kv_index_translator.calls == 0
    prepare_inside(inside, found, there)
    assert found.qo_indptr[:4].tolist() == [0, 4, 8, 12]
    assert found.kv_indptr[:4].tolist() == [0, 5, 6, 9]
    # 4 rows of context + 4 cells each.
    assert found.mask_indptr[:4].tolist() == [0, 36, 56, 84]
    assert found.cuda_graph_kv_indices[:9].tolist() == [200, 201, 202, 203, 204, 0, 400, 401, 402]
    # Capturing SGLang prepares as always, since warm-ups read it.
    prepare_outside(outside, found, there, True)
    assert seen == ["inside", "outside"]


@pytest.mark.parametrize(
    ("changed", "mode"),
    [
        ({}, "DECODE"),
        ({"sliding_window_size": 128}, "TARGET_VERIFY"),
        ({"use_sliding_window_kv_pool": True}, "TARGET_VERIFY"),
        ({"dllm_attention": object()}, "TARGET_VERIFY"),
        ({"enable_deterministic": True}, "TARGET_VERIFY"),
        ({"kv_index_translator": _Translator(translates=True)}, "TARGET_VERIFY"),
    ],
)
def test_everything_else_stays_sglangs(changed: dict[str, Any], mode: str) -> None:
    from sglang_ddtree.host.verify_metadata import prepare_inside, prepare_outside

    seen, outside, inside = originals()
    found, there = backend(**changed), batch(mode)
    prepare_outside(outside, found, there, False)
    prepare_inside(inside, found, there)
    assert seen == ["outside", "inside"]
    assert found.kv_index_translator.calls == 0


def test_another_algorithm_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_ddtree.host.verify_metadata import prepare_inside, prepare_outside

    monkeypatch.setattr("sglang_ddtree.host.verify_metadata.serves_ddtree", lambda: False)
    seen, outside, inside = originals()
    found, there = backend(), batch()
    prepare_outside(outside, found, there, False)
    prepare_inside(inside, found, there)
    assert seen == ["outside", "inside"]
    assert found.kv_index_translator.calls == 0


def test_the_scheduler_waits_for_what_the_graph_reads() -> None:
    """The page table is read inside the replay: SGLang's fence must not end before it."""
    from sglang.srt.layers.attention.base_attn_backend import SharedReadEnds
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    made = object.__new__(TritonAttnBackend)
    assert made.shared_read_ends(ForwardMode.TARGET_VERIFY).value >= SharedReadEnds.IN_REPLAY.value

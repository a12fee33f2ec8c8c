"""The buffer in which ranks gather logits is DFLASH's, not one for the widest verify of all requests."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.usefixtures("sglang_with_plugins")


@pytest.mark.parametrize(
    ("algorithm", "running", "prefill", "expected"),
    [
        ("DDTREE", 48, False, 48 * 16),
        ("DFLASH", 48, False, 48 * 64),
        # Never fewer than SGLang's floor, nor more than it would take itself.
        ("DDTREE", 2, False, 128),
        ("DDTREE", None, False, 128),
        ("DDTREE", 48, True, 48 * 64),
    ],
)
def test_it_holds_a_block_of_every_request(
    monkeypatch: pytest.MonkeyPatch, algorithm: str, running: int | None, prefill: bool, expected: int
) -> None:
    from sglang.srt import runtime_context
    from sglang.srt.distributed.device_communicators import triton_symm_mem_ag

    spec = SimpleNamespace(
        speculative_algorithm=algorithm,
        speculative_num_draft_tokens=64,
        speculative_dflash_block_size=16,
        speculative_eagle_topk=2,
    )
    schedule = SimpleNamespace(max_running_requests=running, chunked_prefill_size=256, max_prefill_tokens=256)
    for module in (runtime_context, triton_symm_mem_ag):
        monkeypatch.setattr(module, "get_spec", lambda: spec)
        monkeypatch.setattr(module, "get_schedule", lambda: schedule)
    # SGLang's function with the hook on it.
    assert triton_symm_mem_ag.recommended_max_tokens(include_prefill=prefill, floor=128) == expected

"""DDTREE's attention in SGLang's triton backend: what it serves, what it leaves."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from unit.attention.attention_twins import Case, expected, make_case

pytestmark = pytest.mark.usefixtures("sglang_with_plugins")


def backend(case: Case, **changed: Any) -> Any:
    """What the hook reads of SGLang's backend."""
    made = {
        "device": "cpu",
        "device_core_count": 4,
        "v_head_dim": 16,
        "enable_deterministic": False,
        "use_mla": False,
        "dcp_size": 1,
        "token_to_kv_pool": SimpleNamespace(
            get_key_buffer=lambda _: case.k_buffer, get_value_buffer=lambda _: case.v_buffer
        ),
        "forward_metadata": SimpleNamespace(
            kv_indptr=case.kv_indptr,
            kv_indices=case.kv_indices,
            custom_mask=case.mask,
            mask_indptr=case.mask_indptr,
            swa_out_cache_loc=None,
        ),
        "saved": [],
    }
    found = SimpleNamespace(**made | changed)
    found._set_kv_buffer = lambda batch, layer, slots, k, v: found.saved.append((slots.loc, k, v))
    return found


def layer(case: Case, *, block: bool = False, **changed: Any) -> Any:
    from sglang.srt.layers.radix_attention import AttentionType

    made = {
        "layer_id": 3,
        "tp_q_head_num": case.q.shape[1],
        "qk_head_dim": case.q.shape[2],
        "scaling": case.q.shape[2] ** -0.5,
        "attn_type": AttentionType.ENCODER_ONLY if block else AttentionType.DECODER,
        "is_cross_attention": False,
        "k_scale": None,
        "logit_cap": 0.0,
        "sliding_window_size": -1,
        "xai_temperature_len": -1,
    }
    return SimpleNamespace(**made | changed)


def batch(mode: str = "TARGET_VERIFY") -> Any:
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    return SimpleNamespace(
        forward_mode=ForwardMode[mode], out_cache_loc="slots", out_cache_loc_is_physical=True
    )


def call(found: Any, case: Case, of: Any, mode: str = "TARGET_VERIFY", **options: Any) -> torch.Tensor | str:
    """What the hook gives; "SGLang's" where it leaves the call to the extend kernel."""
    from sglang_ddtree.host import verify_attention

    verify_attention.prepare_backend(None, found)
    flat = case.q.reshape(len(case.q), -1)
    return verify_attention.attend(
        lambda *_, **__: "SGLang's", found, flat, case.k, case.v, of, batch(mode), **options
    )


@pytest.fixture(autouse=True)
def ddtree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_ddtree.host.verify_attention.serves_ddtree", lambda: True)


def case(*, masked: bool = True, head: int = 16) -> Case:
    return make_case(torch.Generator().manual_seed(1), [4, 9], 5, 2, 2, head, masked=masked)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("saves", [True, False])
def test_it_serves_the_tree_and_the_drafts_block(masked: bool, saves: bool) -> None:
    there = case(masked=masked)
    found = backend(there)
    out = call(found, there, layer(there, block=not masked), save_kv_cache=saves)
    assert isinstance(out, torch.Tensor)
    assert out.shape == (10, 64)
    assert torch.allclose(out.view_as(there.q).float(), expected(there), atol=2e-3)
    assert [slots for slots, _, _ in found.saved] == ["slots"] * saves


def test_it_writes_where_sglang_wants_the_output() -> None:
    from sglang_ddtree.host import verify_attention

    there = case()
    found, forward_batch = backend(there), batch()
    forward_batch._attn_output = torch.empty(10, 64, dtype=there.q.dtype)
    verify_attention.prepare_backend(None, found)
    flat = there.q.reshape(len(there.q), -1)
    out = verify_attention.attend(
        lambda *_, **__: "SGLang's", found, flat, there.k, there.v, layer(there), forward_batch
    )
    assert out is forward_batch._attn_output


@pytest.mark.parametrize(
    "changed",
    [
        {"k_scale": torch.ones(1)},
        {"logit_cap": 30.0},
        {"sliding_window_size": 128},
        {"xai_temperature_len": 10},
        {"is_cross_attention": True},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_layers_that_it_leaves_to_sglang(changed: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    there = case()
    found = backend(there)
    caplog.set_level("INFO")
    of = layer(there, **changed)
    verify = [call(found, there, of), found.ddtree_attention, call(found, there, of)]
    assert verify[0] == verify[2] == "SGLang's"
    assert found.saved == []
    assert "to SGLang's extend kernel" in caplog.text


@pytest.mark.parametrize(
    "changed", [{"enable_deterministic": True}, {"use_mla": True}, {"dcp_size": 2}, {"v_head_dim": 32}]
)
def test_backends_that_it_leaves_to_sglang(changed: dict[str, Any]) -> None:
    there = case()
    assert call(backend(there, **changed), there, layer(there)) == "SGLang's"


def test_prefill_a_chain_and_extras_are_sglangs() -> None:
    there, chain = case(), case(masked=False)
    assert call(backend(there), there, layer(there), "EXTEND") == "SGLang's"
    assert call(backend(chain), chain, layer(chain)) == "SGLang's"
    assert call(backend(there), there, layer(there), sinks=torch.zeros(4)) == "SGLang's"
    assert isinstance(call(backend(there), there, layer(there), sinks=None), torch.Tensor)


def test_another_algorithms_backend_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_ddtree.host.verify_attention.serves_ddtree", lambda: False)
    there = case()
    found = backend(there)
    assert call(found, there, layer(there)) == "SGLang's"
    assert not hasattr(found, "ddtree_attention")


def test_backends_share_one_workspace() -> None:
    from sglang_ddtree.host import verify_attention

    first, second = (verify_attention.VerifyAttention(backend(case())) for _ in range(2))
    assert first.workspace is second.workspace
    assert verify_attention.workspace_bytes() >= first.workspace.nbytes


@pytest.mark.parametrize("serves", [True, False])
def test_buffers_hold_one_context_per_request(monkeypatch: pytest.MonkeyPatch, serves: bool) -> None:
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

    from sglang_ddtree.host import verify_attention

    monkeypatch.setattr(verify_attention, "serves_ddtree", lambda: serves)
    monkeypatch.setattr(
        "sglang.srt.layers.attention.triton_backend.maybe_create_verify_mask", lambda **_: None
    )
    found = object.__new__(TritonAttnBackend)
    vars(found).update(
        dllm_attention=None,
        num_head=2,
        max_kv_splits=3,
        v_head_dim=4,
        swa_v_head_dim=None,
        lean_total_programs=1,
        lean_block_m=1,
        max_context_len=100,
        num_draft_tokens=64,
        is_draft_runner=False,
        skip_prefill=False,
        sliding_window_size=None,
        use_sliding_window_kv_pool=False,
        device="cpu",
    )
    original = inspect.unwrap(TritonAttnBackend.init_cuda_graph_state)
    verify_attention.size_by_requests(original, found, 8, 8 * 64)
    # A verify's context slots: 8 requests of 100 tokens; SGLang's own size is one context per verified token.
    assert found.cuda_graph_kv_indices.numel() == 8 * 100 * (1 if serves else 64)
    assert found.cuda_graph_attn_logits.shape[0] == 8 * (1 if serves else 64)

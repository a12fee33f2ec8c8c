"""DDTREE's attention in the place of SGLang's split-KV verify."""

from __future__ import annotations

import ast
import inspect
import textwrap
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from unit.attention.attention_twins import Case, expected, make_case

pytestmark = pytest.mark.usefixtures("sglang_with_plugins")

PLAIN: dict[str, Any] = {
    "logit_cap": 0.0,
    "sliding_window_size": -1,
    "sinks": None,
    "window_kv_offsets": None,
    "xai_temperature_len": -1,
    "max_bs": 8,
}


def backend() -> Any:
    return SimpleNamespace(device="cpu", device_core_count=4, v_head_dim=16)


def call(case: Case, *, causal: bool = True, scale: float = 1.0, **changed: Any) -> torch.Tensor | None:
    """What the seam writes; None where it declines."""
    from sglang_ddtree.host.verify_attention import VerifyAttention

    out = torch.full_like(case.q, float("nan"))
    width = case.q.shape[0] // (case.kv_indptr.shape[0] - 1)
    qo_indptr = torch.arange(0, case.q.shape[0] + 1, width)
    k_buffer, v_buffer, kv_indptr, kv_indices, mask, mask_indptr, scaling = case.args
    wrote = VerifyAttention(backend())(
        case.q,
        case.k,
        case.v,
        out,
        k_buffer,
        v_buffer,
        qo_indptr,
        kv_indptr,
        kv_indices,
        mask,
        causal,
        mask_indptr,
        changed.pop("max_len_extend", width),
        scale,
        scale,
        scaling,
        **PLAIN | changed,
    )
    return out if wrote else None


def case(masked: bool = True) -> Case:
    return make_case(torch.Generator().manual_seed(1), [4, 9], 5, 2, 2, 16, masked=masked)


def test_it_serves_the_tree_and_the_drafts_block() -> None:
    for found, causal in ((case(), True), (case(masked=False), False)):
        out = call(found, causal=causal)
        assert out is not None
        assert torch.allclose(out.float(), expected(found), atol=2e-3)


@pytest.mark.parametrize(
    "changed",
    [
        {"scale": 0.5},
        {"logit_cap": 30.0},
        {"sliding_window_size": 128},
        {"sinks": torch.zeros(4)},
        {"xai_temperature_len": 10},
        {"max_len_extend": 7},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_it_declines_what_it_cannot_do(changed: dict[str, Any]) -> None:
    assert call(case(), **changed) is None


def test_it_declines_a_chain_and_another_head_size() -> None:
    assert call(case(masked=False)) is None
    assert call(make_case(torch.Generator(), [4], 5, 1, 1, 32)) is None


def test_the_backends_of_a_ddtree_server_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_ddtree.host import verify_attention

    for serves in (False, True):
        monkeypatch.setattr(verify_attention, "serves_ddtree", lambda serves=serves: serves)
        found = backend()
        verify_attention.attend_trees(None, found, SimpleNamespace())
        assert getattr(found, "use_verify_splitkv", False) is serves
        assert (
            isinstance(getattr(found, "verify_splitkv_fwd", None), verify_attention.VerifyAttention) is serves
        )
    first, second = verify_attention.VerifyAttention(backend()), verify_attention.VerifyAttention(backend())
    assert first.workspace is second.workspace
    assert verify_attention.workspace_bytes() >= first.workspace.nbytes


def test_sglang_calls_the_seam_with_these_arguments_in_a_verify() -> None:
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

    from sglang_ddtree.host.verify_attention import VerifyAttention

    source = ast.parse(textwrap.dedent(inspect.getsource(TritonAttnBackend.forward_extend)))
    calls = [
        node
        for node in ast.walk(source)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "verify_fwd"
    ]
    assert len(calls) == 1
    parameters = inspect.signature(VerifyAttention.__call__).parameters.values()
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert len(calls[0].args) == len(positional) - 1
    assert {word.arg for word in calls[0].keywords} == {
        p.name for p in parameters if p.kind is p.KEYWORD_ONLY
    }
    # The extend kernel comes after it, for what it declines.
    text = ast.unparse(source)
    assert text.index("verify_fwd = self.verify_splitkv_fwd") < text.index("self._forward_extend_kernel(")


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

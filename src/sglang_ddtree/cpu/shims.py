"""The few places where SGLang's CPU path has no seam, as one table.

Nothing here runs unless ``SGLANG_PLATFORM=ddtree_cpu``. A shim can go when its `needed` answers False on
every SGLang version that the package supports.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sglang_ddtree.cpu import absent_torchvision, conv_ops, gdn_ops, hybrid_ops, torch_ops
from sglang_ddtree.cpu.platform import PLATFORM_NAME, is_selected

logger = logging.getLogger(__name__)

APPLIED, NOT_NEEDED, REFUSED = "applied", "not needed", "refused"


@dataclass(frozen=True)
class Shim:
    """One deviation from stock SGLang on the CPU platform.

    `hook_target` is the dotted name that `apply` hooks, or None where it does not use SGLang's hook registry.
    """

    name: str
    answers: str  # file:line of SGLang 0.5.23
    why: str
    needed: Callable[[], bool]
    apply: Callable[[], None]
    hook_target: str | None = None


_outcomes: dict[str, tuple[str, str]] = {}  # shim name -> (status, reason)


def load() -> None:
    """Entry point of `sglang.srt.plugins`: apply every needed shim once in this process."""
    if not is_selected():
        return
    for shim in SHIMS:
        if shim.name not in _outcomes:
            _outcomes[shim.name] = _attempt(shim)


def _attempt(shim: Shim) -> tuple[str, str]:
    try:
        if not shim.needed():
            return NOT_NEEDED, "this SGLang and torch do without"
        shim.apply()
    except Exception as error:  # one shim that does not fit must not hide the state of the others
        logger.error("CPU shim %r (%s) refused: %s", shim.name, shim.answers, error)
        return REFUSED, f"{type(error).__name__}: {error}"
    return APPLIED, ""


def shim_status() -> list[dict[str, str]]:
    """One row per shim with the keys name, answers, why, status and reason, for `sglang-ddtree doctor`.

    On the selected platform this applies the shims if the process has not done so yet; elsewhere every shim
    is "not needed".
    """
    load()
    rows = []
    for shim in SHIMS:
        status, reason = _outcomes.get(shim.name, (NOT_NEEDED, f"SGLANG_PLATFORM is not {PLATFORM_NAME}"))
        if status == APPLIED and shim.hook_target and _hook_failed(shim.hook_target):
            status, reason = REFUSED, f"SGLang could not hook {shim.hook_target}"
        rows.append(
            {"name": shim.name, "answers": shim.answers, "why": shim.why, "status": status, "reason": reason}
        )
    return rows


def _hook_failed(target: str) -> bool:
    # apply_hooks only logs what it cannot hook; before it ran, nothing has failed yet.
    from sglang.srt import plugins
    from sglang.srt.plugins.hook_registry import HookRegistry

    return plugins._plugins_loaded and target not in HookRegistry._patched


def _register_attention_backend() -> None:
    from sglang.srt.arg_groups import choices

    from sglang_ddtree.cpu import attention

    for known, add in (
        (choices.ATTENTION_BACKEND_CHOICES, choices.add_attention_backend_choices),
        (choices.DRAFT_ATTENTION_BACKEND_CHOICES, choices.add_draft_attention_backend_choices),
    ):
        if PLATFORM_NAME not in known:
            add([PLATFORM_NAME])
    attention.register()


def _record_stream_raises() -> bool:
    try:
        torch.empty(0).record_stream(torch.cpu.current_stream())  # type: ignore[arg-type]
    except (RuntimeError, NotImplementedError):
        return True
    return False


def _ignore_record_stream_on_cpu() -> None:
    original = torch.Tensor.record_stream

    def record_stream(self: torch.Tensor, stream: Any) -> None:
        if self.device.type != "cpu":
            original(self, stream)

    torch.Tensor.record_stream = record_stream  # type: ignore[method-assign, assignment]


def _pin_memory_raises() -> bool:
    try:
        torch.empty(1).pin_memory()
    except (RuntimeError, NotImplementedError):
        return True
    return False


def _ignore_pin_memory() -> None:
    def pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
        return self

    torch.Tensor.pin_memory = pin_memory  # type: ignore[method-assign, assignment]


_EXTEND_KWARGS = "sglang.srt.model_executor.model_runner.ModelRunner._extend_forward_kwargs"


def _input_embeds_are_cast_to_bfloat16() -> bool:
    return "forward_batch.input_embeds.bfloat16()" in _source_of("sglang.srt.model_executor.model_runner")


def _keep_input_embeds_dtype() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def restore(
        kwargs: dict[str, Any], runner: Any, forward_batch: Any, *_: Any, **__: Any
    ) -> dict[str, Any]:
        if forward_batch.input_embeds is not None and forward_batch.replace_embeds is None:
            kwargs["input_embeds"] = forward_batch.input_embeds.to(runner.dtype)
        return kwargs

    HookRegistry.register(_EXTEND_KWARGS, restore, HookType.AFTER)


_ALLOCATION = "sglang.srt.mem_cache.allocation"
_GET_LAST_LOC = f"{_ALLOCATION}.get_last_loc"
_ASSIGN_ROWS = f"{_ALLOCATION}.assign_req_to_token_pool_func"


def _last_loc_in_torch() -> None:
    from sglang.srt.mem_cache.allocation import get_last_loc_torch

    _replace(_GET_LAST_LOC, get_last_loc_torch)


def _replace(target: str, function: Callable[..., Any]) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(target, function, HookType.REPLACE)


_OPS = "sglang.kernels.ops"
_CONV = f"{_OPS}.mamba.causal_conv1d_triton"
_SCATTER = f"{_OPS}.mamba.mamba_state_scatter_triton"
_PROJECTION = f"{_OPS}.attention.triton_gdn_fused_proj"
_GATES = f"{_OPS}.elementwise.elementwise"
_FLA = f"{_OPS}.attention.fla"
_LINEAR = f"{_OPS}.attention.linear"

_HYBRID_KERNELS: tuple[tuple[str, str, int, str, Callable[..., Any]], ...] = (
    # (module, function, its line that launches Triton, what is launched there, the torch function)
    (_CONV, "causal_conv1d_fn", 544, "_causal_conv1d_fwd_kernel", conv_ops.causal_conv1d_fn),
    (_CONV, "causal_conv1d_update", 1168, "_causal_conv1d_update_kernel", conv_ops.causal_conv1d_update),
    (
        f"{_LINEAR}.fused_gdn_gating",
        "fused_gdn_gating",
        59,
        "fused_gdn_gating_kernel",
        gdn_ops.fused_gdn_gating,
    ),
    (
        f"{_FLA}.chunk",
        "chunk_gated_delta_rule",
        254,
        "ChunkGatedDeltaRuleFunction.apply",
        gdn_ops.chunk_gated_delta_rule,
    ),
    (
        f"{_FLA}.fused_recurrent",
        "fused_recurrent_gated_delta_rule_packed_decode",
        386,
        "fused_recurrent_gated_delta_rule_packed_decode_kernel",
        gdn_ops.fused_recurrent_gated_delta_rule_packed_decode,
    ),
    (
        f"{_LINEAR}.fused_sigmoid_gating_recurrent",
        "fused_sigmoid_gating_delta_rule_update",
        698,
        "fused_sigmoid_gating_delta_rule_update_kernel",
        gdn_ops.fused_sigmoid_gating_delta_rule_update,
    ),
    (
        _PROJECTION,
        "fused_qkvzba_split_reshape_cat",
        139,
        "fused_qkvzba_split_reshape_cat_kernel",
        hybrid_ops.fused_qkvzba_split_reshape_cat,
    ),
    (
        _PROJECTION,
        "fused_qkvzba_split_reshape_cat_contiguous",
        324,
        "fused_qkvzba_split_reshape_cat_contiguous_kernel",
        hybrid_ops.fused_qkvzba_split_reshape_cat_contiguous,
    ),
    (
        f"{_FLA}.layernorm_gated",
        "_layer_norm_fwd",
        319,
        "_layer_norm_fwd_1pass_kernel",
        hybrid_ops.layer_norm_fwd,
    ),
    (
        f"{_FLA}.fused_norm_gate",
        "rms_norm_gated",
        394,
        "LayerNormGatedFunction.apply",
        hybrid_ops.rms_norm_gated,
    ),
    (_GATES, "fused_sigmoid_mul", 100, "_fused_sigmoid_mul_kernel", hybrid_ops.fused_sigmoid_mul),
    (
        _GATES,
        "fused_gate_sigmoid_mul",
        263,
        "_launch_fused_gate_sigmoid_mul",
        hybrid_ops.fused_gate_sigmoid_mul,
    ),
    (
        _GATES,
        "fused_gate_sigmoid_mul_add",
        280,
        "_launch_fused_gate_sigmoid_mul",
        hybrid_ops.fused_gate_sigmoid_mul_add,
    ),
    (
        _SCATTER,
        "track_mamba_states_if_needed",
        169,
        "track_mamba_state_if_needed_kernel",
        hybrid_ops.track_mamba_states_if_needed,
    ),
    (
        _SCATTER,
        "track_mamba_states_all_layers",
        931,
        "_launch_track_mamba_states",
        hybrid_ops.track_mamba_states_all_layers,
    ),
    (
        _SCATTER,
        "fused_mamba_state_scatter_with_mask",
        396,
        "_fused_mamba_state_scatter_with_mask_kernel",
        hybrid_ops.scatter_states,
    ),
    (
        _SCATTER,
        "fused_conv_window_scatter_with_mask",
        548,
        "_fused_conv_window_scatter_with_mask_kernel",
        hybrid_ops.scatter_states,
    ),
    (
        _SCATTER,
        "fused_conv_window_scatter_multi",
        765,
        "_fused_conv_window_scatter_multi_kernel",
        hybrid_ops.fused_conv_window_scatter_multi,
    ),
)


def _hybrid_kernel_shim(
    module: str, function: str, line: int, launches: str, replacement: Callable[..., Any]
) -> Shim:
    target = f"{module}.{function}"
    return Shim(
        name=function.strip("_").replace("_", "-"),
        answers=f"{module.removeprefix('sglang.').replace('.', '/')}.py:{line}",
        why="layers of hybrid models and their states are computed in Triton",
        needed=lambda: launches in _source_of(module),
        apply=lambda: _replace(target, replacement),
        hook_target=target,
    )


def _source_of(module: str) -> str:
    """The text of a module, read without importing it (SGLang's larger ones take seconds)."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"SGLang has no module {module}")
    return Path(spec.origin).read_text()


SHIMS: tuple[Shim, ...] = (
    Shim(
        name="absent-torchvision",
        answers="srt/multimodal/internvl_utils.py:5",
        why="image model configurations import torchvision, which a CPU text server does not have",
        needed=absent_torchvision.is_needed,
        apply=absent_torchvision.install,
    ),
    Shim(
        name="attention-backend",
        answers="srt/arg_groups/choices.py:103",
        why="the list of draft backends has none for a CPU",
        needed=lambda: True,
        apply=_register_attention_backend,
    ),
    Shim(
        name="record-stream",
        answers="srt/speculative/dflash_worker_v2.py:2481",
        why="record_stream raises on CPU tensors, which have no streams",
        needed=_record_stream_raises,
        apply=_ignore_record_stream_on_cpu,
    ),
    Shim(
        name="pin-memory",
        answers="srt/managers/schedule_batch.py:3830",
        why="pin_memory raises on a machine without an accelerator, where no copy needs it",
        needed=_pin_memory_raises,
        apply=_ignore_pin_memory,
    ),
    Shim(
        name="input-embeds-dtype",
        answers="srt/model_executor/model_runner.py:1772",
        why="the draft's input embeddings are cast to bfloat16 whatever the model's dtype",
        needed=_input_embeds_are_cast_to_bfloat16,
        apply=_keep_input_embeds_dtype,
        hook_target=_EXTEND_KWARGS,
    ),
    Shim(
        name="last-loc",
        answers="srt/mem_cache/allocation.py:133",
        why="page sizes above 1 look up the last slot through Triton for any backend but torch_native",
        needed=lambda: "uses_triton_dispatch" in _source_of(_ALLOCATION),
        apply=_last_loc_in_torch,
        hook_target=_GET_LAST_LOC,
    ),
    Shim(
        name="assign-rows",
        answers="srt/mem_cache/allocation.py:755",
        why="speculative decoding writes the new slots into the request rows through Triton",
        needed=lambda: "assign_req_to_token_pool[(batch_size,)]" in _source_of(_ALLOCATION),
        apply=lambda: _replace(_ASSIGN_ROWS, torch_ops.assign_req_to_token_pool),
        hook_target=_ASSIGN_ROWS,
    ),
    *(_hybrid_kernel_shim(*row) for row in _HYBRID_KERNELS),
)

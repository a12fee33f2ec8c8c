"""Refuses at startup what this version does not serve, each by its flag, with the reason and the way out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..config import ALGORITHM, DDTreeConfig
from .backend import resolve_attention_backend
from .budget import auto_problems, budget_of, plan_for
from .checkpoint import option, read_config
from .flags import ddtree_config
from .recurrent import GDN, follows_accepted_node, gdn_problems, recurrent_family
from .refusal_rows import OPTION_ROWS, TARGET_ROWS

if TYPE_CHECKING:
    from ..step.plan import StepPlan

__all__ = [
    "check_in_worker",
    "check_server_args",
    "refusal_table",
    "resolve_attention_backend",
    "target_problems",
]


def check_server_args(server_args: Any) -> None:
    """Check the options and the target's config, before any model is loaded.

    `server_args` is a `ServerArgs` record, a view of one, or SGLang's recording stand-in. Raises
    `ValueError` that lists everything refused.
    """
    cfg = _view(server_args)
    problems = [*_device_problems(cfg), *_option_problems(cfg), *_width_problems(cfg, server_args)]
    problems += _draft_backend_problems(cfg)
    if not cfg.speculative_draft_model_path:
        problems.append(
            "--speculative-draft-model-path is missing: set it to a DFlash drafter of this target"
        )
    if not problems:
        from sglang.srt.arg_groups.overrides import model_config_of

        model_config = model_config_of(server_args)
        problems += target_problems(model_config, ddtree_config(cfg))
        problems += auto_problems(cfg, ddtree_config(cfg), model_config)
        problems += _recurrent_problems(cfg, model_config)
        problems += _cpu_dtype_problems(model_config)
    _raise(problems)


def check_in_worker(server_args: Any, model_config: Any, sliding_window_size: int | None = None) -> None:
    """Check again in the process that decodes: argument handling ran in another one.

    `sliding_window_size` is the loaded model's, which some checkpoints do not state in their config.
    Raises `ValueError` that lists everything refused.
    """
    problems = [
        *_option_problems(_view(server_args)),
        *target_problems(model_config, ddtree_config(server_args)),
    ]
    if sliding_window_size is not None and sliding_window_size >= 0:
        problems.append(f"sliding-window target: the loaded model has a window of {sliding_window_size}")
    _raise(problems)


def refusal_table() -> list[dict[str, str]]:
    """One row per refusal with the keys `option`, `allowed`, `why`, for the README and `doctor`."""
    rows = [
        {"option": f"`{name}`", "allowed": allowed, "why": "the tree decides it"}
        for name, allowed in _WIDTHS.items()
    ]
    rows.append(
        {
            "option": f"`{_DRAFT_BACKEND}`",
            "allowed": "unset, or the target's backend",
            "why": _ONE_BACKEND,
        }
    )
    rows.append(
        {
            "option": "`--speculative-ddtree-budget auto`",
            "allowed": "targets without recurrent layers other than GDN; on CUDA with full decode CUDA graphs",
            "why": "its widths are CUDA graphs, and other recurrent layers keep their states at one width",
        }
    )
    rows += [{"option": f"`{row.name}`", "allowed": row.allowed, "why": row.why} for row in OPTION_ROWS]
    rows += [{"option": row.name, "allowed": "no", "why": row.why} for row in TARGET_ROWS]
    rows += [
        {"option": f"`{name}`", "allowed": "unset, on GDN targets", "why": _OWN_KERNELS}
        for name in _GDN_BACKENDS
    ]
    rows.append({"option": _OTHER_RECURRENT, "allowed": f"with `{_UNSAFE}`", "why": _UNPROVEN})
    return rows


_WIDTHS = {
    "--speculative-num-draft-tokens": "unset, or what the budget makes it",
    "--speculative-dflash-block-size": "unset, or the drafter's block_size",
    "--speculative-num-steps": "unset, or what /server_info shows",
    "--speculative-eagle-topk": "unset, or what /server_info shows",
}

_OTHER_RECURRENT = "target with recurrent layers other than Qwen3-Next's and Qwen3.5's GDN"
_UNSAFE = "--speculative-ddtree-allow-hybrid-unsafe"
_UNPROVEN = "it is not proven that the state follows the accepted node"

_GDN_BACKENDS = ("--linear-attn-verify-backend", "--linear-attn-decode-backend")
_OWN_KERNELS = "a step verifies GDN layers with this package's own kernels"

_DRAFT_BACKEND = "--speculative-draft-attention-backend"
_ONE_BACKEND = "one backend serves draft and verify"


def _view(server_args: Any) -> Any:
    from sglang.srt.arg_groups.arg_utils import is_record
    from sglang.srt.arg_groups.overrides import resolving_view

    return resolving_view(server_args) if is_record(server_args) else server_args


def _device_problems(cfg: Any) -> Iterator[str]:
    from sglang.srt.platforms import current_platform

    device = str(cfg.device)
    if current_platform.is_out_of_tree():
        if not current_platform.supports_speculative_algorithm(ALGORITHM):
            platform = type(current_platform).__name__
            yield f"--device {device}: the platform {platform} does not know {ALGORITHM}"
    elif not device.startswith("cuda") or _is_rocm():
        found = "ROCm" if _is_rocm() else device
        yield (
            f"--device {found}: this version runs on NVIDIA GPUs, and on a CPU when the environment has "
            "SGLANG_PLATFORM=ddtree_cpu"
        )


def _cpu_dtype_problems(model_config: Any) -> Iterator[str]:
    import torch
    from sglang.srt.platforms import current_platform

    if current_platform.is_out_of_tree() and model_config.dtype != torch.float32:
        dtype = str(model_config.dtype).removeprefix("torch.")
        yield (
            f"--dtype {dtype} (given or the target's own): on the CPU platform SGLang's DFlash draft runs in float32 "
            "only. Set --dtype float32"
        )


def _is_rocm() -> bool:
    import torch

    return torch.version.hip is not None


def _option_problems(cfg: Any) -> Iterator[str]:
    for row in OPTION_ROWS:
        value = getattr(cfg, row.field)
        if row.refused(value):
            shown = row.name if value is True else f"{row.name} {value}"
            yield f"{shown}: {row.why}. {row.fix}"


def _width_problems(cfg: Any, server_args: Any) -> Iterator[str]:
    """Numbers that the tree decides: what the user gave must be what DDTREE publishes anyway."""
    given = _as_given(cfg)
    asked = {name: given(_field(name)) for name in _WIDTHS}
    if all(value is None for value in asked.values()) or not cfg.speculative_draft_model_path:
        return
    from sglang.srt.arg_groups.overrides import model_config_of

    config = ddtree_config(cfg)
    # The default alone depends on the target.
    model_config = model_config_of(server_args) if config.budget is None else None
    plan = _plan(cfg, config, model_config)
    if plan is None:
        return  # the drafter's own check says what is wrong with it
    budget = budget_of(cfg, config, model_config)
    published = plan.host_fields()
    for name, value in asked.items():
        taken = published[_field(name)]
        if value is not None and value != taken:
            yield (
                f"{name} {value}: DDTREE takes {taken} at --speculative-ddtree-budget {budget}, "
                f"--speculative-ddtree-topk-cap {config.topk_cap} and the drafter's block_size "
                f"{plan.block_size}. Leave it out"
            )


def _field(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _draft_backend_problems(cfg: Any) -> Iterator[str]:
    value = _as_given(cfg)(_field(_DRAFT_BACKEND))
    if value is None:
        return
    try:
        backend = resolve_attention_backend(cfg)
    except ValueError:
        return  # startup raises this after these checks
    if value != backend:
        yield f"{_DRAFT_BACKEND} {value}: {_ONE_BACKEND}, here {backend}. Leave it out"


def _plan(cfg: Any, config: DDTreeConfig, model_config: Any) -> StepPlan | None:
    try:
        draft = read_config(cfg.speculative_draft_model_path, cfg.speculative_draft_model_revision)
        return plan_for(cfg, config, model_config, option(draft, "block_size"), draft["vocab_size"])
    except (ValueError, TypeError, KeyError):
        return None


def _as_given(cfg: Any) -> Any:
    # Resolution writes these fields itself; the snapshot it took first holds what the user gave.
    raw = getattr(cfg, "_raw_input", None)
    return raw.get if raw is not None else lambda field: getattr(cfg, field)


def target_problems(model_config: Any, config: DDTreeConfig) -> Iterator[str]:
    """Why a target of SGLang's `ModelConfig` is not served, one text per reason."""
    architectures = getattr(model_config.hf_config, "architectures", None)
    for row in TARGET_ROWS:
        if row.refused(model_config):
            yield f"{row.name} {architectures}: {row.why}. {row.fix}"
    family = recurrent_family(model_config)
    if family not in (None, GDN) and not config.allow_hybrid_unsafe:
        yield (
            f"hybrid target {architectures} with {family} layers: {_UNPROVEN}, so its text may differ from "
            f"plain decoding. Use --speculative-algorithm DFLASH, or take the risk with {_UNSAFE}"
        )


def _recurrent_problems(cfg: Any, model_config: Any) -> list[str]:
    if not follows_accepted_node(model_config):
        return []
    plan = _plan(cfg, ddtree_config(cfg), model_config)
    if plan is None:
        return []  # the drafter's own check says what is wrong with it
    tracks = not cfg.disable_radix_cache and str(cfg.mamba_radix_cache_strategy).startswith("extra_buffer")
    problems = gdn_problems(
        model_config,
        plan,
        cfg.mamba_track_interval if tracks else None,
        cfg.mamba_ssm_dtype,
        int(cfg.tp_size),
    )
    given = _as_given(cfg)
    for name in _GDN_BACKENDS:
        if given(_field(name)) is not None:
            problems.append(f"{name} {given(_field(name))}: {_OWN_KERNELS}. Leave it out")
    return problems


def _raise(problems: list[str]) -> None:
    if problems:
        raise ValueError(
            "DDTREE cannot start: " + "; ".join(problem.rstrip(".") for problem in problems) + "."
        )

"""From flags and checkpoints to the numbers of a step, once in the launcher and again in the worker."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.runtime_context import get_spec

from .flags import ddtree_config

if TYPE_CHECKING:
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.server_args import ServerArgs

    from ..step.plan import StepPlan
    from ..step.worker import DDTreeWorker

logger = logging.getLogger(__name__)


def resolve(server_args: ServerArgs) -> None:
    """Check everything that can be checked before a model is loaded, then set SGLang's fields.

    `server_args` is SGLang's recording stand-in: what is assigned here reaches every process.

    Raises:
        ValueError: something is not supported; the message names flag, value and what to do.
    """
    from ..step.plan import StepPlan
    from . import hooks, refusals
    from .drafter import check_drafter_of

    hooks.verify_applied()
    refusals.check_server_args(server_args)
    config = ddtree_config(server_args)
    report = check_drafter_of(server_args)
    plan = StepPlan.resolve(
        block_size=report.block_size,
        budget=config.budget,
        topk_cap=config.topk_cap,
        vocab_size=report.vocab_size,
    )
    for field, value in plan.host_fields().items():
        setattr(server_args, field, value)
    backend = refusals.resolve_attention_backend(server_args)
    server_args.attention_backend = backend
    # The draft block is a plain non-causal forward, which every backend that takes a tree mask can do.
    server_args.speculative_draft_attention_backend = backend
    if server_args.max_running_requests is None:
        # What SGLang takes for DFLASH.
        server_args.max_running_requests = 48


def worker_plan(server_args: ServerArgs, model_runner: ModelRunner) -> StepPlan:
    """The plan again, in the process that decodes: argument handling ran in another one.

    Raises:
        ValueError: something is not supported after all.
        RuntimeError: a hook is not in effect, or the published widths are not the plan's.
    """
    from ..step.plan import StepPlan
    from . import hooks, refusals

    hooks.verify_applied()
    refusals.check_in_worker(server_args, model_runner.model_config, model_runner.sliding_window_size)
    config = ddtree_config(server_args)
    spec = get_spec()
    plan = StepPlan.resolve(
        block_size=int(spec.speculative_dflash_block_size),
        budget=config.budget,
        topk_cap=config.topk_cap,
        vocab_size=int(model_runner.model_config.vocab_size),
    )
    if plan.verify_width != spec.speculative_num_draft_tokens:
        raise RuntimeError(
            f"DDTREE's verify width is {plan.verify_width} in this process (budget {plan.budget}, block_size "
            f"{plan.block_size}), but speculative_num_draft_tokens was published as "
            f"{spec.speculative_num_draft_tokens}"
        )
    return plan


def dense_lm_head(lm_head: Any) -> Any:
    """The target head, which the draft borrows, if its logits are one matrix product.

    Raises:
        ValueError: no head, or a quantised one.
    """
    weight = getattr(lm_head, "weight", None)
    if not isinstance(weight, torch.Tensor) or not weight.is_floating_point():
        found = "no lm_head" if lm_head is None else f"lm_head {type(lm_head).__name__}"
        kind = getattr(weight, "dtype", "no weight")
        raise ValueError(
            "DDTREE borrows the target's lm_head and needs it as a dense floating-point weight; the target "
            f"has {found} with {kind}. Use a checkpoint whose lm_head is not quantised."
        )
    return lm_head


def log_ready(worker: DDTreeWorker) -> None:
    plan = worker.plan
    logger.info(
        "DDTREE ready. block_size=%d, budget=%d, topk=%d, verify_width=%d, max_depth=%d, memory=%s",
        plan.block_size,
        plan.budget,
        plan.topk,
        plan.verify_width,
        plan.max_depth,
        memory_line(worker),
    )


def memory_line(worker: DDTreeWorker) -> str:
    mask = worker.model_runner.attn_backend.verify_mask
    mask_mib = mask.buffer.numel() * mask.buffer.element_size() / 2**20 if mask is not None else 0.0
    head_mib = worker.captured_head.nbytes / 2**20 if worker.captured_head is not None else 0.0
    return f"{mask_mib + head_mib:.1f} MiB (mask {mask_mib:.1f}, candidates {head_mib:.1f})"

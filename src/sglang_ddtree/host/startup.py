"""From flags and checkpoints to the numbers of a step, once in the launcher and again in the worker."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.runtime_context import get_spec

from .flags import ddtree_config
from .recurrent import recurrent_family
from .verify_attention import workspace_bytes

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
    from sglang.srt.arg_groups.overrides import model_config_of, resolving_view

    from . import hooks, refusals
    from .budget import plan_for
    from .drafter import check_drafter_of

    hooks.verify_applied()
    refusals.check_server_args(server_args)
    config = ddtree_config(server_args)
    report = check_drafter_of(server_args)
    plan = plan_for(
        resolving_view(server_args),
        config,
        model_config_of(server_args),
        report.block_size,
        report.vocab_size,
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
        logger.warning("DDTREE sets --max-running-requests to 48; set it to choose another number.")


def worker_plan(server_args: ServerArgs, model_runner: ModelRunner) -> StepPlan:
    """The plan again, in the process that decodes: argument handling ran in another one.

    Raises:
        ValueError: something is not supported after all.
        RuntimeError: a hook is not in effect, or the published widths are not the plan's.
    """
    from . import hooks, refusals
    from .budget import plan_in_worker

    hooks.verify_applied()
    refusals.check_in_worker(server_args, model_runner.model_config, model_runner.sliding_window_size)
    spec = get_spec()
    plan = plan_in_worker(server_args, model_runner.model_config)
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
    from sglang.srt.layers.logits_processor import should_apply_lm_head_quant_method
    from sglang.srt.speculative.dflash_utils import is_dense_head_weight

    weight = getattr(lm_head, "weight", None)
    quantised = should_apply_lm_head_quant_method(lm_head, getattr(lm_head, "quant_method", None))
    if not is_dense_head_weight(weight) or quantised:
        found = "no lm_head" if lm_head is None else f"a {type(lm_head).__name__}"
        raise ValueError(
            "DDTREE borrows the target's lm_head and needs it as a dense float32, float16 or bfloat16 weight; "
            f"the target has {found} with {getattr(weight, 'dtype', 'no weight')}"
            f"{', quantised' if quantised else ''}. Use a checkpoint whose lm_head is not quantised."
        )
    return lm_head


def log_ready(worker: DDTreeWorker) -> None:
    from ..step.recurrent import tree_backend

    if not worker.ranks.is_first:
        return
    plan = worker.plan
    logger.info(
        "DDTREE ready. block_size=%d, budget=%s, topk=%d, verify_width=%s, max_depth=%d, memory=%s",
        plan.block_size,
        f"auto up to {plan.budget}" if plan.follows_load else plan.budget,
        plan.topk,
        ", ".join(map(str, plan.widths)),
        plan.max_depth,
        memory_line(worker),
    )
    recurrent = tree_backend(worker.model_runner)
    if recurrent is not None:
        logger.info(
            "DDTREE records the inputs of GDN layers: %s", recurrent.plan.describe(recurrent.requests)
        )
    elif worker.has_recurrent_layers:
        logger.warning(
            "DDTREE serves a target with %s layers at the user's risk "
            "(--speculative-ddtree-allow-hybrid-unsafe): its text may differ from plain decoding.",
            recurrent_family(worker.model_runner.model_config),
        )


def memory_line(worker: DDTreeWorker) -> str:
    """What the verify widths cost in buffers of fixed size, in MiB."""
    sizes = {"mask": 0, "trees": 0, "kv_indices": 0, "attention": 0}
    for backend in worker.widths.backends():
        mask = backend.verify_mask
        sizes["mask"] += mask.buffer.nbytes if mask is not None else 0
        # On a hybrid target the buffers are those of the full attention's backend.
        backend = getattr(backend, "full_attn_backend", backend)
        # Of SGLang's triton backend: context slots and partial results of the captured batch.
        sizes["kv_indices"] += _nbytes(backend, "cuda_graph_kv_indices")
        sizes["attention"] += _nbytes(backend, "cuda_graph_attn_logits") + _nbytes(
            backend, "cuda_graph_attn_lse"
        )
    sizes["attention"] += workspace_bytes()
    sizes["trees"] = worker.captured_trees.nbytes if worker.captured_trees is not None else 0
    parts = ", ".join(f"{name} {size / 2**20:.1f}" for name, size in sizes.items())
    return f"{sum(sizes.values()) / 2**20:.1f} MiB ({parts})"


def _nbytes(backend: Any, name: str) -> int:
    tensor = getattr(backend, name, None)
    return tensor.nbytes if isinstance(tensor, torch.Tensor) else 0

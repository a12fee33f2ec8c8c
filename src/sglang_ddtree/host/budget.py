"""The tree budget of a server: a number, or "auto", a verify width that follows the load."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from ..config import AUTO, FIXED_BUDGET, DDTreeConfig
from .flags import ddtree_config
from .recurrent import GDN, is_tuned_at_startup, recurrent_family

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

    from ..step.plan import StepPlan

_FLAG = "--speculative-ddtree-budget"


def budget_of(cfg: Any, config: DDTreeConfig, model_config: Any) -> int | Literal["auto"]:
    """What the user gave; without it "auto" where the width can follow the load, else a fixed budget.

    Args:
        cfg: a resolved view of the server's `ServerArgs`.
        model_config: SGLang's `ModelConfig` of the target.
    """
    if config.budget is not None:
        return config.budget
    if has_graphs(cfg) and recurrent_family(model_config) is None:
        return "auto"
    return FIXED_BUDGET


def auto_problems(cfg: Any, config: DDTreeConfig, model_config: Any) -> Iterator[str]:
    """Why "auto", where it was asked for, is not served."""
    if config.budget == AUTO:
        for obstacle in _obstacles(cfg, model_config):
            yield f"{_FLAG} {AUTO}: {obstacle}. Set a number"


def plan_for(cfg: Any, config: DDTreeConfig, model_config: Any, block_size: int, vocab_size: int) -> StepPlan:
    """The numbers of a step. Raises ValueError where one is out of range."""
    from ..step.plan import StepPlan

    return StepPlan.resolve(
        block_size=block_size,
        budget=budget_of(cfg, config, model_config),
        topk_cap=config.topk_cap,
        vocab_size=vocab_size,
    )


def plan_in_worker(server_args: ServerArgs, model_config: Any) -> StepPlan:
    """The same in the process that decodes, where the target's config is at hand and the block size published."""
    from sglang.srt.arg_groups.overrides import resolved_view
    from sglang.srt.runtime_context import get_spec

    return plan_for(
        resolved_view(server_args),
        ddtree_config(server_args),
        model_config,
        int(get_spec().speculative_dflash_block_size),
        int(model_config.vocab_size),
    )


def _obstacles(cfg: Any, model_config: Any) -> Iterator[str]:
    family = recurrent_family(model_config)
    if family not in (None, GDN):
        yield f"a target with {family} layers keeps its states at one width"
    elif (
        family == GDN
        and not _on_cpu()
        and not cfg.disable_flashinfer_autotune
        and is_tuned_at_startup(model_config)
    ):
        yield (
            "SGLang may tune this target's products with more nodes than its GDN layers can record; add "
            "--disable-flashinfer-autotune to serve it"
        )
    if not _on_cpu() and not has_graphs(cfg):
        yield f"the widths are CUDA graphs, and decode graphs are {_decode_graphs(cfg)} here, not full"


def has_graphs(cfg: Any) -> bool:
    """Whether decode steps are full CUDA graphs."""
    return not _on_cpu() and _decode_graphs(cfg) == "full"


def _on_cpu() -> bool:
    from sglang.srt.platforms import current_platform

    return bool(current_platform.is_out_of_tree())


def _decode_graphs(cfg: Any) -> str:
    # SGLang folds its flags into this record before it resolves the speculative algorithm.
    config = cfg.cuda_graph_config
    return "full" if config is None else str(config.decode.backend)

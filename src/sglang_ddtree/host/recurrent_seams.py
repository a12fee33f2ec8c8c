"""Hooks that make a GDN target record a node's inputs where SGLang would store a state per node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .hooks import declare
from .recurrent import StateMemory, follows_accepted_node, recurrent_plan
from .seams import serves_ddtree

_CONFIGURATOR = "sglang.srt.mem_cache.kv_cache_configurator"

_records_inputs: ContextVar[bool] = ContextVar("records_inputs", default=False)


def _applies(model_config: Any) -> bool:
    return serves_ddtree() and follows_accepted_node(model_config)


def skip_states(result: bool) -> bool:
    return result or _records_inputs.get()


def build_pool(original: Callable[..., Any], configurator: Any, **sizes: Any) -> Any:
    with _recording(configurator):
        return original(configurator, **sizes)


def plan_memory(original: Callable[..., Any], configurator: Any, total_rest_memory: float) -> Any:
    if not _applies(configurator.model_config):
        return original(configurator, total_rest_memory)
    from sglang.srt.runtime_context import get_memory, get_schedule

    schedule = get_schedule()
    plan = recurrent_plan(configurator.server_args, configurator.model_config)
    requests, rest = int(schedule.max_running_requests), total_rest_memory * 2**30
    slots_per_request = int(configurator._calculate_mamba_ratio())
    if schedule.max_mamba_cache_size is not None:
        given = int(schedule.max_mamba_cache_size)
        # SGLang then runs as many requests as these states allow.
        requests = min(requests, given // slots_per_request)
        memory = StateMemory(int(rest), 0, given + 1, 1.0)
    elif get_memory().disable_radix_cache:
        memory = StateMemory(int(rest), 1, 1, 1.0)
    else:
        memory = StateMemory.sized_by_ratio(rest, schedule.mamba_full_memory_ratio, slots_per_request)
    if requests:  # with none SGLang says what is too small
        plan.check_fit(memory, requests)
    with _recording(configurator):
        return original(configurator, total_rest_memory - plan.record_bytes(requests) / 2**30)


def lazy_window(
    original: Callable[..., Any], req: Any, mamba_track_interval: int, max_draft_tokens: int
) -> Any:
    if serves_ddtree():
        from sglang.srt.runtime_context import get_spec

        # A step commits one path of the tree, not its nodes.
        max_draft_tokens = min(max_draft_tokens, int(get_spec().speculative_dflash_block_size))
    return original(req, mamba_track_interval, max_draft_tokens)


@contextmanager
def _recording(configurator: Any) -> Iterator[None]:
    """While it is open, SGLang's pool and its plan leave the states per node out."""
    token = _records_inputs.set(_applies(configurator.model_config))
    try:
        yield
    finally:
        _records_inputs.reset(token)


def wrap_backend(result: Any, runner: Any, full_attn_backend: Any) -> Any:
    if runner.is_draft_worker or not _applies(runner.model_config):
        return result
    from ..step.recurrent import with_tree_verify

    return with_tree_verify(result, runner)


def install() -> None:
    """Declare the hooks; SGLang applies them once every plugin has loaded."""
    declare(
        f"{_CONFIGURATOR}._pd_prefill_skips_mamba_spec_state",
        "after",
        "SGLang's own switch for a pool without states per node",
        skip_states,
    )
    declare(
        f"{_CONFIGURATOR}.KVCacheConfigurator._build_hybrid_req_pool",
        "around",
        "a state per node is W times 72 MiB a request on a 27B model; the inputs are recorded instead",
        build_pool,
    )
    declare(
        f"{_CONFIGURATOR}.KVCacheConfigurator._handle_max_mamba_cache",
        "around",
        "reserves the record, and refuses with the numbers where it does not fit",
        plan_memory,
    )
    declare(
        "sglang.srt.layers.attention.attention_registry.attn_backend_wrapper",
        "after",
        "SGLang's GDN verify stores a state per node; ours computes with the ancestor mask",
        wrap_backend,
    )
    declare(
        "sglang.srt.managers.schedule_batch.mamba_lazy_spec_in_window",
        "around",
        "looks twice the verify width ahead, where a step reaches one path: lazy checkpoints would be dropped",
        lazy_window,
    )

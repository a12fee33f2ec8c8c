"""Hooks that teach SGLang that draft and verify have different widths.

Each one does nothing unless the process serves DDTREE.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .hooks import declare

if TYPE_CHECKING:
    from sglang.srt.speculative.spec_info import SpecInput


def serves_ddtree() -> bool:
    from sglang.srt.runtime_context import get_spec

    return get_spec().speculative_algorithm == "DDTREE"


def reserve_both_widths(original: Callable[..., Any], reqs: Any, *, reserve: int, page_size: int) -> Any:
    if serves_ddtree():
        from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode

        reserve = max(reserve, get_alloc_reserve_per_decode())
    return original(reqs, reserve=reserve, page_size=page_size)


def widen_row(result: int) -> int:
    if not serves_ddtree():
        return result
    from sglang.srt.mem_cache.allocation_sizing import get_alloc_page_size, get_alloc_reserve_per_decode

    return max(result, 4 + get_alloc_reserve_per_decode() + get_alloc_page_size())


def relay_no_hidden_states(result: bool) -> bool:
    return False if serves_ddtree() else result


def dummy_verify_input(
    original: Callable[..., SpecInput | None],
    spec_algorithm: Any,
    custom_mask: Any,
    num_tokens_per_req: int,
    is_draft_worker: bool,
) -> SpecInput | None:
    if is_draft_worker or not _is_ddtree(spec_algorithm):
        return original(spec_algorithm, custom_mask, num_tokens_per_req, is_draft_worker)
    return _capture_input(custom_mask, num_tokens_per_req)


def captured_verify_input(
    original: Callable[..., SpecInput | None], runner: Any, num_tokens: int
) -> SpecInput | None:
    if runner.model_runner.is_draft_worker or not _is_ddtree(runner.model_runner.spec_algorithm):
        return original(runner, num_tokens)
    return _capture_input(runner.buffers.custom_mask, runner.captured_req_width)


def _is_ddtree(spec_algorithm: Any) -> bool:
    return getattr(spec_algorithm, "name", None) == "DDTREE"


def _capture_input(custom_mask: Any, width: int) -> SpecInput:
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode

    from ..step.verify_input import DDTreeVerifyInput

    return DDTreeVerifyInput(
        draft_token=None,
        custom_mask=custom_mask,
        positions=None,
        retrieve_index=None,
        retrieve_next_token=None,
        retrieve_next_sibling=None,
        retrieve_cum_len=None,
        spec_steps=width - 1,
        topk=2,
        draft_token_num=width,
        capture_hidden_mode=CaptureHiddenMode.FULL,
        seq_lens_sum=None,
        seq_lens_cpu=None,
    )


def capture_decode_graph(original: Callable[..., Any], *, model_runner: Any) -> Any:
    if not serves_ddtree():
        return original(model_runner=model_runner)
    from ..step.widths import capture_own_width

    return capture_own_width(original, model_runner)


def freeze_garbage(original: Callable[[bool], Any], enable_cudagraph_gc: bool) -> Any:
    if not serves_ddtree():
        return original(enable_cudagraph_gc)
    from ..step.widths import freeze_once

    return freeze_once(original, enable_cudagraph_gc)


def logits_rows(original: Callable[..., int], runner: Any) -> int:
    if not serves_ddtree():
        return original(runner)
    from ..step.widths import largest_logits

    return largest_logits(original, runner)


def gathered_tokens(original: Callable[..., int], include_prefill: bool, floor: int = 0) -> int:
    most = original(include_prefill, floor)
    if include_prefill or not serves_ddtree():
        return most
    from sglang.srt.runtime_context import get_schedule, get_spec

    # As many as DFLASH's. A larger step's logits go through NCCL, on all ranks alike.
    running = int(get_schedule().max_running_requests or 0)
    return min(most, max(floor, running * int(get_spec().speculative_dflash_block_size)))


def show_widths(result: None, controller: Any, state: dict[str, Any]) -> None:
    if serves_ddtree() and (snapshot := controller.scheduler.draft_worker.widths.snapshot()) is not None:
        state["ddtree_widths"] = snapshot


def install() -> None:
    """Declare the hooks; SGLang applies them once every plugin has loaded."""
    declare(
        "sglang.srt.mem_cache.allocation_sizing.page_aligned_decode_alloc_lens",
        "around",
        "DFLASH reserves twice one width; the draft block may be wider than the tree",
        reserve_both_widths,
    )
    declare(
        "sglang.srt.mem_cache.allocation_sizing.get_req_to_token_extra_context_len",
        "after",
        "a row must hold the whole reserve, or a request near the context end writes into its neighbour's",
        widen_row,
    )
    declare(
        "sglang.srt.speculative.spec_utils.spec_need_hidden_states",
        "after",
        "the test is by name; DDTREE relays no hidden states, as DFLASH does not",
        relay_no_hidden_states,
    )
    declare(
        "sglang.srt.speculative.spec_info.create_dummy_verify_input",
        "around",
        "a DFLASH-family algorithm would be warmed up as a chain without a mask",
        dummy_verify_input,
    )
    declare(
        "sglang.srt.model_executor.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner.get_spec_info",
        "around",
        "a DFLASH-family algorithm would be captured as a chain without a mask",
        captured_verify_input,
    )
    declare(
        "sglang.srt.model_executor.model_runner_components.cuda_graph_setup.capture_decode_graph",
        "around",
        "a wide verify is captured for the batch sizes that can use it alone",
        capture_decode_graph,
    )
    declare(
        "sglang.srt.model_executor.runner.base_cuda_graph_runner.freeze_gc",
        "around",
        "every captured width would walk the heap twice, which takes as long as some of its captures",
        freeze_garbage,
    )
    declare(
        "sglang.srt.model_executor.model_runner.ModelRunner.max_decode_logits_rows",
        "around",
        "the widest verify times the largest batch would be a buffer that no step fills",
        logits_rows,
    )
    declare(
        "sglang.srt.distributed.device_communicators.triton_symm_mem_ag.recommended_max_tokens",
        "around",
        "on several GPUs the widest verify of all requests would get a buffer of logits outside all reserves",
        gathered_tokens,
    )
    declare(
        "sglang.srt.managers.scheduler_components.internal_state.SchedulerInternalStateController._add_speculative",
        "after",
        "shows which verify widths ran, in the internal states of /server_info",
        show_widths,
    )

"""Rehearse the largest sampled step at startup, so that its memory is known before traffic comes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sglang.srt.model_executor.model_runner import SamplingPrewarmResult
from sglang.srt.runtime_context import get_exec

from ..tree.sample import sample_target

if TYPE_CHECKING:
    from .worker import DDTreeWorker


def rehearse_sampling(worker: DDTreeWorker) -> SamplingPrewarmResult:
    """Sample a whole batch of trees with top-p, the costliest filter, and measure the peak.

    Raises:
        RuntimeError: it does not fit, with the number and the flags to lower.
    """
    runner, width = worker.model_runner, worker.plan.verify_width
    batch = max(1, min(runner.max_decode_logits_rows() // width, int(runner.max_running_requests)))
    vocab_size = int(runner.model_config.vocab_size)
    input_bytes = batch * width * vocab_size * 4
    try:
        peak = _peak_bytes(batch, width, vocab_size, runner.device, seeded=_requests_are_seeded())
    except torch.OutOfMemoryError as error:
        raise RuntimeError(
            f"DDTREE cannot sample {batch} requests x {width} nodes x {vocab_size} tokens: the logits alone take "
            f"{input_bytes / 2**30:.1f} GiB and the GPU has no room for them. Lower --max-running-requests, "
            "--cuda-graph-max-bs-decode or --speculative-ddtree-budget, or --mem-fraction-static."
        ) from error
    runner.sampling_prewarm_result = SamplingPrewarmResult(
        sampling_input_bytes=input_bytes, sampling_headroom_bytes=peak + input_bytes
    )
    return runner.sampling_prewarm_result


def _requests_are_seeded() -> bool:
    return bool(get_exec().deterministic.enable_deterministic_inference)


def _peak_bytes(batch: int, width: int, vocab_size: int, device: str, *, seeded: bool) -> int:
    logits = torch.zeros(batch * width, vocab_size, device=device)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    sample_target(
        logits,
        torch.ones(batch, 1, device=device),
        torch.full((batch,), vocab_size, device=device),
        torch.full((batch,), 0.95, device=device),
        torch.zeros(batch, device=device),
        width,
        need_top_k=False,
        need_top_p=True,
        need_min_p=False,
        seeds=torch.zeros(batch, dtype=torch.int64, device=device) if seeded else None,
        positions=torch.zeros(batch, width, dtype=torch.int64, device=device),
    )
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before

"""Rehearsals at startup: no kernel is compiled, and no memory found missing, while requests wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sglang.srt.model_executor.model_runner import SamplingPrewarmResult
from sglang.srt.runtime_context import get_exec

from ..tree.accept import settle_path
from ..tree.sample import sample_target
from ..tree.tree import DraftTree
from ..tree.window import open_window
from .lengths import HostLengths
from .recurrent import tree_backend
from .verify import lay_out_for_verify, mask_buffer

if TYPE_CHECKING:
    from .worker import DDTreeWorker


def rehearse_steps(worker: DDTreeWorker) -> None:
    """Run what lies between the graphs once per width, on the padding slot: kernels compile at their first call."""
    runner, plan = worker.model_runner, worker.plan
    zero = torch.zeros(1, dtype=torch.int64, device=runner.device)
    trees = DraftTree.empty(1, plan.verify_width, plan.max_depth, zero.device)
    kv_cache = runner.token_to_kv_pool_allocator.get_kvcache()
    for width in plan.widths:
        window = open_window(
            zero,
            zero,
            runner.req_to_token_pool.req_to_token,
            zero,
            mask_token_id=worker.mask_token_id,
            block_size=plan.block_size,
            width=width,
        )
        with worker.widths.running(width) as backend:
            mask = mask_buffer(backend, window, width, HostLengths(zero.cpu(), plan.window))
            tree, topology = lay_out_for_verify(
                trees, window, width, mask, reads_prefix=worker.mask_reads_prefix
            )
            recurrent = tree_backend(runner)
            if recurrent is not None:
                recurrent.set_tree(tree, topology)
        _, rows = settle_path(
            tree, topology.ancestor_mask, tree.tokens, zero, window.slots, worker.widths.tally(width)
        )
    for batch in move_batches(rows.targets.shape[1], int(runner.max_running_requests)):
        # Slices of one allocation, as a step's are: their addresses decide the variant, too.
        targets, sources = torch.zeros(
            5, batch, rows.targets.shape[1], dtype=torch.int64, device=zero.device
        )[1:3]
        kv_cache.move_kv_cache(targets.view(-1), sources.view(-1))
    worker.widths.forget()


MOVE_CHUNKS = (128, 256)
"""Rows that SGLang's move of KV rows takes at a time, by the size of a row."""


def move_batches(rows: int, running: int) -> list[int]:
    """Batches of up to `running` requests that bring every variant of SGLang's move of `rows` KV rows per request.

    Triton compiles it for each power of two of the rows, and anew where their number is 1, a multiple of 16, or odd,
    which moves the rows' addresses.
    """
    found: dict[tuple[int, bool, bool, bool], int] = {}
    for batch in range(1, running + 1):
        count = batch * rows
        for chunk in MOVE_CHUNKS:
            for part in {min(count, chunk), count % chunk or chunk}:
                variant = ((part - 1).bit_length(), part == 1, part % 16 == 0, count % 2 == 1)
                found.setdefault(variant, batch)
    return sorted(set(found.values()))


def rehearse_sampling(worker: DDTreeWorker) -> SamplingPrewarmResult:
    """Sample a whole batch of trees in every way, so that each kernel is compiled, and measure the peak.

    Raises:
        RuntimeError: it does not fit, with the number and the flags to lower.
    """
    runner, plan = worker.model_runner, worker.plan
    rows, running = runner.max_decode_logits_rows(), int(runner.max_running_requests)
    # Of the steps that the captured widths allow, the one with the most logits.
    width, batch = max(
        ((width, max(1, min(rows // width, running))) for width in plan.widths),
        key=lambda step: step[0] * step[1],
    )
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
    """The most that a step's sampling allocates, top-p being the costliest filter of seeded requests."""
    logits = torch.zeros(batch * width, vocab_size, device=device)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    # Temperature alone, top-p, and the sizes of top-k that have a kernel of their own.
    variants = ((False, None), (True, None), (False, 32), (False, 64))
    for need_top_p, max_top_k in ((True, None),) if seeded else variants:
        sample_target(
            logits,
            torch.ones(batch, 1, device=device),
            torch.full((batch,), max_top_k or vocab_size, dtype=torch.int32, device=device),
            torch.full((batch,), 0.95, device=device),
            torch.zeros(batch, device=device),
            width,
            need_top_k=max_top_k is not None,
            need_top_p=need_top_p,
            need_min_p=False,
            max_top_k=max_top_k,
            seeds=torch.zeros(batch, dtype=torch.int64, device=device) if seeded else None,
            positions=torch.zeros(batch, width, dtype=torch.int64, device=device),
        )
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before

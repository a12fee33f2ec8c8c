"""Verify forwards of several widths on one server, and which of them a step runs."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from sglang.srt.model_executor.runner.base_cuda_graph_runner import freeze_gc, get_batch_sizes_to_capture
from sglang.srt.runtime_context import get_exec, get_spec

from ..tree.accept import WidthTally
from ..width import CostTable, WidthPolicy
from .plan import WIDE_TOKENS, StepPlan
from .recurrent import tree_backend

if TYPE_CHECKING:
    from sglang.srt.model_executor.model_runner import ModelRunner

    from .ranks import Ranks

logger = logging.getLogger(__name__)

WIDE_FLOPS = 1.2e12
"""A small model's step is bound by its launches for longer: up to the tokens that take this much computing, some
milliseconds on a Hopper GPU..."""
WIDE_LOGITS = 2**30
"""...and whose float32 logits take this many bytes, or as many as the draft's block brings at the largest batch."""
TALLY_STEPS = 8
"""Steps between two readings of the tally."""
REPLAYS = 3
REPLAYS_MS = 10.0
"""What a graph takes is the least of some replays, more of a short one: another process on the GPU slows some down."""


@dataclass(frozen=True)
class CapturePlan:
    """Which batch sizes each width is captured for.

    Attributes:
        plan: the server's.
        parameters: of the target.
        vocab_size: columns of its logits.
        records_nodes: the target's layers record every node, in memory that was planned for `WIDE_TOKENS`.
    """

    plan: StepPlan
    parameters: int
    vocab_size: int
    records_nodes: bool = False

    def sizes_of(self, width: int, sizes: list[int]) -> list[int]:
        """`StepPlan.sizes_of`, with the tokens that this target affords."""
        tokens = WIDE_TOKENS
        if not self.records_nodes:
            rows = max(WIDE_LOGITS // (4 * self.vocab_size), self.plan.block_size * max(sizes))
            tokens = max(tokens, min(int(WIDE_FLOPS / (2 * self.parameters)), rows))
        return self.plan.sizes_of(width, sizes, tokens)

    @contextmanager
    def captured(self, width: int) -> Iterator[None]:
        """Captures of the target within see the batch sizes of this width."""
        config = get_exec().graph.cuda_graph_config
        decode = dataclasses.replace(config.decode, bs=self.sizes_of(width, sorted(config.decode.bs)))
        with get_exec().graph.override(cuda_graph_config=dataclasses.replace(config, decode=decode)):
            yield


_capture_plans: WeakKeyDictionary[Any, CapturePlan] = WeakKeyDictionary()


def _captured_widths(runner: ModelRunner) -> CapturePlan | None:
    """Of a target whose steps choose among captured widths; None for any other runner."""
    captures = _capture_plans.get(runner)
    has_graphs = get_exec().graph.cuda_graph_config is not None
    return captures if captures is not None and captures.plan.follows_load and has_graphs else None


def capture_own_width(original: Callable[..., Any], runner: ModelRunner) -> Any:
    """Around SGLang's capture of a target: its own width is the widest, which few batch sizes can use."""
    captures = _captured_widths(runner)
    if captures is None:
        return original(model_runner=runner)
    with captures.captured(captures.plan.verify_width):
        return original(model_runner=runner)


def largest_logits(original: Callable[..., int], runner: ModelRunner) -> int:
    """Around SGLang's count of rows for the logits buffer: a wide verify never meets the largest batch."""
    captures = _captured_widths(runner)
    if captures is None:
        return original(runner)
    sizes, _ = get_batch_sizes_to_capture(runner, captures.plan.verify_width)
    return max(width * max(captures.sizes_of(width, sizes)) for width in captures.plan.widths)


_garbage_is_frozen = False


def freeze_once(original: Callable[[bool], Any], enable_cudagraph_gc: bool) -> AbstractContextManager[Any]:
    """Around SGLang's freeze of the garbage collector's heap while it captures: within ours it is frozen already."""
    return nullcontext() if _garbage_is_frozen else original(enable_cudagraph_gc)


@contextmanager
def _frozen_garbage() -> Iterator[None]:
    """One freeze for several captures."""
    global _garbage_is_frozen
    with freeze_gc(get_exec().graph.enable_cudagraph_gc):
        _garbage_is_frozen = True
        try:
            yield
        finally:
            _garbage_is_frozen = False


@dataclass(frozen=True)
class _Forward:
    """What the target runs at one width: its attention backend and its captured graphs, if there are any."""

    backend: Any
    graphs: Any | None


class VerifyWidths:
    """The widths of a server, each with a verify forward of its own, and the policy that chooses among them.

    With one width there is nothing to choose: nothing is counted, timed or swapped.
    """

    def __init__(
        self,
        plan: StepPlan,
        runner: ModelRunner,
        draft_runner: ModelRunner,
        ranks: Ranks,
        *,
        records_nodes: bool = False,
    ) -> None:
        parameters = ranks.of_first(sum(parameter.numel() for parameter in runner.model.parameters()))
        self.captures = _capture_plans[runner] = CapturePlan(
            plan,
            parameters,
            int(runner.model_config.vocab_size),
            records_nodes,
        )
        self.plan = plan
        self.runner = runner
        self.draft_runner = draft_runner
        self.ranks = ranks
        self.forwards: dict[int, _Forward] = {}
        self.policy: WidthPolicy | None = None
        self.meter: _Meter | None = None
        # Captured batch size -> width -> milliseconds of the draft's and the target's graph, measured at startup.
        self.graph_ms: dict[int, dict[str, float]] = {}

    def capture(self) -> None:
        """Capture the narrower widths; the widest is the runner's own, captured by SGLang."""
        own = _Forward(self.runner.attn_backend, self.runner.decode_cuda_graph_runner)
        widest = self.plan.verify_width
        self.forwards = dict.fromkeys(self.plan.widths, own)
        if not self.plan.follows_load:
            return
        # Without graphs nothing is known of the times before they are measured.
        sizes = {2**power for power in range(int(self.runner.max_running_requests).bit_length() + 1)}
        prior = {(size, width): 1.0 for size in sizes for width in self.plan.widths}
        if own.graphs is None:
            if tree_backend(self.runner) is not None:
                # A dense target's backend takes any width; one that records nodes has its own.
                self.forwards = {
                    width: _Forward(self._backend(width), None)
                    for width in self.plan.widths
                    if width < widest
                }
                self.forwards[widest] = own
        else:
            start, free = time.perf_counter(), torch.cuda.mem_get_info()[0]
            with _frozen_garbage():
                self.forwards = {
                    width: self._capture_one(width) for width in self.plan.widths if width < widest
                }
            if self.ranks.is_first:
                logger.info(
                    "DDTREE captured the verify widths %s besides %d: %.1f s, %.2f GB.",
                    ", ".join(map(str, self.forwards)),
                    widest,
                    time.perf_counter() - start,
                    (free - torch.cuda.mem_get_info()[0]) / 2**30,
                )
            self.forwards[widest] = own
            # Ranks choose alike, so they are told the same times.
            prior = self.ranks.of_first(self._measure())
            for size, width in sorted(prior):
                self.graph_ms.setdefault(size, {})[str(width)] = round(prior[size, width], 4)
        self.policy = WidthPolicy(self.plan.widths, CostTable(self.plan.widths, prior))
        self.meter = _Meter(self.plan.widths, self.policy, torch.device(self.runner.device), self.ranks)

    def backends(self) -> list[Any]:
        """The attention backends of the target, one per width; SGLang's own before `capture`."""
        found = {id(forward.backend): forward.backend for forward in self.forwards.values()}
        return list(found.values()) or [self.runner.attn_backend]

    def choose(self, batch_size: int) -> int:
        """The width of the next step."""
        if self.policy is None:
            return self.plan.verify_width
        assert self.meter is not None
        width = self.policy.choose(batch_size)
        self.meter.begin(batch_size, width)
        return width

    def snapshot(self) -> dict[str, Any] | None:
        """The policy's counters and `graph_ms`, with text keys; None where the width is fixed."""
        if self.policy is None:
            return None
        shown = self.policy.snapshot() | {"graph_ms": self.graph_ms}
        return {
            name: {str(key): value for key, value in values.items()} if isinstance(values, dict) else values
            for name, values in shown.items()
        }

    def tally(self, width: int) -> WidthTally | None:
        """Where the step adds up what each width would have emitted."""
        return None if self.meter is None else self.meter.tallies[width]

    def end(self) -> None:
        """The step is launched."""
        if self.meter is not None:
            self.meter.end()

    def forget(self) -> None:
        """What was added up so far was no traffic."""
        if self.meter is not None:
            self.meter.totals.zero_()

    def interrupt(self) -> None:
        """Something other than a decode step ran: the time to the next step says nothing."""
        if self.meter is not None:
            self.meter.interrupt()

    @contextmanager
    def running(self, width: int) -> Iterator[Any]:
        """The target as it verifies `width` tokens per request; gives its attention backend."""
        forward = self.forwards[width]
        if width == self.plan.verify_width:
            yield forward.backend
            return
        runner = self.runner
        own = runner.attn_backend, runner.decode_cuda_graph_runner
        runner.attn_backend, runner.decode_cuda_graph_runner = forward.backend, forward.graphs
        try:
            with get_spec().override(speculative_num_draft_tokens=width):
                yield forward.backend
        finally:
            runner.attn_backend, runner.decode_cuda_graph_runner = own

    def _backend(self, width: int) -> Any:
        """An attention backend of the target for `width` tokens per request."""
        kept = self.runner.init_new_workspace
        with get_spec().override(speculative_num_draft_tokens=width):
            try:
                return self.runner._get_attention_backend(init_new_workspace=True)
            finally:
                self.runner.init_new_workspace = kept

    def _capture_one(self, width: int) -> _Forward:
        runner = self.runner
        with get_spec().override(speculative_num_draft_tokens=width), self.captures.captured(width):
            backend = self._backend(width)
            graphs = type(runner.decode_cuda_graph_runner)(
                runner, attn_backend=backend, speculative_num_draft_tokens=width
            )
        return _Forward(backend, graphs)

    def _measure(self) -> dict[tuple[int, int], float]:
        """Milliseconds of draft and verify graphs by (batch size, width)."""
        drafts = self.draft_runner.decode_cuda_graph_runner
        # SGLang leaves the draft uncaptured where memory is short.
        draft_ms = {size: replay_ms(drafts, size, self.ranks) for size in getattr(drafts, "capture_bs", ())}
        found = {}
        for width, forward in self.forwards.items():
            assert forward.graphs is not None
            for size in forward.graphs.capture_bs:
                found[size, width] = draft_ms.get(size, 0.0) + replay_ms(forward.graphs, size, self.ranks)
        return found


def replay_ms(graphs: Any, size: int, ranks: Ranks) -> float:
    """Milliseconds of one captured graph on what its buffers hold: the least of some replays."""
    key = graphs._make_graph_key(size)

    def replay() -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graphs.backend.replay(key, None)
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    with graphs.backend.replay_session():
        times = [replay() for _ in range(REPLAYS + 1)][1:]
        # A graph waits for the same graph on the other ranks: all of them replay it as often.
        more = math.ceil(max(0.0, REPLAYS_MS - sum(times)) / min(times))
        times += [replay() for _ in range(ranks.of_first(more))]
    return min(times)


class _Meter:
    """Tells the policy what steps emitted and how long they took, without waiting for the device.

    The tally is copied to the host every `TALLY_STEPS` steps and read that many steps later, when the copy has
    long arrived. What steps emit is the same on every rank; their times are the first rank's, told one step late.
    """

    def __init__(
        self, widths: tuple[int, ...], policy: WidthPolicy, device: torch.device, ranks: Ranks
    ) -> None:
        self.policy = policy
        self.ranks = ranks
        # What is on its way from the first rank: batch size, width, milliseconds.
        self.coming: tuple[int, int, Callable[[], float]] | None = None
        self.widths = widths
        count = len(widths)
        self.totals = torch.zeros(count, count + 1, dtype=torch.int64, device=device)
        limits = torch.tensor(widths, dtype=torch.int32, device=device)
        self.tallies = {width: WidthTally(limits, self.totals[row]) for row, width in enumerate(widths)}
        self.on_cuda = device.type == "cuda"
        self.copy = torch.zeros(count, count + 1, dtype=torch.int64, pin_memory=self.on_cuda)
        self.arrived = torch.cuda.Event() if self.on_cuda else None
        self.read = [[0] * (count + 1) for _ in widths]
        self.steps = 0
        self.previous: tuple[float, int, int] | None = None

    def begin(self, batch_size: int, width: int) -> None:
        now = time.perf_counter()
        if self.previous is not None:
            # From one step's launch to the next one's: under overlap the host runs one step ahead of the device.
            start, size, step_width = self.previous
            if self.policy.costs.captured_batch(size) == self.policy.costs.captured_batch(batch_size):
                self.tell(size, step_width, 1000 * (now - start))
        self.previous = (now, batch_size, width)

    def tell(self, batch_size: int, width: int, ms: float) -> None:
        """A step took `ms` on this rank's clock."""
        if self.ranks.count == 1:
            self.policy.costs.observe(batch_size, width, ms)
            return
        if self.coming is not None:
            size, step_width, arrived = self.coming
            self.policy.costs.observe(size, step_width, arrived())
        self.coming = batch_size, width, self.ranks.send_first(ms)

    def interrupt(self) -> None:
        self.previous = None

    def end(self) -> None:
        self.steps += 1
        if self.steps % TALLY_STEPS:
            return
        if self.steps > TALLY_STEPS:
            self._report()
        self.copy.copy_(self.totals, non_blocking=True)
        if self.arrived is not None:
            self.arrived.record()

    def _report(self) -> None:
        if self.arrived is not None:
            self.arrived.synchronize()
        for width, row, before in zip(self.widths, self.copy.tolist(), self.read, strict=True):
            requests = row[-1] - before[-1]
            if requests:
                new = [now - then for now, then in zip(row[:-1], before[:-1], strict=True)]
                self.policy.gains.observe(width, new, requests)
            before[:] = row

"""Which batch sizes a verify width is captured for, and what of the runner it replaces while it runs."""

from __future__ import annotations

import ast
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_ddtree.width import CostTable, WidthPolicy

pytestmark = pytest.mark.usefixtures("sglang_with_plugins")

SIZES = [1, 2, 4, 8, 12, 16, 24, 32, 48]
ALONE: Any = SimpleNamespace(count=1, is_first=True, of_first=lambda value: value)
"""The ranks of a server on one device."""


def plan(budget: Any, block_size: int = 16) -> Any:
    from sglang_ddtree.step.plan import StepPlan

    return StepPlan.resolve(block_size=block_size, budget=budget, topk_cap=16, vocab_size=1000)


def captures(
    budget: Any, parameters: float = 8e9, vocab_size: int = 150_000, records_nodes: bool = False
) -> Any:
    from sglang_ddtree.step.widths import CapturePlan

    return CapturePlan(plan(budget), int(parameters), vocab_size, records_nodes)


@pytest.mark.parametrize(
    ("width", "expected"), [(8, SIZES), (16, SIZES), (32, [1, 2, 4, 8, 12, 16]), (64, [1, 2, 4, 8])]
)
def test_wide_verifies_are_captured_for_small_batches(width: int, expected: list[int]) -> None:
    assert captures("auto").sizes_of(width, SIZES) == expected


@pytest.mark.parametrize(
    ("parameters", "vocab_size", "width", "expected"),
    [
        # 600 million parameters: 1,000 tokens.
        (6e8, 150_000, 64, [1, 2, 4, 8, 12]),
        (6e8, 150_000, 32, [1, 2, 4, 8, 12, 16, 24]),
        # 135 million would take 4,444; their logits fit for all of these batches, with a large vocabulary for 1,789.
        (1.35e8, 50_000, 64, SIZES),
        (1.35e8, 150_000, 64, [1, 2, 4, 8, 12, 16, 24]),
        # The draft's block brings 768 rows of logits in any case.
        (1.35e8, 10_000_000, 64, [1, 2, 4, 8, 12]),
    ],
)
def test_a_small_target_affords_more_tokens(
    parameters: float, vocab_size: int, width: int, expected: list[int]
) -> None:
    assert captures("auto", parameters, vocab_size).sizes_of(width, SIZES) == expected


def test_a_small_target_that_records_nodes_keeps_to_what_was_planned() -> None:
    assert captures("auto", 1.35e8, 50_000, records_nodes=True).sizes_of(64, SIZES) == [1, 2, 4, 8]
    assert captures("auto", 1.35e8, 50_000, records_nodes=True).sizes_of(16, SIZES) == SIZES


def test_a_fixed_budget_is_captured_for_every_batch() -> None:
    assert captures(63).sizes_of(64, SIZES) == SIZES


def test_a_width_has_a_graph_even_where_every_batch_is_large() -> None:
    assert captures("auto").sizes_of(64, [32, 48]) == [32]


@pytest.fixture
def widths() -> Any:
    from sglang_ddtree.step.widths import VerifyWidths, _Forward

    runner = SimpleNamespace(attn_backend="own backend", decode_cuda_graph_runner="own graphs")
    # The registry of plans holds its keys weakly, which a SimpleNamespace does not allow.
    made = object.__new__(VerifyWidths)
    made.plan, made.runner, made.policy, made.meter, made.graph_ms = plan("auto"), runner, None, None, {}
    made.forwards = {width: _Forward(f"backend {width}", f"graphs {width}") for width in (8, 16, 32)}
    made.forwards[64] = _Forward("own backend", "own graphs")
    return made


@pytest.fixture
def spec(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stands in for SGLang's published configuration, which only a server has."""

    @contextmanager
    def override(**fields: int) -> Iterator[None]:
        kept = made.speculative_num_draft_tokens
        made.speculative_num_draft_tokens = fields["speculative_num_draft_tokens"]
        try:
            yield
        finally:
            made.speculative_num_draft_tokens = kept

    made = SimpleNamespace(speculative_num_draft_tokens=64, override=override)
    monkeypatch.setattr("sglang_ddtree.step.widths.get_spec", lambda: made)
    return made


def test_a_narrow_width_runs_with_its_own_backend_graphs_and_width(
    widths: Any, spec: SimpleNamespace
) -> None:
    runner = widths.runner
    for width in (8, 64, 32):
        with widths.running(width) as backend:
            assert backend == runner.attn_backend
            assert spec.speculative_num_draft_tokens == width
            own = width == 64
            expected = ("own backend", "own graphs") if own else (f"backend {width}", f"graphs {width}")
            assert (runner.attn_backend, runner.decode_cuda_graph_runner) == expected
        assert (runner.attn_backend, runner.decode_cuda_graph_runner) == ("own backend", "own graphs")
        assert spec.speculative_num_draft_tokens == 64


@pytest.mark.usefixtures("spec")
def test_a_step_that_fails_leaves_the_runner_as_it_was(widths: Any) -> None:
    with pytest.raises(RuntimeError, match="the step failed"), widths.running(16):
        raise RuntimeError("the step failed")
    assert widths.runner.attn_backend == "own backend"
    assert widths.runner.decode_cuda_graph_runner == "own graphs"


def test_what_steps_add_up_reaches_the_policy_later() -> None:
    from sglang_ddtree.step.widths import TALLY_STEPS, _Meter

    costs = CostTable((8, 16), {(4, 8): 1.0, (4, 16): 1.0})
    policy = WidthPolicy((8, 16), costs)
    prior = [policy.gains.expected(width) for width in (8, 16)]
    meter = _Meter((8, 16), policy, torch.device("cpu"), ALONE)
    for step in range(3 * TALLY_STEPS):
        # Four requests a step; width 8 would emit 8 tokens, width 16 emits 12.
        meter.tallies[16].totals.add_(torch.tensor([8, 12, 4]))
        meter.end()
        told = [policy.gains.expected(width) for width in (8, 16)]
        # The first copy is read when the second one is due.
        assert (told == prior) == (step < 2 * TALLY_STEPS - 1), step
    assert policy.gains.is_observed(16)
    assert policy.gains.expected(16) > policy.gains.expected(8)
    for _ in range(100 * TALLY_STEPS):
        meter.tallies[16].totals.add_(torch.tensor([8, 12, 4]))
        meter.end()
    assert policy.gains.expected(8) == pytest.approx(2.0, rel=0.02)
    assert policy.gains.expected(16) == pytest.approx(3.0, rel=0.02)


def test_the_time_to_the_next_step_counts_where_both_run_the_same_graphs() -> None:
    from sglang_ddtree.step.widths import _Meter

    costs = CostTable((8, 16), {(size, width): 1.0 for size in (4, 8) for width in (8, 16)})
    seen: list[tuple[int, int]] = []
    costs.observe = lambda batch_size, width, ms: seen.append((batch_size, width))  # type: ignore[method-assign]
    meter = _Meter((8, 16), WidthPolicy((8, 16), costs), torch.device("cpu"), ALONE)
    for batch_size, width in ((3, 8), (4, 16), (4, 8), (5, 8), (5, 16)):
        meter.begin(batch_size, width)
    meter.interrupt()
    meter.begin(5, 8)
    assert seen == [(3, 8), (4, 16), (5, 8)], "not from 4 to 5, which run other graphs; not over a prefill"


def test_a_draft_without_graphs_adds_no_time(widths: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_ddtree.step.widths import _Forward

    monkeypatch.setattr("sglang_ddtree.step.widths.replay_ms", lambda graphs, size, ranks: 2.0 * size)
    graphs = SimpleNamespace(capture_bs=[1, 4])
    widths.ranks, widths.forwards = ALONE, {8: _Forward("backend", graphs)}
    # SGLang's eager runner stands in its place.
    widths.draft_runner = SimpleNamespace(decode_cuda_graph_runner=object())
    assert widths._measure() == {(1, 8): 2.0, (4, 8): 8.0}
    widths.draft_runner = SimpleNamespace(decode_cuda_graph_runner=graphs)
    assert widths._measure() == {(1, 8): 4.0, (4, 8): 16.0}


class _Rank:
    """One of two ranks in this process; the first one speaks before the second one listens."""

    count = 2

    def __init__(self, first: _Rank | None = None) -> None:
        self.first = first
        self.sent: list[float] = []

    def send_first(self, value: float) -> Callable[[], float]:
        self.sent.append(value)
        said = (self.first or self).sent[len(self.sent) - 1]
        return lambda: said

    def of_first(self, value: Any) -> Any:
        self.sent.append(value)
        return (self.first or self).sent[len(self.sent) - 1]


def test_every_rank_is_told_the_times_of_the_first_one_a_step_late(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_ddtree.step import widths

    clocks = {"first": iter([0.0, 1.0, 3.0, 6.0, 6.5]), "second": iter([0.0, 9.0, 9.1, 9.2, 9.9])}
    first = _Rank()
    seen: dict[str, list[tuple[int, int, float]]] = {"first": [], "second": []}
    for name, rank in (("first", first), ("second", _Rank(first))):
        costs = CostTable((8, 16), {(4, width): 1.0 for width in (8, 16)})
        told = seen[name]
        costs.observe = lambda size, width, ms, told=told: told.append((size, width, ms))  # type: ignore[method-assign, misc]
        meter = widths._Meter((8, 16), WidthPolicy((8, 16), costs), torch.device("cpu"), rank)  # type: ignore[arg-type]
        monkeypatch.setattr(widths.time, "perf_counter", lambda clock=clocks[name]: next(clock))
        for batch_size, width in ((3, 8), (4, 16), (4, 8), (3, 16), (3, 16)):
            meter.begin(batch_size, width)
    # The fourth time is on its way.
    assert seen["first"] == seen["second"] == [(3, 8, 1000.0), (4, 16, 2000.0), (4, 8, 3000.0)]
    assert first.sent == [1000.0, 2000.0, 3000.0, 500.0]


class _Graphs:
    """Captured graphs that count their replays, and events whose clock each replay moves on."""

    def __init__(self, ms: float) -> None:
        self.ms, self.replays, self.now = ms, 0, 0.0
        self.backend = self

    def _make_graph_key(self, size: int) -> int:
        return size

    @contextmanager
    def replay_session(self) -> Iterator[None]:
        yield

    def replay(self, key: int, _: Any) -> None:
        self.replays += 1
        self.now += 5 * self.ms if self.replays == 1 else self.ms

    def event(self, enable_timing: bool) -> SimpleNamespace:
        made = SimpleNamespace(synchronize=lambda: None)
        made.record = lambda: setattr(made, "at", self.now)
        made.elapsed_time = lambda end: end.at - made.at
        return made


@pytest.mark.parametrize(("ms", "replays"), [(0.5, 21), (20.0, 4)])
def test_ranks_replay_a_graph_equally_often_however_long_each_takes(
    monkeypatch: pytest.MonkeyPatch, ms: float, replays: int
) -> None:
    from sglang_ddtree.step.widths import replay_ms

    first = _Rank()
    for rank, own in ((first, ms), (_Rank(first), 7 * ms), (ALONE, ms)):
        graphs = _Graphs(own)
        monkeypatch.setattr(torch.cuda, "Event", graphs.event)
        # The first replay, which takes longer, does not count.
        assert replay_ms(graphs, 4, rank) == pytest.approx(own)
        assert graphs.replays == replays


class _Runner:
    """Held weakly by the registry of plans, as SGLang's runners are."""

    is_draft_worker = False

    def __init__(self) -> None:
        self.model = torch.nn.Linear(1, 1, device="meta", bias=False)
        self.model_config = SimpleNamespace(vocab_size=150_000)
        self.model.weight = torch.nn.Parameter(torch.empty(4_000_000_000, device="meta"))


@pytest.mark.parametrize(("budget", "rows"), [("auto", 16 * 48), (63, 7)])
def test_the_logits_buffer_holds_the_largest_step_and_no_more(
    monkeypatch: pytest.MonkeyPatch, budget: Any, rows: int
) -> None:
    from sglang_ddtree.step import widths

    graph = SimpleNamespace(cuda_graph_config=object())
    monkeypatch.setattr(widths, "get_exec", lambda: SimpleNamespace(graph=graph))
    monkeypatch.setattr(widths, "get_batch_sizes_to_capture", lambda runner, width: (SIZES, []))
    runner = _Runner()
    widths.VerifyWidths(plan(budget), runner, runner, ALONE)
    # Widths 8 and 16 meet 48 requests, 32 meets 16 and 64 meets 8; a fixed width is SGLang's to count.
    assert widths.largest_logits(lambda _: 7, runner) == rows
    assert widths.largest_logits(lambda _: 7, _Runner()) == 7


def test_captures_see_the_sizes_of_their_width_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.model_executor.cuda_graph_config import CudaGraphConfig, PhaseConfig

    from sglang_ddtree.step import widths

    @contextmanager
    def override(cuda_graph_config: Any) -> Iterator[None]:
        kept, graph.cuda_graph_config = graph.cuda_graph_config, cuda_graph_config
        try:
            yield
        finally:
            graph.cuda_graph_config = kept

    config = CudaGraphConfig(decode=PhaseConfig(backend="full", bs=SIZES))
    graph = SimpleNamespace(cuda_graph_config=config, override=override)
    monkeypatch.setattr(widths, "get_exec", lambda: SimpleNamespace(graph=graph))
    runner = _Runner()
    widths.VerifyWidths(plan("auto"), runner, runner, ALONE)

    def capture(*, model_runner: Any) -> Any:
        return graph.cuda_graph_config.decode.bs

    seen = widths.capture_own_width(capture, runner)
    assert seen == [1, 2, 4, 8]
    assert graph.cuda_graph_config is config
    assert config.decode.bs == SIZES
    assert widths.capture_own_width(capture, _Runner()) == SIZES


def test_every_capture_of_a_target_goes_through_the_hook() -> None:
    """SGLang builds the runner of decode graphs in one function, which all its callers share."""
    from sglang.srt.model_executor.model_runner_components import cuda_graph_setup

    from sglang_ddtree.host import seams
    from sglang_ddtree.host.hooks import declared

    seams.install()
    target = next(hook.target for hook in declared() if hook.function is seams.capture_decode_graph)
    module, _, name = target.rpartition(".")
    assert module == cuda_graph_setup.__name__
    folder = Path(cuda_graph_setup.__file__).parents[1]
    sources = {path: ast.parse(path.read_text()) for path in folder.rglob("*.py")}
    builders = {
        function.name
        for tree in sources.values()
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and "get_graph_runner_cls" in ast.unparse(call.func)
    }
    assert builders == {name}


def test_captures_of_several_widths_freeze_the_heap_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the name that SGLang's capture calls, with the hook in place."""
    from sglang.srt.model_executor.runner import decode_cuda_graph_runner

    from sglang_ddtree.host import seams
    from sglang_ddtree.step import widths

    calls: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda *_: calls.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    monkeypatch.setattr(gc, "unfreeze", lambda: calls.append("unfreeze"))
    graph = SimpleNamespace(enable_cudagraph_gc=False)
    monkeypatch.setattr(widths, "get_exec", lambda: SimpleNamespace(graph=graph))
    monkeypatch.setattr(seams, "serves_ddtree", lambda: True)

    def capture() -> None:
        with decode_cuda_graph_runner.freeze_gc(False):
            calls.append("capture")

    alone = ["collect", "freeze", "capture", "unfreeze", "collect"]
    capture()
    assert calls == alone
    calls.clear()
    with widths._frozen_garbage():
        capture()
        capture()
    assert calls == ["collect", "freeze", "capture", "capture", "unfreeze", "collect"]
    with pytest.raises(RuntimeError), widths._frozen_garbage():
        raise RuntimeError
    calls.clear()
    capture()
    assert calls == alone
    monkeypatch.setattr(seams, "serves_ddtree", lambda: False)
    calls.clear()
    with widths._frozen_garbage():
        capture()
    assert calls == [*alone[:2], *alone, *alone[3:]], "another algorithm's captures are as they were"

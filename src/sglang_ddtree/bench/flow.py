"""The measurement of arms one after the other, and in each temperature by concurrency by run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..client import RequestFailed
from . import comparable
from .arms import Arm
from .parts import Counters, Parts, difference, settled
from .progress import Progress
from .timeline import Timeline

WARM_UP_TOKENS = 32
SAME_FAILURES = 2  # servers that did not start, before the others' are not tried
# What DFLASH logs where SGLang has no kernel for its sampling.
GREEDY_FALLBACK = "falling back to greedy argmax verification"
GREEDY_WARNING = (
    "The server verified greedily above temperature 0, too (SGLang has no sampling for DFLASH on this device): its "
    "figures there are those of greedy texts and compare with no other arm's."
)


class ArmFailed(RuntimeError):
    """An arm cannot be measured; the other arms can. `reason` is the message without what is the arm's own."""

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = message if reason is None else reason


class Server(Protocol):
    """What the flow needs of a server that is ready. One that is paused takes no core, and answers nobody."""

    def info(self) -> Mapping[str, Any]: ...
    def flush(self) -> None: ...
    def log(self) -> str: ...
    def metrics(self) -> str | None: ...
    def explain(self, error: Exception) -> str: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def generate(self, input_ids: Sequence[int], temperature: float, max_new_tokens: int) -> Timeline: ...


class Servers(Protocol):
    """Both ways to an arm's server, which is ended with the block.

    `start` gives it when it is ready and raises `ArmFailed` where it does not become so; `launch` gives at once what
    waits for that and may raise.
    """

    def start(self, arm: Arm) -> AbstractContextManager[Server]: ...
    def launch(self, arm: Arm) -> AbstractContextManager[Callable[[], Server]]: ...


@dataclass(frozen=True)
class Plan:
    """What every arm is measured at."""

    arms: Sequence[Arm]
    concurrencies: Sequence[int]
    temperatures: Sequence[float]
    runs: int
    max_new_tokens: int
    in_turns: bool = False

    @property
    def cells(self) -> list[tuple[int, float]]:
        """Concurrency and temperature of every cell, in the order in which they are measured."""
        return [(number, heat) for heat in self.temperatures for number in self.concurrencies]


@dataclass(frozen=True)
class Cell:
    """All runs of one arm at one concurrency and temperature: run -> prompt -> timeline.

    `parts` are None where the server does not count them.
    """

    concurrency: int
    temperature: float
    runs: Sequence[Sequence[Timeline]]
    parts: Parts | None = None


@dataclass
class ArmResult:
    """What became of one arm. `failure` is the reason why it was not measured to the end."""

    arm: Arm
    startup_s: float | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    failure: str | None = None


def measure(
    plan: Plan,
    prompts: Sequence[Sequence[int]],
    servers: Servers,
    progress: Progress,
    save: Callable[[Sequence[ArmResult]], object],
    keep_going: bool = False,
) -> list[ArmResult]:
    """Measure every arm; `prompts` are token ids, `save` gets what there is after each arm.

    The flags of the first arm that is measured are what the others' must equal: an arm that differs is not
    measured, so that nothing can compare it. Where two servers failed to start with the same reason and none has
    started, the others are not tried, unless `keep_going`.
    """
    results: list[ArmResult] = []
    failed: dict[str, list[str]] = {}  # reason -> arms
    per_arm = len(plan.cells) * plan.runs * len(prompts)
    for number, arm in enumerate(plan.arms, 1):
        same = next((names for names in failed.values() if len(names) >= SAME_FAILURES), None)
        if same and not keep_going and all(one.startup_s is None for one in results):
            _leave_out_the_rest(plan, results, " and ".join(same), progress, per_arm)
            save(results)
            break
        before = progress.done
        result = ArmResult(arm)
        reference = next((one for one in results if one.cells), None)
        progress.say(f"{arm.name} ({number} of {len(plan.arms)}): starting its server")
        try:
            _measure_arm(plan, prompts, servers, progress, result, reference)
        except (ArmFailed, RequestFailed) as error:
            result.failure = str(error)
            if isinstance(error, ArmFailed):
                failed.setdefault(error.reason, []).append(arm.name)
            progress.leave_out(per_arm - (progress.done - before))
            progress.say(f"{arm.name}: not measured: {error}")
        results.append(result)
        save(results)
    return results


def _leave_out_the_rest(
    plan: Plan, results: list[ArmResult], tried: str, progress: Progress, per_arm: int
) -> None:
    rest = plan.arms[len(results) :]
    progress.say(
        f"Stopping: the servers of {tried} did not start, with the same reason. Not tried: "
        f"{', '.join(arm.name for arm in rest)}; --keep-going tries them."
    )
    for arm in rest:
        results.append(ArmResult(arm, failure=f"not tried: {tried} did not start, with the same reason"))
        progress.leave_out(per_arm)


def _measure_arm(
    plan: Plan,
    prompts: Sequence[Sequence[int]],
    servers: Servers,
    progress: Progress,
    result: ArmResult,
    reference: ArmResult | None,
) -> None:
    began = time.monotonic()
    with servers.start(result.arm) as server:
        result.startup_s = time.monotonic() - began
        arm = Measured(plan, prompts, server, progress, result)
        arm.admit(reference)
        for cell in plan.cells:
            arm.begin(*cell)
            for _ in range(plan.runs):
                arm.run()
            arm.end()
        arm.finish()


class Measured:
    """An arm at its server: `admit`, then for every cell `begin`, all its runs and `end`, then `finish`.

    What is found goes into `result`.
    """

    def __init__(
        self,
        plan: Plan,
        prompts: Sequence[Sequence[int]],
        server: Server,
        progress: Progress,
        result: ArmResult,
    ) -> None:
        self.plan, self.prompts, self.server = plan, prompts, server
        self.progress, self.result = progress, result
        self._cell = (0, 0.0)
        self._runs: list[list[Timeline]] = []
        self._before: Counters | None = None

    def admit(self, reference: ArmResult | None) -> None:
        """Read the server's flags.

        Raises:
            ArmFailed: it does not compare with `reference`.
        """
        plan, result = self.plan, self.result
        result.info = self.server.info()
        result.flags = comparable.flags_of(result.info)
        if reference is not None:
            name, other = result.arm.name, reference.arm.name
            reasons = comparable.differences(name, result.flags, other, reference.flags, plan.concurrencies)
            if reasons:
                raise ArmFailed("not comparable: " + "; ".join(reasons))
        limit = result.info.get("max_running_requests")
        result.warnings = comparable.warnings(result.flags, limit, plan.concurrencies)

    def begin(self, concurrency: int, temperature: float) -> None:
        self._cell, self._runs = (concurrency, temperature), []
        self.progress.say(self._where())
        self._warm_up(WARM_UP_TOKENS)
        self._before = settled(self.server.metrics)

    def wake_up(self, tokens: int) -> None:
        """Before a later run of the cell, where the server was paused since the one before."""
        self.progress.say(f"{self._where()}, run {len(self._runs) + 1} of {self.plan.runs}")
        self._warm_up(tokens)

    def _where(self) -> str:
        concurrency, temperature = self._cell
        return f"{self.result.arm.name}: concurrency {concurrency}, temperature {temperature:g}"

    def _warm_up(self, tokens: int) -> None:
        """As many requests as the cell has at a time; the server is idle after it."""
        concurrency, temperature = self._cell
        prompts = [self.prompts[index % len(self.prompts)] for index in range(concurrency)]
        one_run(self.server, prompts, concurrency, temperature, min(tokens, self.plan.max_new_tokens))
        # Returns once the server is idle.
        self.server.flush()

    def run(self) -> None:
        concurrency, temperature = self._cell
        self._runs.append(
            one_run(
                self.server,
                self.prompts,
                concurrency,
                temperature,
                self.plan.max_new_tokens,
                on_done=self.progress.advance,
            )
        )
        self.server.flush()

    def end(self) -> None:
        spent = difference(self._before, settled(self.server.metrics))
        self.result.cells.append(Cell(*self._cell, self._runs, spent))

    def finish(self) -> None:
        if any(self.plan.temperatures) and GREEDY_FALLBACK in self.server.log():
            self.result.warnings.append(GREEDY_WARNING)


def one_run(
    server: Server,
    prompts: Sequence[Sequence[int]],
    concurrency: int,
    temperature: float,
    max_new_tokens: int,
    on_done: Callable[[], None] = lambda: None,
) -> list[Timeline]:
    """Every prompt once, `concurrency` of them in flight; the timelines in the prompts' order.

    Raises:
        RequestFailed: a request failed; those still waiting are not sent.
    """
    stop = threading.Event()

    def send(ids: Sequence[int]) -> Timeline:
        if stop.is_set():
            raise RequestFailed("not sent: another request failed")
        timeline = server.generate(ids, temperature, max_new_tokens)
        on_done()
        return timeline

    pool = ThreadPoolExecutor(concurrency)
    try:
        futures = [pool.submit(send, ids) for ids in prompts]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
        return [future.result() for future in futures]
    finally:
        # Not waiting for requests in flight: after Ctrl-C the server ends first, which ends them.
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)

"""The measurement of arms in turns: all servers stand at once, and in every cell run follows run arm by arm.

Where a machine's pace changes, arms that are measured minutes apart do not compare; runs that are seconds apart do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ..client import RequestFailed
from .flow import ArmFailed, ArmResult, Measured, Plan, Server, Servers
from .progress import Progress

STAGGER = 2.0
"""Seconds from one server's start to the next one's: each reads how much of the GPU is free."""
WAKE_UP_TOKENS = 8


def measure_in_turns(
    plan: Plan,
    prompts: Sequence[Sequence[int]],
    servers: Servers,
    progress: Progress,
    save: Callable[[Sequence[ArmResult]], object],
) -> list[ArmResult]:
    """Measure the arms as `flow.measure` does, in turns; a server that waits for its turn is paused."""
    results = [ArmResult(arm) for arm in plan.arms]
    turns = _Turns(progress, len(plan.cells) * plan.runs * len(prompts))
    with ExitStack() as stack:
        arms: list[Measured] = []
        for result, server in _start_all(results, servers, stack, turns):
            arm = Measured(plan, prompts, server, progress, result)
            with turns.turn(arm):
                arm.admit(arms[0].result if arms else None)
                arms.append(arm)
        save(results)
        for cell in plan.cells:
            for number in range(plan.runs):
                for arm in arms:
                    with turns.turn(arm):
                        if number == 0:
                            arm.begin(*cell)
                        else:
                            arm.wake_up(WAKE_UP_TOKENS)
                        arm.run()
                        if number == plan.runs - 1:
                            arm.end()
                arms = [arm for arm in arms if arm.result.failure is None]
            save(results)
        for arm in arms:
            arm.finish()
    return results


def _start_all(
    results: Sequence[ArmResult], servers: Servers, stack: ExitStack, turns: _Turns
) -> list[tuple[ArmResult, Server]]:
    """The servers that came up, each paused; `stack` ends them."""
    waits = []
    for number, result in enumerate(results, 1):
        if number > 1:
            time.sleep(STAGGER)
        turns.progress.say(f"{result.arm.name} ({number} of {len(results)}): starting its server")
        waits.append(stack.enter_context(servers.launch(result.arm)))
    found = []
    for result, wait in zip(results, waits, strict=True):
        try:
            server = wait()
        except ArmFailed as error:
            turns.fail(result, str(error))
            continue
        server.pause()
        found.append((result, server))
    return found


class _Turns:
    """Lets one server run at a time, and leaves out what an arm that fails has not measured."""

    def __init__(self, progress: Progress, per_arm: int) -> None:
        self.progress = progress
        self._per_arm = per_arm
        self._done: dict[str, int] = {}

    @contextmanager
    def turn(self, arm: Measured) -> Iterator[None]:
        """The arm's server runs within. What fails there is the arm's failure; no error leaves."""
        name, before, reason = arm.result.arm.name, self.progress.done, None
        arm.server.resume()
        try:
            yield
        except ArmFailed as error:
            reason = str(error)
        except RequestFailed as error:
            reason = arm.server.explain(error)
        finally:
            arm.server.pause()
        self._done[name] = self._done.get(name, 0) + self.progress.done - before
        if reason is not None:
            self.fail(arm.result, reason)

    def fail(self, result: ArmResult, reason: str) -> None:
        result.failure = reason
        self.progress.leave_out(self._per_arm - self._done.get(result.arm.name, 0))
        self.progress.say(f"{result.arm.name}: not measured: {reason}")

"""Servers and timelines without a network."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sglang_ddtree.bench.arms import Arm
from sglang_ddtree.bench.flow import ArmFailed
from sglang_ddtree.bench.timeline import Timeline
from sglang_ddtree.client import RequestFailed

INFO: dict[str, Any] = {
    "device": "cuda",
    "dtype": "bfloat16",
    "kv_cache_dtype": "auto",
    "page_size": 1,
    "attention_backend": "triton",
    "prefill_attention_backend": None,
    "decode_attention_backend": None,
    "sampling_backend": "flashinfer",
    "linear_attn_backend": "triton",
    "linear_attn_prefill_backend": None,
    "linear_attn_decode_backend": None,
    "mamba_backend": "triton",
    "moe_runner_backend": "auto",
    "disable_overlap_schedule": False,
    "disable_radix_cache": False,
    "disable_cuda_graph": False,
    "disable_decode_cuda_graph": False,
    "disable_prefill_cuda_graph": True,
    "disable_cuda_graph_padding": False,
    "cuda_graph_config": {
        "decode": {"backend": "full", "max_bs": 8},
        "prefill": {"backend": "disabled", "max_bs": None},
    },
    "max_running_requests": 48,
    "launch_command": "python -m sglang.launch_server",
}

ABOUT: dict[str, Any] = {
    "model": "target <M>",
    "draft": "drafter",
    "command": "sglang-ddtree bench --model 'target <M>'",
    "date": "2026-01-02T03:04:05+00:00",
    "versions": {"sglang": "0.5.23", "torch": None},
    "machine": {"system": "Linux", "cpus": 2, "gpus": ["GPU X"]},
}


def event(time: float, tokens: int, *, ids: Sequence[int] = (), **meta: Any) -> tuple[float, bytes]:
    """One data line of a streaming answer, as it was received at `time`."""
    meta = {"completion_tokens": tokens, "finish_reason": None, **meta}
    return time, json.dumps({"output_ids": list(ids), "meta_info": meta}).encode()


def timeline(
    *,
    sent: float = 0.0,
    first: float = 1.0,
    last: float = 3.0,
    tokens: int = 5,
    steps: int = 0,
    correct: int = 0,
    histogram: tuple[int, ...] = (),
) -> Timeline:
    return Timeline(sent, first, last, 1, tokens, steps, correct, tuple(range(tokens)), histogram)


def metrics_page(steps: int, seconds: Mapping[str, float]) -> str:
    """A ``/metrics`` page after so many timed steps, with `seconds` by phase."""
    lines = [
        'sglang:num_running_reqs{model_name="m"} 0.0',
        *(f'sglang:ddtree_phase_seconds_total{{phase="{one}"}} {seconds[one]!r}' for one in seconds),
        f"sglang:ddtree_timed_steps_total {steps}",
    ]
    return "\n".join(lines) + "\n"


class FakeServer:
    """Answers with five tokens: 0.5 s to the first, then a step of 0.5 s for each `per_step` tokens.

    With `seconds` by phase it has metrics: of every `every`-th request one step is timed.
    """

    def __init__(self, info: Mapping[str, Any], per_step: int, ids: Sequence[int] = (5, 6, 7, 8, 9)) -> None:
        self._info, self.per_step, self.ids = info, per_step, tuple(ids)
        self.flushes = 0
        self.requests: list[tuple[float, int]] = []
        self.most_at_a_time = self._now = 0
        self._lock = threading.Lock()
        self.fails_at: int | None = None
        self.logged = ""
        self.seconds: Mapping[str, float] | None = None
        self.every = 1
        self.is_paused = False

    def info(self) -> Mapping[str, Any]:
        return self._info

    def flush(self) -> None:
        self.flushes += 1

    def log(self) -> str:
        return self.logged

    def explain(self, error: Exception) -> str:
        return f"{error} (log: x)"

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    def metrics(self) -> str | None:
        if self.seconds is None:
            return None
        steps = len(self.requests) // self.every
        return metrics_page(steps, {phase: steps * spent for phase, spent in self.seconds.items()})

    def generate(self, input_ids: Sequence[int], temperature: float, max_new_tokens: int) -> Timeline:
        assert not self.is_paused
        with self._lock:
            self.requests.append((temperature, max_new_tokens))
            number = len(self.requests)
            self._now += 1
            self.most_at_a_time = max(self.most_at_a_time, self._now)
        if self.fails_at is not None and number >= self.fails_at:
            raise RequestFailed("/generate: status 500: boom")
        threading.Event().wait(0.001)
        with self._lock:
            self._now -= 1
        steps = 4 // self.per_step
        verified = steps if self.per_step > 1 else 0
        return Timeline(
            sent=0.0,
            first=0.5,
            last=0.5 + 0.5 * steps,
            first_tokens=1,
            tokens=5,
            verify_steps=verified,
            correct_drafts=4 - verified if verified else 0,
            output_ids=self.ids,
            # Every step keeps per_step - 1 drafts.
            correct_drafts_histogram=(*[0] * (self.per_step - 1), verified) if verified else (),
        )


class FakeServers:
    """`servers` maps an arm's name to its server, or to the reason why it does not start."""

    def __init__(self, servers: Mapping[str, FakeServer | str]) -> None:
        self.servers = servers
        self.started: list[str] = []
        self.running = 0

    @contextmanager
    def launch(self, arm: Arm) -> Iterator[Callable[[], FakeServer]]:
        self.started.append(arm.name)
        server = self.servers[arm.name]

        def wait() -> FakeServer:
            if isinstance(server, str):
                raise ArmFailed(server)
            return server

        self.running += 1
        try:
            yield wait
        finally:
            self.running -= 1

    @contextmanager
    def start(self, arm: Arm) -> Iterator[FakeServer]:
        assert self.running == 0, "two servers at the same time"
        with self.launch(arm) as wait:
            yield wait()

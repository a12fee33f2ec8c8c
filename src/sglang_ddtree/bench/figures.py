"""What one run over all prompts measured, and the median of several with its spread."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from .timeline import Timeline

METRICS = {
    "total_tokens_per_s": "tokens/s of all requests together: their tokens / (last token - first request sent)",
    "request_tokens_per_s": "tokens/s of one request, its prompt included: median over the requests",
    "time_to_first_token_ms": "from sending a request to its first token: median over the requests",
    "inter_token_latency_ms": "mean time per token after the first: median over the requests",
    "acceptance_length": "tokens per target forward: 1 + correct drafts / verify steps (1 under AR); the last step "
    "of an answer counts all it kept, also beyond the answer's end",
    "verify_steps": "target forwards after the prompts', summed over the requests (AR: tokens after the first)",
    "ms_per_step": "decode time x concurrency / verify steps: see `ms_per_step`",
    "tokens": "output tokens of all requests",
}
BY_DEPTH = "fraction of the verify steps that kept at least d drafts; their sum over d is the acceptance length less 1"


@dataclass(frozen=True)
class Spread:
    """One metric over the runs, in their order."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)


def run_figures(timelines: Sequence[Timeline], speculative: bool) -> dict[str, float]:
    """The metrics of one run, by the names of `METRICS`; `timelines` holds one entry per request.

    Figures that no request could give (the time per token of one-token answers) are left out.
    """
    tokens = sum(one.tokens for one in timelines)
    steps = sum(one.decode_steps(speculative) for one in timelines)
    wall = max(one.last for one in timelines) - min(one.sent for one in timelines)
    found = {
        "total_tokens_per_s": tokens / wall,
        "request_tokens_per_s": statistics.median(one.tokens_per_second for one in timelines),
        "time_to_first_token_ms": 1000 * statistics.median(one.time_to_first_token for one in timelines),
        "verify_steps": float(steps),
        "tokens": float(tokens),
    }
    latencies = [one.inter_token_latency for one in timelines if one.inter_token_latency is not None]
    if latencies:
        found["inter_token_latency_ms"] = 1000 * statistics.median(latencies)
    if steps:
        found["ms_per_step"] = ms_per_step(timelines, speculative)
        found["acceptance_length"] = 1 + sum(one.correct_drafts for one in timelines) / steps
    return found


def ms_per_step(timelines: Sequence[Timeline], speculative: bool) -> float:
    """Milliseconds between two steps as a request sees them.

    The decode times of all requests (first token to last, each) summed, over all their verify steps summed. With
    `concurrency` requests always in flight the sum is the run's decode time x concurrency, and a step of the
    batch counts once for each of its requests. It holds everything between two tokens: draft, verify, scheduler,
    HTTP, and other requests' prefills that came in between. It is not the kernel time of a step. A prompt's own
    prefill and the time in the queue before it are left out.
    """
    steps = sum(one.decode_steps(speculative) for one in timelines)
    return 1000 * sum(one.decode_time for one in timelines) / steps


def over_runs(runs: Sequence[Sequence[Timeline]], speculative: bool) -> dict[str, Spread]:
    """Every metric that all runs gave, with its value in each."""
    each = [run_figures(timelines, speculative) for timelines in runs]
    return {
        name: Spread(tuple(one[name] for one in each)) for name in METRICS if all(name in one for one in each)
    }


def acceptance_by_depth(timelines: Sequence[Timeline]) -> list[float]:
    """The fraction of the verify steps that kept at least d drafts, at index d - 1, up to the deepest kept.

    Empty where nothing was drafted, none kept, or the server sent no histograms.
    """
    counts = [
        sum(column)
        for column in zip_longest(*(one.correct_drafts_histogram for one in timelines), fillvalue=0)
    ]
    return [sum(counts[depth:]) / sum(counts) for depth in range(1, len(counts))]


def by_depth_over_runs(runs: Sequence[Sequence[Timeline]]) -> list[Spread]:
    """`acceptance_by_depth` with its value in each run; 0 in a run that kept no draft so deep."""
    each = (acceptance_by_depth(timelines) for timelines in runs)
    return [Spread(values) for values in zip_longest(*each, fillvalue=0.0)]

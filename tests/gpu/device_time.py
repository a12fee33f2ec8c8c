"""Time of a call on a CUDA device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def microseconds(function: Callable[[], Any], *, repeat: int = 1, rounds: int) -> float:
    """Of one call: the median over `rounds` replays of a graph of `repeat` calls."""
    function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeat):
            function()
    times = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1000 / repeat)
    return sorted(times)[rounds // 2]

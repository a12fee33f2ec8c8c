"""The heap oracle: the tree of one request in plain Python, as the algorithm is written down."""

from __future__ import annotations

import heapq
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Node:
    """A node of `best_first_tree`; `parent` is an index into the same list, 0 being the root."""

    token: int
    parent: int
    depth: int
    score: float


def best_first_tree(
    logprobs: Sequence[Sequence[float]], token_ids: Sequence[Sequence[int]], budget: int
) -> list[Node]:
    """The `budget` most probable prefixes of one request (arXiv 2604.12989), best first.

    Pop the best prefix; push its next sibling and its first child. A child never beats its parent, so this
    is exact. Scores are float32 sums from the root down; equal scores go by depth, then by the parent's
    index, then by rank, which is the order of every builder here.

    Args:
        logprobs: [L][K], descending within a depth, -inf where no node may be.
        token_ids: [L][K].
        budget: most nodes without the root.

    Returns:
        Nodes 1, 2, ... in order; the root is not in the list.
    """
    nodes: list[Node] = []
    heap: list[tuple[float, int, int, int]] = []
    scores = [0.0]

    def push(parent: int, depth: int, rank: int) -> None:
        if depth > len(logprobs) or rank >= len(logprobs[depth - 1]):
            return
        score = _float32(scores[parent] + _float32(logprobs[depth - 1][rank]))
        if score > -math.inf:
            heapq.heappush(heap, (-score, depth, parent, rank))

    push(0, 1, 0)
    while heap and len(nodes) < budget:
        negated, depth, parent, rank = heapq.heappop(heap)
        nodes.append(Node(int(token_ids[depth - 1][rank]), parent, depth, -negated))
        scores.append(-negated)
        push(parent, depth, rank + 1)
        push(len(nodes), depth + 1, 0)
    return nodes


def _float32(value: float) -> float:
    # Rounding the double sum of two float32 to float32 gives exactly the float32 sum.
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded

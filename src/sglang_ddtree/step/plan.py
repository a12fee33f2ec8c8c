"""The two widths of a step and what follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..tree.capacity import MAX_DEPTHS, resolve_topk, verify_width

AUTO_WIDTHS = (8, 16, 32, 64)
"""Verify widths of budget "auto". Powers of two: a GEMM computes whole tiles, and one token more may cost a tile."""

WIDE_TOKENS = 512
"""A width above the draft's block is captured for batches of up to this many verified tokens: beyond, its cost on
a Hopper GPU grows with the tokens, its gain does not."""


@dataclass(frozen=True)
class StepPlan:
    """Numbers that stay fixed for the life of a server.

    Attributes:
        block_size: draft width; slot 0 is the bonus token. A property of the checkpoint, whatever the budget.
        budget: most tree nodes, the root not counted.
        topk: candidates per depth.
        verify_width: tokens per request in the target forward, the root included.
        max_depth: deepest node a tree can have.
        widths: the widths that steps may run, ascending; the last is `verify_width`.
    """

    block_size: int
    budget: int
    topk: int
    verify_width: int
    max_depth: int
    widths: tuple[int, ...]

    @classmethod
    def resolve(
        cls, *, block_size: int, budget: int | Literal["auto"], topk_cap: int, vocab_size: int
    ) -> StepPlan:
        """Raises ValueError where a number is out of range."""
        follows_load = budget == "auto"
        budget = AUTO_WIDTHS[-1] - 1 if budget == "auto" else budget
        if not 2 <= block_size <= MAX_DEPTHS + 1:
            raise ValueError(f"the drafter's block_size must be from 2 to {MAX_DEPTHS + 1}, got {block_size}")
        depths = block_size - 1
        topk = resolve_topk(budget, vocab_size, topk_cap)
        width = verify_width(budget, depths, topk)
        narrower = tuple(w for w in AUTO_WIDTHS if w < width) if follows_load else ()
        return cls(block_size, budget, topk, width, min(depths, width - 1), (*narrower, width))

    @property
    def follows_load(self) -> bool:
        """Whether steps choose among widths."""
        return len(self.widths) > 1

    def sizes_of(self, width: int, sizes: Sequence[int], tokens: int = WIDE_TOKENS) -> list[int]:
        """Of the batch sizes that SGLang captures: all up to the draft's block, above it those that can win.

        `tokens`: the most that a wide verify computes; the smallest batch may take more.
        """
        if width <= self.block_size or not self.follows_load:
            return list(sizes)
        return [size for size in sizes if size * width <= tokens] or list(sizes[:1])

    @property
    def window(self) -> int:
        """KV slots a step writes behind the committed prefix: the draft block or the tree."""
        return max(self.block_size, self.verify_width)

    @property
    def output_stride(self) -> int:
        """Most tokens a step emits per request."""
        return self.max_depth + 1

    def host_fields(self) -> dict[str, int]:
        """SGLang's speculative fields, so that every process of the server derives the same numbers.

        `speculative_eagle_topk` > 1 is the one switch that makes an attention or recurrent backend treat a
        verify as a tree; topk * steps stays within the width so that no KV accounting grows by it.
        """
        return {
            "speculative_num_draft_tokens": self.verify_width,
            "speculative_dflash_block_size": self.block_size,
            "speculative_eagle_topk": 2,
            "speculative_num_steps": max(1, min(self.max_depth, self.verify_width // 2)),
        }

    def draft_fields(self) -> dict[str, int]:
        """The same fields as the draft runner must see them: a plain DFLASH block."""
        return {
            "speculative_num_draft_tokens": self.block_size,
            "speculative_eagle_topk": 1,
            "speculative_num_steps": 1,
        }

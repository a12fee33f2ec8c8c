"""How the work of one attention call is cut into programs, and the memory that joins them again."""

from __future__ import annotations

from dataclasses import dataclass

import torch

WAVES = 2
"""Programs per multiprocessor that splitting aims at."""
MOST_SPLITS = 16
"""The last program of a tile adds up the parts of all: more of them would take it longer than they save."""
LEAST_SPLIT = 256
"""Context tokens that a part has at least: below, the sum costs more than the part."""


@dataclass(frozen=True)
class Tiling:
    """Sizes of one call, known on the host.

    Attributes:
        rows: query rows of a program, W * group of them shared out; a power of two from 16.
        columns: keys of one product.
        warps: of a program.
        stages: of its load pipeline.
        blocks: programs that cover a request's rows at one KV head.
        splits: parts that a long context is cut into at most.
    """

    rows: int
    columns: int
    warps: int
    stages: int
    blocks: int
    splits: int


@dataclass
class Workspace:
    """Unnormalised parts of split contexts, shared by all layers of all forwards on one stream.

    Attributes:
        sums: float32 [tiles, rows, head size], weighted sums of values.
        scales: float32 [tiles, 2, rows]: greatest logit (base 2) and sum of weights.
        arrived: int32 [tiles], parts that are done; every call leaves it at zero.
    """

    sums: torch.Tensor
    scales: torch.Tensor
    arrived: torch.Tensor
    programs: int

    @classmethod
    def allocate(cls, head_size: int, processors: int, device: torch.device | str) -> Workspace:
        programs, columns = WAVES * processors, next_power_of_two(head_size)
        rows = _most_rows(columns)
        return cls(
            torch.empty(programs, rows, columns, dtype=torch.float32, device=device),
            torch.empty(programs, 2, rows, dtype=torch.float32, device=device),
            torch.zeros(programs, dtype=torch.int32, device=device),
            programs,
        )

    @property
    def nbytes(self) -> int:
        return self.sums.nbytes + self.scales.nbytes + self.arrived.nbytes

    def tiling(self, batch: int, kv_heads: int, group: int, width: int, head_size: int) -> Tiling:
        """For `batch` requests of `width` queries, `group` query heads to each of `kv_heads`."""
        columns = next_power_of_two(head_size)
        rows = min(max(16, next_power_of_two(width * group)), _most_rows(columns))
        blocks = -(-width * group // rows)
        tiles = batch * kv_heads * blocks
        return Tiling(
            rows=rows,
            columns=64 if columns <= 128 else 32,
            warps=8 if rows >= 128 else 4,
            stages=2,
            blocks=blocks,
            splits=max(1, min(MOST_SPLITS, self.programs // tiles)),
        )


def next_power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _most_rows(columns: int) -> int:
    # The accumulator lives in registers.
    return 128 if columns <= 128 else 64

"""How the work of one attention call is cut into programs, and the memory that joins them again."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

WAVES = 2
"""Programs per multiprocessor that splitting aims at."""
MOST_SPLITS = 16
"""The last program of a tile adds up the parts of all: more of them would take it longer than they save."""
LEAST_SPLIT = 256
"""Context tokens that a part has at least: below, the sum costs more than the part."""

# Query rows, keys, warps and stages of a program, by head size and then by how many tiles of 64 rows the call has,
# up to that many: small tiles where few programs would leave the GPU idle. Measured on an H200
# (tests/gpu/check_attention.py --tilings).
_SHAPES: dict[int, tuple[tuple[float, tuple[int, int, int, int]], ...]] = {
    64: ((math.inf, (64, 64, 4, 2)),),
    128: ((16, (32, 64, 4, 3)), (math.inf, (64, 64, 4, 3))),
    256: ((15, (16, 32, 4, 3)), (math.inf, (64, 32, 4, 2))),
}


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
        wide = _SHAPES[max(64, next_power_of_two(head_size))]
        many = batch * kv_heads * -(-width * group // 64)
        rows, columns, warps, stages = next(shape for most, shape in wide if many <= most)
        rows = min(rows, max(16, next_power_of_two(width * group)))
        blocks = -(-width * group // rows)
        splits = self.programs // (batch * kv_heads * blocks)
        return Tiling(rows, columns, warps, stages, blocks, max(1, min(MOST_SPLITS, splits)))


def next_power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _most_rows(columns: int) -> int:
    return max(shape[0] for _, shape in _SHAPES[max(64, columns)])

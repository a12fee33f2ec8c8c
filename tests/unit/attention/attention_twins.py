"""The attention kernels against their torch twins, on CUDA or, interpreted, on the CPU.

As a script, `TRITON_INTERPRET=1 python attention_twins.py NAME CASES` runs random cases on the CPU and prints how
many held.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, replace
from typing import Any

import torch

from sglang_ddtree.attention import Workspace
from sglang_ddtree.attention.pointers import write_pointers_torch
from sglang_ddtree.attention.pointers_triton import write_pointers_triton
from sglang_ddtree.attention.verify_torch import tree_attention_torch
from sglang_ddtree.attention.verify_triton import tree_attention_triton
from sglang_ddtree.tree.mask import flat_mask_numel, write_tree_mask_torch

PROCESSORS = 4
LEAST_SPLIT = 8


@dataclass
class Case:
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    k_buffer: torch.Tensor
    v_buffer: torch.Tensor
    kv_indptr: torch.Tensor
    kv_indices: torch.Tensor
    mask: torch.Tensor | None
    mask_indptr: torch.Tensor | None

    @property
    def args(self) -> list[Any]:
        return [
            self.k_buffer,
            self.v_buffer,
            self.kv_indptr,
            self.kv_indices,
            self.mask,
            self.mask_indptr,
            self.q.shape[2] ** -0.5,
        ]

    def to(self, device: str) -> Case:
        return replace(
            self,
            **{name: value.to(device) for name, value in vars(self).items() if value is not None},
        )


def make_case(
    generator: torch.Generator,
    lens: list[int],
    width: int,
    kv_heads: int,
    group: int,
    head: int,
    *,
    masked: bool = True,
    dtype: torch.dtype = torch.float16,
) -> Case:
    """Contexts scattered over the cache; every query sees itself and a random half of the others."""
    batch, rows = len(lens), len(lens) * width
    slots = sum(lens) + 5

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    lengths = torch.tensor(lens)
    mask, mask_indptr = None, None
    if masked:
        tree = torch.rand(batch, width, width, generator=generator) < 0.5
        tree |= torch.eye(width, dtype=torch.bool)
        mask = torch.zeros(flat_mask_numel(batch, width, max(lens)), dtype=torch.bool)
        write_tree_mask_torch(mask, tree, lengths)
        mask_indptr = torch.zeros(batch + 1, dtype=torch.int64)
        mask_indptr[1:] = torch.cumsum(width * (lengths + width), 0)
    kv_indptr = torch.zeros(batch + 1, dtype=torch.int32)
    kv_indptr[1:] = torch.cumsum(lengths, 0)
    return Case(
        draw(rows, kv_heads * group, head),
        draw(rows, kv_heads, head),
        draw(rows, kv_heads, head),
        draw(slots, kv_heads, head),
        draw(slots, kv_heads, head),
        kv_indptr,
        # Longer than the contexts, as SGLang's buffer is.
        torch.randperm(slots, generator=generator)[: sum(lens) + 2],
        mask,
        mask_indptr,
    )


def expected(case: Case) -> torch.Tensor:
    out = torch.empty_like(case.q, dtype=torch.float32)
    tree_attention_torch(case.q, case.k, case.v, out, *case.args)
    return out


def check(case: Case, device: str, workspace: Workspace, label: str, least_split: int = LEAST_SPLIT) -> None:
    there = case.to(device)
    out = torch.full_like(there.q, float("nan"))
    tree_attention_triton(
        there.q, there.k, there.v, out, *there.args, workspace=workspace, least_split=least_split
    )
    tolerance = 2e-3 if case.q.dtype == torch.float16 else 2e-2
    difference = (out.float().cpu() - expected(case)).abs().max().item()
    assert difference <= tolerance, f"{label}: {difference}"
    assert not workspace.arrived.any(), f"{label}: counters are left"


def random_cases(device: str, cases: int) -> int:
    """Short, empty and long contexts in one batch; widths, groups and head sizes that fill no tile."""
    draw, generator = random.Random(5), torch.Generator().manual_seed(5)
    for number in range(cases):
        head = draw.choice((16, 64, 80))
        kv_heads, group = draw.randint(1, 3), draw.randint(1, 4)
        lens = [
            draw.choice((0, 1, draw.randint(2, 40), draw.randint(60, 300))) for _ in range(draw.randint(1, 3))
        ]
        width = draw.choice((1, 7, 8, 16, 17, 33))
        masked = draw.random() < 0.7
        case = make_case(generator, lens, width, kv_heads, group, head, masked=masked)
        workspace = Workspace.allocate(head, draw.choice((1, PROCESSORS, 16)), device)
        for repeat in range(2):
            label = f"case {number}.{repeat}: {lens} W={width} {kv_heads}x{group} D={head} masked={masked}"
            check(case, device, workspace, label)
    return cases


def pointer_cases(device: str, cases: int) -> int:
    """Batches of 1 to 300 requests, empty contexts among them."""
    generator = torch.Generator().manual_seed(6)
    for number in range(cases):
        batch = int(torch.randint(1, 300 if number % 2 else 5, (1,), generator=generator))
        lens = torch.randint(0, 100_000, (batch,), generator=generator) * (torch.arange(batch) % 3 > 0)
        lens = lens.to(torch.int64 if number % 3 else torch.int32)
        width = 1 + number % 64
        dtypes = (torch.int32, torch.int32, torch.int64)
        expected_ones = [torch.full((batch + 1,), -1, dtype=dtype) for dtype in dtypes]
        got = [tensor.to(device) for tensor in expected_ones]
        write_pointers_torch(lens, width, *expected_ones)
        write_pointers_triton(lens.to(device), width, *got)
        for left, right in zip(got, expected_ones, strict=True):
            assert torch.equal(left.cpu(), right), f"case {number}: batch {batch}, width {width}"
    return cases


def main() -> None:
    torch.set_num_threads(1)
    name, cases = sys.argv[1:]
    print({"attention": random_cases, "pointers": pointer_cases}[name]("cpu", int(cases)))


if __name__ == "__main__":
    main()

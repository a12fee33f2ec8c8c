"""What every rank of a tensor-parallel group must hold alike, although its clock and its random draws are its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from sglang.srt.runtime_context import get_parallel

if TYPE_CHECKING:
    from sglang.srt.distributed.parallel_state import GroupCoordinator

T = TypeVar("T")


class Ranks:
    """The target's tensor-parallel group as its ranks' hosts see it.

    With one rank nothing is sent.
    """

    def __init__(self, group: GroupCoordinator) -> None:
        self._group = group
        self.count = int(group.world_size)
        self.is_first = int(group.rank_in_group) == 0

    @classmethod
    def of_target(cls) -> Ranks:
        return cls(get_parallel().tp_group)

    def of_first(self, value: T) -> T:
        """The first rank's `value`, on every rank; all ranks call it. Waits for the first one: not for steps."""
        return value if self.count == 1 else self._group.broadcast_object(value, src=0)

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """[rows, columns] of every rank, in the ranks' order: [ranks, rows, columns], the same bits on each."""
        gathered = self._group.all_gather(rows.contiguous(), dim=0)
        return gathered.view(self.count, *rows.shape)

    def send_first(self, value: float) -> Callable[[], float]:
        """Begin to bring the first rank's `value` to all; the answer gives it, and waits if it is not there yet.

        float64 through the group's host side: the device is not involved.
        """
        buffer = torch.tensor([value], dtype=torch.float64)
        work: Any = torch.distributed.broadcast(
            buffer, src=self._group.ranks[0], group=self._group.cpu_group, async_op=True
        )

        def arrived() -> float:
            work.wait()
            return float(buffer.item())

        return arrived

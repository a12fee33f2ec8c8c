"""The draft tree of a batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class DraftTree:
    """Trees of B requests in W slots each, W being the verify width.

    Slot 0 is the root (the bonus token), slots 1.. are the nodes, best first: descending score, a parent
    always before its children. A request with fewer than W nodes leaves its last slots unused.

    Attributes:
        tokens: int64 [B, W]; 0 in unused slots.
        parents: int64 [B, W], slot of the parent; -1 for the root and for unused slots. int64 since it
            indexes `torch.gather`.
        depths: int64 [B, W]; 0 for the root and for unused slots.
        node_count: int32 [B], used slots, the root included.
        max_depth: no node is deeper; known on the host without reading the device.
    """

    tokens: torch.Tensor
    parents: torch.Tensor
    depths: torch.Tensor
    node_count: torch.Tensor
    max_depth: int

    @classmethod
    def empty(cls, batch_size: int, width: int, max_depth: int, device: torch.device) -> DraftTree:
        """Room for `batch_size` trees, all slots unused but the root's."""
        shape = (batch_size, width)
        return cls(
            tokens=torch.zeros(shape, dtype=torch.int64, device=device),
            parents=torch.full(shape, -1, dtype=torch.int64, device=device),
            depths=torch.zeros(shape, dtype=torch.int64, device=device),
            node_count=torch.ones(batch_size, dtype=torch.int32, device=device),
            max_depth=max_depth,
        )

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.tokens, self.parents, self.depths, self.node_count

    def first(self, batch_size: int) -> DraftTree:
        """A view of the first requests."""
        tokens, parents, depths, counts = (tensor[:batch_size] for tensor in self.tensors)
        return DraftTree(tokens, parents, depths, counts, self.max_depth)

    @property
    def batch_size(self) -> int:
        return self.tokens.shape[0]

    @property
    def width(self) -> int:
        return self.tokens.shape[1]

    def check_integrity(self) -> None:
        """Raise ValueError with the numbers unless the batch is valid. Reads the device: for tests."""
        batch, width = self.tokens.shape
        for name, tensor in (("parents", self.parents), ("depths", self.depths)):
            if tensor.shape != (batch, width):
                raise ValueError(f"{name} is {list(tensor.shape)}, tokens is {[batch, width]}")
        if self.node_count.shape != (batch,):
            raise ValueError(f"node_count is {list(self.node_count.shape)}, expected {[batch]}")
        rows = zip(
            self.tokens.tolist(),
            self.parents.tolist(),
            self.depths.tolist(),
            self.node_count.tolist(),
            strict=True,
        )
        for request, (tokens, parents, depths, count) in enumerate(rows):
            _check_request(request, tokens, parents, depths, count, self.max_depth)


def _check_request(
    request: int, tokens: list[int], parents: list[int], depths: list[int], count: int, max_depth: int
) -> None:
    width = len(tokens)
    if not 1 <= count <= width:
        raise ValueError(f"request {request}: node_count {count} is outside 1..{width}")
    if (parents[0], depths[0]) != (-1, 0):
        raise ValueError(
            f"request {request}: root has parent {parents[0]} and depth {depths[0]}, expected -1 and 0"
        )
    seen: dict[tuple[int, int], int] = {}
    for slot in range(1, count):
        parent, depth = parents[slot], depths[slot]
        if not 0 <= parent < slot:
            raise ValueError(f"request {request}: node {slot} has parent {parent}, allowed 0..{slot - 1}")
        if depth != depths[parent] + 1 or depth > max_depth:
            raise ValueError(
                f"request {request}: node {slot} has depth {depth}, its parent {parent} has "
                f"{depths[parent]}, the deepest allowed is {max_depth}"
            )
        twin = seen.setdefault((parent, tokens[slot]), slot)
        if twin != slot:
            raise ValueError(
                f"request {request}: nodes {twin} and {slot} are both token {tokens[slot]} "
                f"under parent {parent}"
            )
    for slot in range(count, width):
        if (tokens[slot], parents[slot], depths[slot]) != (0, -1, 0):
            raise ValueError(
                f"request {request}: unused slot {slot} holds token {tokens[slot]}, parent {parents[slot]}, "
                f"depth {depths[slot]}, expected 0, -1, 0"
            )

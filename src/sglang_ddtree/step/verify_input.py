"""What the target forward of a step is given."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sglang.srt.speculative.eagle_info import EagleVerifyInput


@dataclass
class DDTreeVerifyInput(EagleVerifyInput):
    """A tree of irregular shape in EAGLE's form, which SGLang's tree-capable backends take.

    Attributes:
        tree_mask: bool [batch, W, W], row i true at node i, its ancestors and the root. Backends without
            SGLang's flattened `custom_mask` read this one.
    """

    tree_mask: torch.Tensor | None = None

    @property
    def tree_topk(self) -> int:
        # No fixed branching per level.
        return -1

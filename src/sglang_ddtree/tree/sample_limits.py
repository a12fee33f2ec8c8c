"""The sampling parameters of a batch, as the kernels and their twin read them."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Limits:
    """One value per request, B of them; `sample.sample_target` says what they mean.

    Attributes:
        temperatures: float [B].
        top_ks: integer [B], read if `need_top_k`.
        top_ps: float [B], read if `need_top_p`.
        min_ps: float [B], read if `need_min_p`.
        max_top_k: a bound on `top_ks` known on the host, or None.
    """

    temperatures: torch.Tensor
    top_ks: torch.Tensor
    top_ps: torch.Tensor
    min_ps: torch.Tensor
    need_top_k: bool
    need_top_p: bool
    need_min_p: bool
    max_top_k: int | None = None

    @property
    def flags(self) -> int:
        """Which filters to read: 1 top-k, 2 top-p, 4 min-p."""
        return self.need_top_k | self.need_top_p << 1 | self.need_min_p << 2

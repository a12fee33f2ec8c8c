"""The sizes of a Gated DeltaNet layer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GDNShape:
    """One Gated DeltaNet layer as one rank sees it; channels of the convolution lie in the order q | k | v.

    Attributes:
        num_k_heads: H, heads of q and k.
        num_v_heads: HV, heads of v and of the state; head hv reads q and k of head hv // (HV // H).
        head_k_dim: K.
        head_v_dim: V.
        conv_kernel: T, taps of the convolution, the own token included.

    Raises:
        ValueError: HV is no multiple of H, or a size is below 1 (the kernel below 2).
    """

    num_k_heads: int
    num_v_heads: int
    head_k_dim: int
    head_v_dim: int
    conv_kernel: int

    def __post_init__(self) -> None:
        if min(self.num_k_heads, self.num_v_heads, self.head_k_dim, self.head_v_dim) < 1:
            raise ValueError(f"every size must be at least 1, got {self}")
        if self.num_v_heads % self.num_k_heads:
            raise ValueError(
                f"num_v_heads {self.num_v_heads} is no multiple of num_k_heads {self.num_k_heads}"
            )
        if self.conv_kernel < 2:
            raise ValueError(f"conv_kernel is {self.conv_kernel}, expected at least 2")

    @property
    def key_dim(self) -> int:
        return self.num_k_heads * self.head_k_dim

    @property
    def value_dim(self) -> int:
        return self.num_v_heads * self.head_v_dim

    @property
    def conv_dim(self) -> int:
        return 2 * self.key_dim + self.value_dim

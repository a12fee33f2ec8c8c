"""What a verify forward leaves behind of every node, so that the accepted path can be replayed."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

from .shape import GDNShape


@dataclass(frozen=True)
class LayerRecord:
    """The record of one layer: `TreeRecord`'s fields without their first dimension."""

    inputs: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    log_decay: torch.Tensor
    beta: torch.Tensor


@dataclass(frozen=True)
class TreeRecord:
    """The inputs of every node, for L layers, R requests and W slots.

    Attributes:
        inputs: [L, R, W, conv_dim] in the convolution state's dtype, what the convolution read.
        keys: [L, R, W, key_dim] in the activations' dtype, after the convolution, not normalised.
        values: [L, R, W, value_dim] in the activations' dtype, after the convolution.
        log_decay: float32 [L, R, W, HV], g = -exp(A_log) * softplus(a + dt_bias).
        beta: float32 [L, R, W, HV], sigmoid(b).
    """

    inputs: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    log_decay: torch.Tensor
    beta: torch.Tensor

    @classmethod
    def allocate(
        cls,
        shape: GDNShape,
        layers: int,
        rows: int,
        width: int,
        activation_dtype: torch.dtype,
        conv_dtype: torch.dtype,
        device: torch.device | str,
    ) -> TreeRecord:
        """Zeroed buffers for `layers` layers, `rows` requests and `width` slots."""
        return cls(
            **{
                name: torch.zeros(layers, rows, width, channels, dtype=dtype, device=device)
                for name, (channels, dtype) in _channels(shape, activation_dtype, conv_dtype).items()
            }
        )

    def in_rows(self, width: int) -> TreeRecord:
        """The same memory for `width` slots a request, and as many requests as it then holds."""

        def viewed(tensor: torch.Tensor) -> torch.Tensor:
            nodes = tensor.flatten(1, 2)
            rows = nodes.shape[1] // width
            return nodes[:, : rows * width].unflatten(1, (rows, width))

        return TreeRecord(*(viewed(getattr(self, field.name)) for field in fields(self)))

    def layer(self, index: int) -> LayerRecord:
        """Views of one layer."""
        return LayerRecord(*(getattr(self, field.name)[index] for field in fields(self)))

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, field.name).nbytes for field in fields(self))


def record_bytes_per_node(shape: GDNShape, activation_dtype: torch.dtype, conv_dtype: torch.dtype) -> int:
    """Bytes that `TreeRecord.allocate` takes per layer, request and slot."""
    parts = _channels(shape, activation_dtype, conv_dtype).values()
    return sum(channels * dtype.itemsize for channels, dtype in parts)


def _channels(
    shape: GDNShape, activation_dtype: torch.dtype, conv_dtype: torch.dtype
) -> dict[str, tuple[int, torch.dtype]]:
    return {
        "inputs": (shape.conv_dim, conv_dtype),
        "keys": (shape.key_dim, activation_dtype),
        "values": (shape.value_dim, activation_dtype),
        "log_decay": (shape.num_v_heads, torch.float32),
        "beta": (shape.num_v_heads, torch.float32),
    }

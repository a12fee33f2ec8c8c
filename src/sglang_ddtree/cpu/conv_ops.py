"""The causal convolution before Gated DeltaNet in plain torch, with the signatures of SGLang's Triton kernels.

Every channel of a token is a weighted sum over the last few tokens; in a tree those are a node's ancestors.
It imports no SGLang.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from sglang_ddtree.cpu.kernel_arguments import compute_dtype, refuse

PAD_SLOT_ID = -1
"""The state slot of a padding row."""


def causal_conv1d_fn(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    conv_states: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens_cpu: Sequence[int],
    cache_indices: torch.Tensor | None = None,
    has_initial_state: torch.Tensor | None = None,
    activation: str | None = "silu",
    pad_slot_id: int = PAD_SLOT_ID,
    validate_data: bool = False,
    block_table: torch.Tensor | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Convolve whole prompts, and leave each one's last ``width - 1`` inputs in its slot of `conv_states`.

    Args:
        x: ``[channels, tokens]``, prompt after prompt as `query_start_loc` says.
        weight: ``[channels, width]``.
        conv_states: ``[slots, channels, width - 1]``, changed in place.
        cache_indices: the prompts' slots; None is ``0, 1, ...``.
        has_initial_state: which prompts go on from their slot; the others start from zeros.

    Returns:
        The same shape as `x`; zeros for tokens that belong to no prompt.
    """
    refuse(block_table=block_table)
    history_length = weight.shape[1] - 1
    starts = query_start_loc.tolist()
    slots = list(range(len(starts) - 1)) if cache_indices is None else cache_indices.tolist()
    continues = [False] * len(slots) if has_initial_state is None else has_initial_state.tolist()
    output = torch.zeros_like(x)
    for i, slot in enumerate(slots[: len(starts) - 1]):
        begin, end = starts[i], starts[i + 1]
        if slot == pad_slot_id or begin == end:
            continue
        history = conv_states[slot, :, :history_length]
        if not continues[i]:
            history = torch.zeros_like(history)
        inputs = torch.cat([history.to(x.dtype), x[:, begin:end]], dim=1)
        windows = inputs.unfold(1, history_length + 1, 1)  # [channels, tokens, width]
        output[:, begin:end] = _convolve(windows, weight, bias, activation)
        conv_states[slot, :, :history_length] = inputs[:, inputs.shape[1] - history_length :]
    return output


def causal_conv1d_update(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: bool | str | None = None,
    cache_seqlens: torch.Tensor | None = None,
    conv_state_indices: torch.Tensor | None = None,
    num_accept_tokens: torch.Tensor | None = None,
    intermediate_conv_window: torch.Tensor | None = None,
    intermediate_state_indices: torch.Tensor | None = None,
    retrieve_next_token: torch.Tensor | None = None,
    retrieve_next_sibling: torch.Tensor | None = None,
    retrieve_parent_token: torch.Tensor | None = None,
    pad_slot_id: int = PAD_SLOT_ID,
    metadata: Any = None,
    validate_data: bool = False,
) -> torch.Tensor:
    """Convolve the next token of each request, or a chain or tree of draft tokens.

    As in SGLang, `conv_state` afterwards holds the last inputs in token order even behind a tree, where the
    commit has to overwrite it from `intermediate_conv_window`.

    Args:
        x: ``[batch, channels]`` or ``[batch, channels, tokens]``.
        conv_state: ``[slots, channels, width - 1]``, changed in place.
        intermediate_conv_window: ``[rows, tokens, channels, width - 1]``; gets the window behind every token
            (a chain's may be one overlapping view).
        intermediate_state_indices: the requests' rows there.
        retrieve_next_token, retrieve_next_sibling: int ``[batch, tokens]``, first child and next sibling, -1 for
            none. Without them the tokens are a chain.
        retrieve_parent_token: int ``[batch, tokens]``, filled with every node's parent (0 for the root).

    Returns:
        The same shape as `x`; zeros in padding rows.
    """
    refuse(cache_seqlens=cache_seqlens, num_accept_tokens=num_accept_tokens)
    if activation is True:
        activation = "silu"
    inputs = x if x.dim() == 3 else x.unsqueeze(-1)
    batch, channels, tokens = inputs.shape
    width = weight.shape[1]
    slots = torch.arange(batch) if conv_state_indices is None else conv_state_indices[:batch].long()
    rows = (slots != pad_slot_id).nonzero().flatten()  # the requests that are no padding
    slots = slots[rows]

    parents = torch.arange(-1, tokens - 1).expand(len(rows), tokens)
    if retrieve_next_token is not None:
        if retrieve_next_sibling is None:
            raise NotImplementedError("retrieve_next_token needs retrieve_next_sibling")
        parents = tree_parents(retrieve_next_token[rows], retrieve_next_sibling[rows])
        if retrieve_parent_token is not None:
            retrieve_parent_token[rows] = parents.to(retrieve_parent_token.dtype)

    sequence = torch.cat([conv_state[slots, :, : width - 1].to(x.dtype), inputs[rows]], dim=2)
    positions = _window_positions(parents, width).flatten(1)
    windows = sequence.gather(2, positions[:, None].expand(-1, channels, -1))
    windows = windows.unflatten(2, (tokens, width))  # [requests, channels, tokens, width]
    output = torch.zeros_like(inputs)
    output[rows] = _convolve(windows, weight, bias, activation or None)

    conv_state[slots, :, : width - 1] = sequence[:, :, tokens:].to(conv_state.dtype)
    if intermediate_conv_window is not None:
        if intermediate_state_indices is None:
            raise NotImplementedError("intermediate_conv_window needs intermediate_state_indices")
        kept = intermediate_state_indices[:batch].long()[rows]
        for token in range(tokens):  # one by one: the windows of a chain may overlap in memory
            window = windows[:, :, token, 1:]
            intermediate_conv_window[:, token][kept] = window.to(intermediate_conv_window.dtype)
    return output if x.dim() == 3 else output.squeeze(-1)


def _convolve(
    windows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: bool | str | None
) -> torch.Tensor:
    """``[..., channels, tokens, width]`` -> ``[..., channels, tokens]``."""
    dtype = compute_dtype(windows)
    result = (windows.to(dtype) * weight.to(dtype)[:, None]).sum(-1)
    if bias is not None:
        result = result + bias.to(dtype)[:, None]
    if activation is not None:
        if activation not in ("silu", "swish"):
            raise NotImplementedError(f"the CPU platform does not serve activation={activation!r}")
        result = F.silu(result)
    return result.to(windows.dtype)


def tree_parents(next_token: torch.Tensor, next_sibling: torch.Tensor) -> torch.Tensor:
    """Every node's parent from first-child and next-sibling links, int64 of the same shape; 0 for the root.

    Parents must come before their children, and siblings in the order of their links.
    """
    parents = torch.zeros_like(next_token, dtype=torch.int64)
    for node in range(next_token.shape[1]):
        for links, parent in (
            (next_token, torch.full_like(parents[:, node], node)),
            (next_sibling, parents[:, node]),
        ):
            target = links[:, node].long()
            linked = target >= 0
            parents[linked, target[linked]] = parent[linked]
    return parents


def _window_positions(parents: torch.Tensor, width: int) -> torch.Tensor:
    """Which inputs each node's window holds, oldest first, int64 ``[batch, nodes, width]``.

    The inputs are the ``width - 1`` before the tree, then the nodes.
    """
    first = width - 1  # the root's position
    nodes = parents.shape[1]
    up = torch.arange(-1, first + nodes - 1).repeat(parents.shape[0], 1)  # position -> position before it
    if nodes > 1:
        up[:, first + 1 :] = parents[:, 1:] + first
    position = torch.arange(first, first + nodes).expand(parents.shape[0], -1)
    window = [position]
    for _ in range(first):
        position = up.gather(1, position)
        window.append(position)
    return torch.stack(window[::-1], dim=-1)

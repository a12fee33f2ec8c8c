"""Gated DeltaNet in plain torch, with the signatures of SGLang's Triton kernels. It imports no SGLang.

The state of a value head is a matrix ``S [V, K]`` that one token changes by

    S <- exp(g) S,   u = beta (v - S k),   S <- S + u k^T,   o = scale S q.

In a tree a node starts from its parent's state. All arithmetic is in float32, or in float64 where the inputs
are; only what is stored takes the stored dtype.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from sglang_ddtree.cpu.kernel_arguments import compute_dtype, refuse

CHUNK_SIZE = 64
"""Prefill states are kept at the start of every chunk of so many tokens."""


def fused_gdn_gating(
    A_log: torch.Tensor,  # noqa: N803
    a: torch.Tensor,
    b: torch.Tensor,
    dt_bias: torch.Tensor,
    beta: float = 1.0,
    threshold: float = 20.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The decay's logarithm g and the write strength beta, both ``[1, tokens, value heads]``."""
    return (
        _log_decay(A_log, a, dt_bias, beta, threshold)[None],
        b.to(compute_dtype(b)).sigmoid().to(b.dtype).to(compute_dtype(b))[None],
    )


def chunk_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    initial_state_indices: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    head_first: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    inplace_update: bool = True,
) -> tuple[torch.Tensor, None, torch.Tensor]:
    """Prefill: whole prompts, a chunk of 64 tokens at a time.

    Args:
        q, k: ``[1, tokens, key heads, K]``.
        v: ``[1, tokens, value heads, V]``.
        g, beta: ``[1, tokens, value heads]``.
        initial_state: the pool ``[slots, value heads, V, K]``; a prompt goes on from its slot and, with
            `inplace_update`, leaves its last state there. A negative slot starts from zeros and keeps nothing.

    Returns:
        The outputs in the shape of `v`, None, and the states before every chunk of every prompt,
        ``[1, chunks, value heads, V, K]``. Those are not rounded to the dtype of `q`, as SGLang's are.
    """
    refuse(head_first=head_first)
    if initial_state is None or cu_seqlens is None:
        raise NotImplementedError("the CPU platform needs initial_state and cu_seqlens")
    if q.shape[0] != 1:
        raise ValueError(f"prompts are expected one behind another in a batch of 1, got {q.shape[0]}")
    dtype, output_dtype = compute_dtype(q), q.dtype
    q, k, v = _heads(q[0], k[0], v[0], scale, use_qk_l2norm_in_kernel, dtype)
    g, beta = g[0].to(dtype), beta[0].to(dtype)
    starts = cu_seqlens.tolist()
    slots = list(range(len(starts) - 1)) if initial_state_indices is None else initial_state_indices.tolist()

    output = torch.zeros_like(v)
    chunk_states = []
    for i in range(len(starts) - 1):
        slot = slots[i]
        # A copy: the slot changes below while the state before the first chunk is still to be returned.
        state = initial_state[slot].to(dtype, copy=True)
        if slot < 0:
            state.zero_()
        for begin in range(starts[i], starts[i + 1], CHUNK_SIZE):
            chunk_states.append(state)
            rows = slice(begin, min(begin + CHUNK_SIZE, starts[i + 1]))
            output[rows], state = _chunk(q[rows], k[rows], v[rows], g[rows], beta[rows], state)
        if inplace_update and slot >= 0:
            initial_state[slot] = state.to(initial_state.dtype)
    states = torch.stack(chunk_states) if chunk_states else output.new_zeros(0, *initial_state.shape[1:])
    return output.to(output_dtype)[None], None, states[None]


def _chunk(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """All tokens of a chunk at once: what they write, u, solves one unit triangular system.

    With G the running sum of g, token t sees the state before the chunk decayed by exp(G_t) and what token s
    wrote decayed by exp(G_t - G_s).

    Args:
        q, k: ``[tokens, heads, K]``, normed and scaled; v: ``[tokens, heads, V]``; g, beta: ``[tokens, heads]``;
        state: ``[heads, V, K]``.
    """
    q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)  # heads first
    total = g.t().cumsum(-1)
    beta = beta.t().unsqueeze(-1)
    tokens = total.shape[-1]
    from_start = total.exp().unsqueeze(-1)
    not_later = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    between = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~not_later, -torch.inf).exp()

    mixing = beta * between * (k @ k.mT)
    wanted = beta * (v - from_start * (k @ state.mT))
    written = torch.linalg.solve_triangular(mixing.tril(-1), wanted, upper=False, unitriangular=True)
    output = from_start * (q @ state.mT) + (between * (q @ k.mT)) @ written
    to_end = between[:, -1:, :].mT  # [heads, tokens, 1]
    after = from_start[:, -1:] * state + (to_end * written).mT @ k
    return output.transpose(0, 1), after


def fused_recurrent_gated_delta_rule_packed_decode(
    mixed_qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,  # noqa: N803
    dt_bias: torch.Tensor,
    scale: float,
    initial_state: torch.Tensor,
    out: torch.Tensor,
    ssm_state_indices: torch.Tensor,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decode: one token of each request from packed q, k, v.

    Args:
        mixed_qkv: ``[batch, 2 * key heads * K + value heads * V]``.
        a, b: ``[batch, value heads]``.
        initial_state: the pool ``[slots, value heads, V, K]``, changed in place.
        out: ``[batch, 1, value heads, V]``, written; zeros in rows with a negative slot.
    """
    value_heads, value_dim, key_dim = initial_state.shape[1:]
    qk_size = (mixed_qkv.shape[1] - value_heads * value_dim) // 2
    q, k, v = mixed_qkv.split([qk_size, qk_size, value_heads * value_dim], dim=1)
    dtype = compute_dtype(mixed_qkv)
    q, k, v = _heads(
        q.unflatten(1, (-1, key_dim)),
        k.unflatten(1, (-1, key_dim)),
        v.unflatten(1, (-1, value_dim)),
        scale,
        use_qk_l2norm_in_kernel,
        dtype,
    )
    g, beta = fused_gdn_gating(A_log, a, b, dt_bias)
    used = ssm_state_indices >= 0
    slots = ssm_state_indices[used].long()
    result, state = _step(
        q[used],
        k[used],
        v[used],
        g[0, used].to(dtype),
        beta[0, used].to(dtype),
        initial_state[slots].to(dtype),
    )
    out.zero_()
    out[used, 0] = result.to(out.dtype)
    initial_state[slots] = state.to(initial_state.dtype)
    return out, initial_state


def fused_sigmoid_gating_delta_rule_update(
    A_log: torch.Tensor,  # noqa: N803
    a: torch.Tensor,
    dt_bias: torch.Tensor,
    softplus_beta: float,
    softplus_threshold: float,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    b: torch.Tensor,
    initial_state_source: torch.Tensor,
    initial_state_indices: torch.Tensor,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    is_kda: bool = False,
    lower_bound: float | None = None,
    disable_state_update: bool = False,
    intermediate_states_buffer: torch.Tensor | None = None,
    intermediate_state_indices: torch.Tensor | None = None,
    cache_steps: int | None = None,
    retrieve_parent_token: torch.Tensor | None = None,
    cache_ring: bool = False,
    replayssm_rawv: torch.Tensor | None = None,
    replayssm_rawk: torch.Tensor | None = None,
    replayssm_g: torch.Tensor | None = None,
    replayssm_beta: torch.Tensor | None = None,
    match_cutedsl_decode: bool = False,
) -> torch.Tensor:
    """A few tokens of each request one after another: decode, and verification of a chain or a tree.

    Args:
        q, k: ``[1, tokens, key heads, K]``; v: ``[1, tokens, value heads, V]``, request after request as
            `cu_seqlens` says. Without `cu_seqlens` the leading dimension counts the requests.
        a, b: ``[tokens, value heads]``.
        initial_state_source: the pool ``[slots, value heads, V, K]``; changed in place unless
            `disable_state_update`. A negative slot starts from zeros and keeps nothing.
        intermediate_states_buffer: ``[rows, steps, value heads, V, K]``; gets the state behind every token.
        intermediate_state_indices: the requests' rows there; nothing is kept for a negative one.
        retrieve_parent_token: int ``[requests, steps]``: each token goes on from its parent's state, as the
            buffer holds it, and the first from the pool's. None is a chain.

    Returns:
        The outputs in the shape of `v`.
    """
    refuse(
        is_kda=is_kda,
        lower_bound=lower_bound,
        cache_ring=cache_ring,
        replayssm_rawv=replayssm_rawv,
        replayssm_rawk=replayssm_rawk,
        replayssm_g=replayssm_g,
        replayssm_beta=replayssm_beta,
        match_cutedsl_decode=match_cutedsl_decode,
    )
    if intermediate_states_buffer is not None and intermediate_state_indices is None:
        raise NotImplementedError("intermediate_states_buffer needs intermediate_state_indices")
    if retrieve_parent_token is not None and intermediate_states_buffer is None:
        raise NotImplementedError("retrieve_parent_token needs intermediate_states_buffer")
    dtype = compute_dtype(q)
    output_dtype, output_shape = q.dtype, v.shape
    starts = torch.arange(q.shape[0] + 1) * q.shape[1] if cu_seqlens is None else cu_seqlens.long()
    q, k, v = _heads(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), scale, use_qk_l2norm_in_kernel, dtype)
    g = _log_decay(A_log, a.reshape(v.shape[:2]), dt_bias, softplus_beta, softplus_threshold).to(dtype)
    beta = b.reshape(v.shape[:2]).to(dtype).sigmoid()

    first, lengths = starts[:-1], starts.diff()
    slots = initial_state_indices[: len(first)].long()
    state = initial_state_source[slots.clamp(min=0)].to(dtype)
    state[slots < 0] = 0
    output = torch.zeros_like(v)
    for step in range(int(lengths.max()) if len(lengths) else 0):
        active = (lengths > step).nonzero().flatten()
        before = state[active]
        if intermediate_states_buffer is not None and intermediate_state_indices is not None:
            kept = intermediate_state_indices[active].long()
            if retrieve_parent_token is not None and step > 0:
                parents = retrieve_parent_token[active, step].long()
                stored = intermediate_states_buffer[kept.clamp(min=0), parents].to(dtype)
                before = torch.where((kept >= 0)[:, None, None, None], stored, before)
        tokens = first[active] + step
        output[tokens], after = _step(q[tokens], k[tokens], v[tokens], g[tokens], beta[tokens], before)
        state[active] = after
        if intermediate_states_buffer is not None:
            intermediate_states_buffer[kept[kept >= 0], step] = after[kept >= 0].to(
                intermediate_states_buffer.dtype
            )
    if not disable_state_update:
        initial_state_source[slots[slots >= 0]] = state[slots >= 0].to(initial_state_source.dtype)
    return output.to(output_dtype).view(output_shape)


def _step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token of each request: q, k ``[requests, heads, K]``, v ``[requests, heads, V]``, state
    ``[requests, heads, V, K]``; its outputs and the states behind it."""
    state = state * g.exp()[..., None, None]
    written = beta.unsqueeze(-1) * (v - (state @ k.unsqueeze(-1)).squeeze(-1))
    state = state + written.unsqueeze(-1) * k.unsqueeze(-2)
    return (state @ q.unsqueeze(-1)).squeeze(-1), state


def _heads(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float | None,
    norm: bool,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q (scaled) and k once per value head, of length 1 when `norm`; all ``[tokens, value heads, dim]``."""
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    if norm:
        q = q * (q.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
        k = k * (k.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
    q = q * (k.shape[-1] ** -0.5 if scale is None else scale)
    group = v.shape[1] // k.shape[1]
    return q.repeat_interleave(group, 1), k.repeat_interleave(group, 1), v


def _log_decay(
    A_log: torch.Tensor,  # noqa: N803
    a: torch.Tensor,
    dt_bias: torch.Tensor,
    beta: float,
    threshold: float,
) -> torch.Tensor:
    dtype = compute_dtype(a)
    return -A_log.to(dtype).exp() * F.softplus(a.to(dtype) + dt_bias.to(dtype), beta, threshold)

"""The tree delta rule in Triton, one program per block of value channels, value head and request.

With G_i the log-decays summed over i and its ancestors, unrolling the recurrence along i's path gives
u_i = beta_i (v_i - exp(G_i) S k_i - sum over strict ancestors j of exp(G_i - G_j) (k_j . k_i) u_j) and
o_i = exp(G_i) S q_i + sum over j up to i of exp(G_i - G_j) (k_j . q_i) u_j: matrix products under the ancestor
mask, for any tree. The root precedes every node, so it is applied to the state first and the products hold
the other nodes only: a tree of 64 nodes and a root fits tiles of 64.
"""

import torch
import triton
import triton.language as tl

from ..tree.triton_device import require_kernel_device
from .record import LayerRecord
from .shape import GDNShape

MAX_WIDTH = 129  # a root and 128 nodes: beyond, the node-by-node tiles no longer fit a program
HEAD_DIMS = (16, 32, 64, 128, 256)


def launch_config(width: int) -> tuple[int, int]:
    """(value channels per program, warps)."""
    return (64, 8) if width > 65 else (64, 4)


def tree_delta_rule_triton(
    mixed: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    states: torch.Tensor,
    slots: torch.Tensor,
    ancestor_mask: torch.Tensor,
    max_depth: int,
    record: LayerRecord,
    shape: GDNShape,
    config: tuple[int, int] | None = None,
) -> torch.Tensor:
    """The twin of `tree_delta_rule_torch` for CUDA; arguments as in `delta.tree_delta_rule`.

    Args:
        config: instead of `launch_config`, to measure.
    """
    batch, width = ancestor_mask.shape[:2]
    if width > MAX_WIDTH:
        raise ValueError(f"the verify width is {width}, the kernel takes at most {MAX_WIDTH}")
    for name, dim in (("head_k_dim", shape.head_k_dim), ("head_v_dim", shape.head_v_dim)):
        if dim not in HEAD_DIMS:
            raise ValueError(f"{name} is {dim}, the kernel takes {HEAD_DIMS}")
    require_kernel_device(_delta_kernel, mixed)
    block_v, num_warps = config or launch_config(width)
    block_v = min(block_v, shape.head_v_dim)
    nodes = max(16, triton.next_power_of_2(width - 1))
    out = torch.empty(
        1, batch * width, shape.num_v_heads, shape.head_v_dim, dtype=mixed.dtype, device=mixed.device
    )
    if batch:
        _delta_kernel[(shape.head_v_dim // block_v, shape.num_v_heads, batch)](
            mixed,
            a,
            b,
            a_log,
            dt_bias,
            states,
            slots,
            ancestor_mask.contiguous().view(torch.uint8),
            out,
            record.log_decay,
            record.beta,
            mixed.stride(0),
            a.stride(0),
            b.stride(0),
            states.stride(0),
            record.beta.stride(0),
            width,
            max_depth,
            shape.head_k_dim**-0.5,
            H=shape.num_k_heads,
            HV=shape.num_v_heads,
            K=shape.head_k_dim,
            V=shape.head_v_dim,
            NODES=nodes,
            BLOCK_K=min(shape.head_k_dim, 64),
            BLOCK_V=block_v,
            # Triton's interpreter has no bfloat16 products.
            WIDE_PRODUCTS=mixed.dtype != torch.bfloat16 or not isinstance(_delta_kernel, triton.JITFunction),
            num_warps=num_warps,
            num_stages=1,
        )
    return out


@triton.jit
def _gates(a, b, a_log, dt_bias):  # type: ignore[no-untyped-def]
    x = a.to(tl.float32) + dt_bias
    softplus = tl.where(x <= 20.0, tl.log(1.0 + tl.exp(x)), x)
    return -tl.exp(a_log) * softplus, 1.0 / (1.0 + tl.exp(-b.to(tl.float32)))


@triton.jit
def _times_state(rows, wide, state, total, WIDE_PRODUCTS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """total + rows state^T, `wide` being rows in float32."""
    if WIDE_PRODUCTS:
        total = tl.dot(wide, tl.trans(state), total, input_precision="tf32x3")
    else:
        # Three parts hold all 24 bits of the state, and products with narrow rows are exact.
        high = state.to(rows.dtype)
        rest = state - high.to(tl.float32)
        middle = rest.to(rows.dtype)
        low = (rest - middle.to(tl.float32)).to(rows.dtype)
        total = tl.dot(rows, tl.trans(low), total)
        total = tl.dot(rows, tl.trans(middle), total)
        total = tl.dot(rows, tl.trans(high), total)
    return total


@triton.jit(do_not_specialize=["width", "max_depth"])
def _delta_kernel(  # type: ignore[no-untyped-def]
    mixed_ptr,
    a_ptr,
    b_ptr,
    a_log_ptr,
    dt_bias_ptr,
    states_ptr,
    slots_ptr,
    mask_ptr,
    out_ptr,
    log_decay_ptr,
    beta_ptr,
    mixed_stride,
    a_stride,
    b_stride,
    state_stride,
    gate_stride,
    width,
    max_depth,
    scale,
    H: tl.constexpr,  # noqa: N803
    HV: tl.constexpr,  # noqa: N803
    K: tl.constexpr,  # noqa: N803
    V: tl.constexpr,  # noqa: N803
    NODES: tl.constexpr,  # noqa: N803
    BLOCK_K: tl.constexpr,  # noqa: N803
    BLOCK_V: tl.constexpr,  # noqa: N803
    WIDE_PRODUCTS: tl.constexpr,  # noqa: N803
):
    head = tl.program_id(1)
    request = tl.program_id(2).to(tl.int64)
    root = request * width
    nodes = 1 + tl.arange(0, NODES)
    inside = nodes < width
    rows = root + nodes
    value_channels = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    key_channels = tl.arange(0, BLOCK_K)
    out_ptr += head * V + value_channels
    node_outs = out_ptr[None, :] + rows[:, None] * (HV * V)

    slot = tl.load(slots_ptr + request).to(tl.int64)
    if slot < 0:
        tl.store(out_ptr + root * (HV * V), tl.zeros([BLOCK_V], out_ptr.dtype.element_ty))
        tl.store(node_outs, tl.zeros([NODES, BLOCK_V], out_ptr.dtype.element_ty), mask=inside[:, None])
        return

    q_ptr = mixed_ptr + (head // (HV // H)) * K + key_channels
    k_ptr = q_ptr + H * K
    v_ptr = mixed_ptr + 2 * H * K + head * V + value_channels
    state_ptrs = states_ptr + slot * state_stride + head * (K * V)
    state_ptrs += value_channels[:, None] * K + key_channels[None, :]

    # Gates of the root and of the nodes; one of the value blocks records them.
    a_log = tl.load(a_log_ptr + head).to(tl.float32)
    dt_bias = tl.load(dt_bias_ptr + head).to(tl.float32)
    root_g, root_beta = _gates(
        tl.load(a_ptr + root * a_stride + head), tl.load(b_ptr + root * b_stride + head), a_log, dt_bias
    )
    g, beta = _gates(
        tl.load(a_ptr + rows * a_stride + head, mask=inside, other=0),
        tl.load(b_ptr + rows * b_stride + head, mask=inside, other=0),
        a_log,
        dt_bias,
    )
    if tl.program_id(0) == 0:
        log_decay_ptr += request * gate_stride + head
        beta_ptr += request * gate_stride + head
        tl.store(log_decay_ptr, root_g)
        tl.store(beta_ptr, root_beta)
        tl.store(log_decay_ptr + nodes * HV, g, mask=inside)
        tl.store(beta_ptr + nodes * HV, beta, mask=inside)

    # The root, token by token arithmetic.
    state_key = tl.zeros([BLOCK_V], tl.float32)
    state_query = tl.zeros([BLOCK_V], tl.float32)
    key_square = 0.0
    query_square = 0.0
    key_query = 0.0
    for start in range(0, K, BLOCK_K):
        state = tl.load(state_ptrs + start).to(tl.float32)
        root_key = tl.load(k_ptr + root * mixed_stride + start).to(tl.float32)
        root_query = tl.load(q_ptr + root * mixed_stride + start).to(tl.float32)
        state_key += tl.sum(state * root_key[None, :], axis=1)
        state_query += tl.sum(state * root_query[None, :], axis=1)
        key_square += tl.sum(root_key * root_key, axis=0)
        query_square += tl.sum(root_query * root_query, axis=0)
        key_query += tl.sum(root_key * root_query, axis=0)
    root_decay = tl.exp(root_g)
    root_key_norm = 1.0 / tl.sqrt(key_square + 1e-6)
    root_query_norm = scale / tl.sqrt(query_square + 1e-6)
    root_value = tl.load(v_ptr + root * mixed_stride).to(tl.float32)
    root_u = root_beta * (root_value - root_decay * root_key_norm * state_key)
    root_out = root_decay * root_query_norm * state_query
    root_out += root_u * (key_query * root_key_norm * root_query_norm)
    tl.store(out_ptr + root * (HV * V), root_out.to(out_ptr.dtype.element_ty))

    # exp(G_i - G_j) where j is i or an ancestor, masked before exp: elsewhere it overflows.
    mask_ptrs = mask_ptr + request * width * width + nodes[:, None] * width + nodes[None, :]
    seen = tl.load(mask_ptrs, mask=inside[:, None] & inside[None, :], other=0) != 0
    total = tl.sum(tl.where(seen, g[None, :], 0.0), axis=1)
    decay = tl.where(seen, tl.exp(tl.where(seen, total[:, None] - total[None, :], 0.0)), 0.0)
    total_decay = tl.exp(total)

    # Products take raw keys, exact in their own dtype; the norms come afterwards.
    products = tl.zeros([NODES, NODES], tl.float32)
    from_state = tl.zeros([NODES, BLOCK_V], tl.float32)
    squares = tl.zeros([NODES], tl.float32)
    for start in range(0, K, BLOCK_K):
        root_key = tl.load(k_ptr + root * mixed_stride + start).to(tl.float32) * root_key_norm
        state = tl.load(state_ptrs + start).to(tl.float32) * root_decay + root_u[:, None] * root_key[None, :]
        key = tl.load(k_ptr[None, :] + rows[:, None] * mixed_stride + start, mask=inside[:, None], other=0)
        wide = key.to(tl.float32)
        squares += tl.sum(wide * wide, axis=1)
        if WIDE_PRODUCTS:
            products = tl.dot(wide, tl.trans(wide), products, input_precision="tf32x3")
        else:
            products = tl.dot(key, tl.trans(key), products)
        from_state = _times_state(key, wide, state, from_state, WIDE_PRODUCTS)
    key_norm = 1.0 / tl.sqrt(squares + 1e-6)
    strict = nodes[:, None] > nodes[None, :]
    coupling = tl.where(strict, decay * products * (beta * key_norm)[:, None] * key_norm[None, :], 0.0)
    value = tl.load(v_ptr[None, :] + rows[:, None] * mixed_stride, mask=inside[:, None], other=0)
    own = beta[:, None] * (value.to(tl.float32) - (total_decay * key_norm)[:, None] * from_state)
    # Forward substitution by levels: after n rounds every node of depth n + 1 has its final value.
    u = own
    for _ in range(max_depth - 1):
        u = own - tl.dot(coupling, u, input_precision="tf32x3")

    products = tl.zeros([NODES, NODES], tl.float32)
    from_state = tl.zeros([NODES, BLOCK_V], tl.float32)
    squares = tl.zeros([NODES], tl.float32)
    for start in range(0, K, BLOCK_K):
        root_key = tl.load(k_ptr + root * mixed_stride + start).to(tl.float32) * root_key_norm
        state = tl.load(state_ptrs + start).to(tl.float32) * root_decay + root_u[:, None] * root_key[None, :]
        key = tl.load(k_ptr[None, :] + rows[:, None] * mixed_stride + start, mask=inside[:, None], other=0)
        query = tl.load(q_ptr[None, :] + rows[:, None] * mixed_stride + start, mask=inside[:, None], other=0)
        wide = query.to(tl.float32)
        squares += tl.sum(wide * wide, axis=1)
        if WIDE_PRODUCTS:
            products = tl.dot(wide, tl.trans(key.to(tl.float32)), products, input_precision="tf32x3")
        else:
            products = tl.dot(query, tl.trans(key), products)
        from_state = _times_state(query, wide, state, from_state, WIDE_PRODUCTS)
    query_norm = scale / tl.sqrt(squares + 1e-6)
    weights = decay * products * query_norm[:, None] * key_norm[None, :]
    out = tl.dot(weights, u, input_precision="tf32x3")
    out += (total_decay * query_norm)[:, None] * from_state
    tl.store(node_outs, out.to(out_ptr.dtype.element_ty), mask=inside[:, None])

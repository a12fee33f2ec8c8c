"""Inputs and naive float64 oracles for the recurrent tests. The oracles share nothing with the code under test."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

from sglang_ddtree.recurrent import GDNShape, TreeRecord, ancestor_taps
from sglang_ddtree.tree import DraftTree, ancestor_mask
from unit.tree.tree_cases import as_tree, path_to_root, random_tree

SMALL = GDNShape(num_k_heads=2, num_v_heads=4, head_k_dim=16, head_v_dim=16, conv_kernel=4)


@dataclass
class Layer:
    """One layer's weights, its committed state in a pool, and the inputs of one verify forward."""

    shape: GDNShape
    tree: DraftTree
    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    a: torch.Tensor
    b: torch.Tensor
    a_log: torch.Tensor
    dt_bias: torch.Tensor
    conv_states: torch.Tensor
    states: torch.Tensor
    slots: torch.Tensor
    taps: torch.Tensor
    mask: torch.Tensor

    def conv_args(self) -> tuple:
        return self.x, self.weight, self.bias, "silu", self.conv_states, self.slots, self.taps

    def delta_args(self, mixed: torch.Tensor) -> tuple:
        gates = (self.a, self.b, self.a_log, self.dt_bias)
        return mixed, *gates, self.states, self.slots, self.mask, self.tree.max_depth

    def to(self, device: str) -> Layer:
        moved = {}
        for field in fields(self):
            value = getattr(self, field.name)
            # A pool's strides are part of the case, and `to` would make them dense.
            moved[field.name] = _to(value, device) if isinstance(value, torch.Tensor) else value
        tree = self.tree
        tensors = (tree.tokens, tree.parents, tree.depths, tree.node_count)
        moved["tree"] = DraftTree(*(tensor.to(device) for tensor in tensors), tree.max_depth)
        return Layer(**moved)


def _to(tensor: torch.Tensor, device: str) -> torch.Tensor:
    # On one device `to` returns the tensor itself; a copy keeps the cases apart.
    moved = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return moved.copy_(tensor)


def chain_tree(batch: int, width: int) -> DraftTree:
    return as_tree([list(range(-1, width - 1))] * batch, [list(range(width))] * batch, width)


def deep_tree(generator: torch.Generator, batch: int, width: int) -> DraftTree:
    """Branching trees of full size that also grow deep: a parent is one of the last few nodes."""
    parents = []
    for _ in range(batch):
        reach = torch.randint(1, 5, (width,), generator=generator).tolist()
        parents.append([-1] + [max(0, slot - reach[slot]) for slot in range(1, width)])
    return as_tree(parents, [list(range(width))] * batch, width)


def make_layer(
    generator: torch.Generator,
    shape: GDNShape,
    tree: DraftTree,
    *,
    dtype: torch.dtype = torch.float32,
    conv_dtype: torch.dtype | None = None,
    state_dtype: torch.dtype = torch.float32,
    bias: bool = True,
    padded: tuple[int, ...] = (),
) -> Layer:
    """Realistic magnitudes; strided x, a, b and pools; rows in `padded` have no slot."""
    batch, width = tree.parents.shape

    def normal(*size: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(*size, generator=generator) * scale

    pool = 2 * batch + 2
    slots = torch.randperm(pool, generator=generator)[:batch].to(torch.int32)
    for row in padded:
        slots[row] = -1
    heads = shape.num_v_heads
    states = normal(pool, 2, heads, shape.head_v_dim, shape.head_k_dim, scale=0.3).to(state_dtype)
    window = normal(pool, shape.conv_kernel - 1, shape.conv_dim).to(conv_dtype or dtype)
    return Layer(
        shape=shape,
        tree=tree,
        x=normal(batch * width, shape.conv_dim + 8).to(dtype)[:, : shape.conv_dim],
        weight=normal(shape.conv_dim, shape.conv_kernel, scale=0.5).to(dtype),
        bias=normal(shape.conv_dim, scale=0.2).to(dtype) if bias else None,
        a=normal(batch * width, 2 * heads).to(dtype)[:, :heads],
        b=normal(batch * width, 2 * heads).to(dtype)[:, heads:],
        a_log=torch.rand(heads, generator=generator) * 2 - 1,
        dt_bias=normal(heads).to(dtype),
        conv_states=window.transpose(1, 2),
        states=states[:, 1],
        slots=slots,
        taps=ancestor_taps(tree, shape.conv_kernel),
        mask=ancestor_mask(tree),
    )


def poisoned_record(layer: Layer, layers: int = 1, rows: int | None = None, spare: int = 0) -> TreeRecord:
    """A record full of NaN."""
    batch, width = layer.tree.parents.shape
    record = TreeRecord.allocate(
        layer.shape,
        layers,
        rows or batch + 1,
        width + spare,
        layer.x.dtype,
        layer.conv_states.dtype,
        layer.x.device,
    )
    for field in fields(record):
        getattr(record, field.name).fill_(float("nan"))
    return record


def used_nodes(tree: DraftTree) -> list[tuple[int, int]]:
    return [(b, i) for b in range(tree.batch_size) for i in range(int(tree.node_count[b]))]


def naive_conv(layer: Layer, request: int, node: int) -> torch.Tensor:
    """float64 [conv_dim]: the node's convolution over window, ancestors and itself.

    Two bfloat16 numbers have a bfloat16 product, as in SGLang's decode kernel; the rest is float64.
    """
    width = layer.tree.width
    path = path_to_root(layer.tree.parents[request].tolist(), node)[::-1]
    rows = [layer.x[request * width + slot] for slot in path]
    rounded = [row.to(layer.conv_states.dtype).double() for row in rows[:-1]]
    window = list(layer.conv_states[int(layer.slots[request])].double().unbind(1))
    inputs = torch.stack((window + rounded + [rows[-1].double()])[-layer.shape.conv_kernel :], dim=1)
    products = inputs * layer.weight.double()
    own = layer.weight.dtype == layer.x.dtype
    past = layer.weight.dtype == layer.conv_states.dtype
    rounded_products = products.to(layer.weight.dtype).double()
    products[:, :-1] = rounded_products[:, :-1] if past else products[:, :-1]
    products[:, -1] = rounded_products[:, -1] if own else products[:, -1]
    total = products.sum(dim=1)
    if layer.bias is not None:
        total = total + layer.bias.double()
    return total * torch.sigmoid(total)


def naive_gates(layer: Layer, row: int) -> tuple[torch.Tensor, torch.Tensor]:
    """float64 [HV] twice: log-decay and beta."""
    x = layer.a[row].double() + layer.dt_bias.double()
    softplus = torch.log(1 + torch.exp(x))
    return -torch.exp(layer.a_log.double()) * softplus, torch.sigmoid(layer.b[row].double())


def naive_step(
    shape: GDNShape,
    state: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
) -> torch.Tensor:
    """The state [HV, V, K] after one token, head by head in float64."""
    after = torch.empty_like(state)
    for head in range(shape.num_v_heads):
        lane = head // (shape.num_v_heads // shape.num_k_heads)
        k = key[lane * shape.head_k_dim : (lane + 1) * shape.head_k_dim]
        k = k / torch.sqrt((k * k).sum() + 1e-6)
        v = value[head * shape.head_v_dim : (head + 1) * shape.head_v_dim]
        decayed = torch.exp(g[head]) * state[head]
        after[head] = decayed + torch.outer(beta[head] * (v - decayed @ k), k)
    return after


def naive_delta(layer: Layer, mixed: torch.Tensor, request: int, node: int) -> torch.Tensor:
    """float64 [HV, V]: a plain chain from the committed state to the node, then its query."""
    shape, width = layer.shape, layer.tree.width
    path = path_to_root(layer.tree.parents[request].tolist(), node)[::-1]
    state = layer.states[int(layer.slots[request])].double()
    for slot in path:
        row = request * width + slot
        _, key, value = mixed[row].double().split((shape.key_dim, shape.key_dim, shape.value_dim))
        state = naive_step(shape, state, key, value, *naive_gates(layer, row))
    out = torch.empty(shape.num_v_heads, shape.head_v_dim, dtype=torch.float64)
    for head in range(shape.num_v_heads):
        lane = head // (shape.num_v_heads // shape.num_k_heads)
        query = mixed[
            request * width + node, lane * shape.head_k_dim : (lane + 1) * shape.head_k_dim
        ].double()
        query = query / torch.sqrt((query * query).sum() + 1e-6) * shape.head_k_dim**-0.5
        out[head] = state[head] @ query
    return out


def random_paths(generator: torch.Generator, tree: DraftTree) -> tuple[torch.Tensor, torch.Tensor]:
    """Accepted paths to a random used node: int32 [B, D + 1] padded with -1, and int32 [B]."""
    path = torch.full((tree.batch_size, tree.max_depth + 1), -1, dtype=torch.int32)
    lens = torch.empty(tree.batch_size, dtype=torch.int32)
    for request in range(tree.batch_size):
        node = int(torch.randint(int(tree.node_count[request]), (), generator=generator))
        nodes = path_to_root(tree.parents[request].tolist(), node)[::-1]
        path[request, : len(nodes)] = torch.tensor(nodes)
        lens[request] = len(nodes)
    return path, lens


@dataclass
class Commit:
    """The pools of all layers, a record of random contents and accepted paths."""

    shape: GDNShape
    record: TreeRecord
    conv_states: torch.Tensor
    states: torch.Tensor
    slots: torch.Tensor
    path: torch.Tensor
    lens: torch.Tensor
    track_slots: torch.Tensor
    track_lens: torch.Tensor

    def args(self, *, track: bool = True) -> tuple:
        head = (self.record, self.conv_states, self.states, self.slots, self.path, self.lens, self.shape)
        return (*head, self.track_slots, self.track_lens) if track else head

    def to(self, device: str) -> Commit:
        tensors = {
            field.name: _to(getattr(self, field.name), device)
            for field in fields(self)
            if field.name not in ("shape", "record")
        }
        record = TreeRecord(*(getattr(self.record, field.name).to(device) for field in fields(self.record)))
        return Commit(shape=self.shape, record=record, **tensors)


def make_commit(
    generator: torch.Generator,
    shape: GDNShape,
    tree: DraftTree,
    *,
    layers: int = 2,
    dtype: torch.dtype = torch.float32,
    state_dtype: torch.dtype = torch.float32,
    padded: tuple[int, ...] = (),
) -> Commit:
    """Every other request is tracked, at a random node of its path; pools are strided."""
    batch, width = tree.parents.shape

    def normal(*size: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(*size, generator=generator) * scale

    record = TreeRecord.allocate(shape, layers, batch + 1, width, dtype, dtype, "cpu")
    for buffer in (record.inputs, record.keys, record.values):
        buffer.copy_(normal(*buffer.shape))
    record.log_decay.copy_(-normal(*record.beta.shape).abs())
    record.beta.copy_(torch.sigmoid(normal(*record.beta.shape)))
    path, lens = random_paths(generator, tree)
    pool = 2 * batch + 2
    order = torch.randperm(pool, generator=generator)
    slots, track_slots = order[:batch].to(torch.int32), order[batch : 2 * batch].clone()
    track_slots[1::4] = -1
    track_lens = (torch.rand(batch, generator=generator) * lens).to(torch.int32) + 1
    track_lens[2::4] = 0
    for row in padded:
        slots[row] = -1
    states = normal(layers, pool, 2, shape.num_v_heads, shape.head_v_dim, shape.head_k_dim, scale=0.3)
    window = normal(layers, pool, shape.conv_kernel - 1, shape.conv_dim).to(dtype)
    return Commit(
        shape=shape,
        record=record,
        conv_states=window.transpose(2, 3),
        states=states.to(state_dtype)[:, :, 1],
        slots=slots,
        path=path,
        lens=lens,
        track_slots=track_slots,
        track_lens=track_lens,
    )


def naive_commit(case: Commit, *, track: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """(conv_states, states) after the commit; the state goes through its own dtype after every token."""
    conv_states, states = case.conv_states.clone(), case.states.clone()
    for layer in range(states.shape[0]):
        for request, slot in enumerate(case.slots.tolist()):
            if slot < 0:
                continue
            state = case.states[layer, slot]
            window = list(case.conv_states[layer, slot].unbind(1))
            for step in range(int(case.lens[request])):
                node = int(case.path[request, step])
                row = (layer, request, node)
                state = naive_step(
                    case.shape,
                    state.double(),
                    case.record.keys[row].double(),
                    case.record.values[row].double(),
                    case.record.log_decay[row].double(),
                    case.record.beta[row].double(),
                ).to(states.dtype)
                window = [*window[1:], case.record.inputs[row]]
                target = int(case.track_slots[request])
                if track and target >= 0 and step + 1 == int(case.track_lens[request]):
                    states[layer, target] = state
                    conv_states[layer, target] = torch.stack(window, dim=1)
            states[layer, slot] = state
            conv_states[layer, slot] = torch.stack(window, dim=1)
    return conv_states, states


def branching_tree(generator: torch.Generator, batch: int, width: int) -> DraftTree:
    """Random trees, at least one of them of full size."""
    trees = random_tree(generator, batch, width, vocab=400)
    while int(trees.node_count.max()) < width or trees.max_depth >= width - 1 > 1:
        trees = random_tree(generator, batch, width, vocab=400)
    return trees

"""Inputs and naive oracles for the tree tests. Nothing here calls the code under test, except `as_tree`."""

from __future__ import annotations

import torch

from sglang_ddtree.tree import DraftCandidates, DraftTree


def random_candidates(
    generator: torch.Generator,
    batch: int,
    depths: int,
    topk: int,
    *,
    vocab: int = 200,
    sharpness: float = 2.0,
) -> DraftCandidates:
    """Log-probabilities of random softmaxes, with ids that differ within a depth."""
    logits = torch.randn(batch, depths, vocab, generator=generator) * sharpness
    logprobs = torch.log_softmax(logits, dim=-1)
    values, ids = torch.topk(logprobs, topk, dim=-1)
    return DraftCandidates(ids, values)


def as_tree(parents: list[list[int]], tokens: list[list[int]], width: int) -> DraftTree:
    """Trees from plain lists (root first), padded to `width` with unused slots."""
    rows = []
    for parent_row, token_row in zip(parents, tokens, strict=True):
        depth_row: list[int] = []
        for parent in parent_row:
            depth_row.append(0 if parent < 0 else depth_row[parent] + 1)
        padding = width - len(parent_row)
        rows.append((token_row + [0] * padding, parent_row + [-1] * padding, depth_row + [0] * padding))
    token_rows, parent_rows, depth_rows = zip(*rows, strict=True)
    return DraftTree(
        tokens=torch.tensor(token_rows),
        parents=torch.tensor(parent_rows),
        depths=torch.tensor(depth_rows),
        node_count=torch.tensor([len(row) for row in parents], dtype=torch.int32),
        max_depth=max(1, max(max(row) for row in depth_rows)),
    )


def random_tree(generator: torch.Generator, batch: int, width: int, *, vocab: int = 50) -> DraftTree:
    """Trees of random shape and random size; siblings differ in token."""

    def draw(high: int) -> int:
        return int(torch.randint(high, (), generator=generator))

    parents, tokens = [], []
    for _ in range(batch):
        size = 1 + draw(width)
        parent_row, token_row = [-1], [draw(vocab)]
        for slot in range(1, size):
            parent = draw(slot)
            siblings = {token_row[i] for i in range(1, slot) if parent_row[i] == parent}
            free = [token for token in range(vocab) if token not in siblings]
            parent_row.append(parent)
            token_row.append(free[draw(len(free))])
        parents.append(parent_row)
        tokens.append(token_row)
    return as_tree(parents, tokens, width)


def path_to_root(parents: list[int], slot: int) -> list[int]:
    """[slot, its parent, ..., the root]."""
    path = [slot]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    return path


def likely_targets(generator: torch.Generator, tree: DraftTree, *, vocab: int = 50) -> torch.Tensor:
    """Target choices that follow a random child most of the time, so that accepted paths are long."""
    targets = torch.randint(vocab, tuple(tree.tokens.shape), generator=generator)
    for request in range(tree.batch_size):
        parents, tokens = tree.parents[request].tolist(), tree.tokens[request].tolist()
        for slot in range(int(tree.node_count[request])):
            children = [i for i, parent in enumerate(parents) if parent == slot]
            if children and torch.rand((), generator=generator) < 0.85:
                pick = int(torch.randint(len(children), (), generator=generator))
                targets[request, slot] = tokens[children[pick]]
    return targets


TREE_FIELDS = ("tokens", "parents", "depths", "node_count")


def assert_same_tree(got: DraftTree, expected: DraftTree, case: str) -> None:
    assert got.max_depth == expected.max_depth, case
    for name in TREE_FIELDS:
        left, right = getattr(got, name), getattr(expected, name)
        assert left.dtype == right.dtype, (case, name)
        assert torch.equal(left, right), (case, name)

"""Acceptance length of greedy decoding, chain and trees, with plain torch.

Greedy decoding emits the target's own greedy text whatever is drafted. So no tree goes through the target: its text
and hidden states come from one causal forward, and each step's drafts are walked along the known text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from sglang_ddtree.sketch.drafter import Drafter
from sglang_ddtree.tree import DraftCandidates, ancestor_mask, build_tree, resolve_topk, settle_path
from sglang_ddtree.tree.candidates import draft_candidates_torch

from .answerers import continue_all
from .progress import Progress
from .target import context_features, read_stops

CHAIN = 0
"""The budget that stands for the chain of the best drafts, as DFLASH verifies it."""


@dataclass
class Acceptance:
    """Decode steps at one budget; `steps` has one list per prompt, of the tokens that each forward committed."""

    budget: int
    steps: list[list[int]] = field(default_factory=list)

    @property
    def forwards(self) -> int:
        return sum(map(len, self.steps))

    @property
    def tokens(self) -> int:
        return sum(map(sum, self.steps))

    @property
    def mean(self) -> float:
        """Committed tokens per forward of the target, the bonus token included; pooled over the prompts."""
        return self.tokens / max(1, self.forwards)

    @property
    def name(self) -> str:
        return "chain" if self.budget == CHAIN else f"tree {self.budget}"


@torch.inference_mode()
def measure(
    target: Any,
    drafter: Drafter,
    prompts: Sequence[list[int]],
    *,
    budgets: Sequence[int],
    topk_cap: int,
    new_tokens: int,
    batch_size: int,
) -> list[Acceptance]:
    """Decode every prompt greedily up to `new_tokens` tokens or a stop token: the chain first, then each budget.

    The last step may go past `new_tokens`; what it commits there counts.
    """
    found = [Acceptance(budget) for budget in (CHAIN, *budgets)]
    stops = set(read_stops(target))
    progress = Progress(len(prompts), "prompts")
    for begin in range(0, len(prompts), batch_size):
        some = prompts[begin : begin + batch_size]
        # As far as a step from the last token but one may reach.
        texts = continue_all(target, some, new_tokens + drafter.block_size, temperature=0.0)
        for prompt, text in zip(some, texts, strict=True):
            drafts = _Drafts(target, drafter, prompt, text, topk_cap)
            for acceptance in found:
                acceptance.steps.append(_decode(drafts, acceptance.budget, new_tokens, stops))
            progress.advance()
        progress.say(", ".join(f"{one.name} {one.mean:.3f}" for one in found))
    return found


class _Drafts:
    """The drafter's proposals at the anchors of one text, each made once."""

    def __init__(
        self, target: Any, drafter: Drafter, prompt: list[int], text: list[int], topk_cap: int
    ) -> None:
        self.prompt, self.text, self.slots, self.topk_cap = prompt, text, drafter.block_size, topk_cap
        self._target, self._drafter = target, drafter
        tokens = torch.tensor([prompt + text], device=target.device)
        self._features = context_features(target, tokens, drafter.target_layer_ids)
        self._made: dict[int, DraftCandidates] = {}

    def behind(self, done: int) -> DraftCandidates:
        """Candidates on the CPU for the tokens behind `text[done - 1]`."""
        if done not in self._made:
            block = torch.full((1, self.slots), self._drafter.mask_token_id, device=self._target.device)
            block[0, 0] = self.text[done - 1]
            embeds = self._target.get_input_embeddings()(block)
            anchor = len(self.prompt) + done - 1
            hidden = self._drafter(embeds, self._features[:, :anchor])[:, 1:]
            logits = hidden @ self._target.get_output_embeddings().weight.T
            made, _ = draft_candidates_torch(logits, min(self.topk_cap, logits.shape[-1]))
            self._made[done] = DraftCandidates(made.token_ids.cpu(), made.logprobs.cpu())
        return self._made[done]


def _decode(drafts: _Drafts, budget: int, new_tokens: int, stops: set[int]) -> list[int]:
    text, steps, done = drafts.text, [], 1  # the first token comes from prefill
    while done < min(new_tokens, len(text)) and text[done - 1] not in stops:
        # Nothing is accepted behind a stop token: no draft is -1.
        known = (text[done : done + drafts.slots] + [-1] * drafts.slots)[: drafts.slots]
        found = drafts.behind(done)
        committed = _chain(found, known) if budget == CHAIN else _tree(found, text[done - 1], known, budget)
        committed = min(committed, len(text) - done)
        steps.append(committed)
        done += committed
    return steps


def _chain(found: DraftCandidates, known: list[int]) -> int:
    hits = found.token_ids[0, :, 0] == torch.tensor(known[:-1])
    return int(hits.long().cumprod(dim=0).sum()) + 1


def _tree(found: DraftCandidates, root: int, known: list[int], budget: int) -> int:
    topk = resolve_topk(budget, found.topk, found.topk)
    candidates = DraftCandidates(found.token_ids[:, :, :topk], found.logprobs[:, :, :topk])
    tree = build_tree(candidates, torch.tensor([root]), budget)
    # Right for every slot on the text's path; a slot off it is never accepted, whatever is chosen behind it.
    chosen = torch.tensor(known)[tree.depths]
    slots = torch.arange(max(tree.width, tree.max_depth + 1)).unsqueeze(0)
    accepted, _ = settle_path(tree, ancestor_mask(tree), chosen, torch.zeros(1, dtype=torch.int64), slots)
    return int(accepted.accept_lens)

"""One decode step by transformers: the target's greedy text, and the tree that the drafter proposes for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..bench.prompt_sets import Prompt
from ..bench.tokens import encode
from ..host.checkpoint import read_config
from ..host.drafter import check_drafter
from ..tree.candidates import draft_candidates
from ..tree.capacity import resolve_topk
from ..tree.reference import Node, best_first_tree

TOPK_CAP = 16


class SketchError(ValueError):
    """The checkpoints cannot be shown; the message says why."""


@dataclass(frozen=True)
class Step:
    """A tree behind `root`, the first token of the answer; the target goes on with `text`.

    `nodes` are best first, a parent of 0 is the root.
    """

    root: int
    nodes: Sequence[Node]
    text: Sequence[int]

    def accepted(self) -> list[int]:
        """Indices into `nodes` of the path that greedy decoding takes, from the root down."""
        children = {(node.parent, node.token): number for number, node in enumerate(self.nodes, 1)}
        path, at = [], 0
        for token in self.text:
            if (at, token) not in children:
                break
            at = children[at, token]
            path.append(at - 1)
        return path


def first_step(model: str, draft: Path, prompt: str, budget: int) -> tuple[Step, Any]:
    """The first decode step behind `prompt`, and the target's tokenizer.

    Raises:
        SketchError: this drafter or target cannot be run here.
        CheckpointError: the drafter is none for this target, or a file is absent or damaged.
        TokenizerError: the target's tokenizer does not load.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    check_drafter(str(draft), model)
    config = read_config(str(draft))
    if set(config.get("layer_types") or ["full_attention"]) != {"full_attention"} or config.get("is_causal"):
        raise SketchError(f"--draft {draft}: only drafters with full attention in all layers can be shown.")
    from .drafter import Drafter

    (ids,), _ = encode(model, [Prompt("", "", prompt)], trust_remote_code=False)
    disable_progress_bar()
    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    try:
        target = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).to(device).eval()
    except (OSError, ValueError, KeyError) as error:
        raise SketchError(f"--model {model}: transformers cannot load it: {error}") from error
    drafter = Drafter(draft).to(device, dtype).eval()
    return draw_step(target, drafter, ids, budget), AutoTokenizer.from_pretrained(model)


@torch.inference_mode()
def draw_step(target: Any, drafter: Any, prompt: Sequence[int], budget: int) -> Step:
    """The step behind the token ids `prompt`."""
    device = target.device
    output = target(torch.tensor([prompt], device=device), output_hidden_states=True)
    states = output.hidden_states
    if max(drafter.target_layer_ids) + 2 > len(states) - 1:
        # transformers has normalised the last layer's states, the drafter was trained on those before.
        raise SketchError("a drafter that reads the target's last layer cannot be shown.")
    context = torch.cat([states[layer + 1] for layer in drafter.target_layer_ids], dim=-1)
    text, cache = [int(output.logits[0, -1].argmax())], output.past_key_values
    while len(text) < drafter.block_size:
        output = target(torch.tensor([text[-1:]], device=device), past_key_values=cache, use_cache=True)
        text.append(int(output.logits[0, -1].argmax()))
    block = torch.full((1, drafter.block_size), drafter.mask_token_id, device=device)
    block[0, 0] = text[0]
    hidden = drafter(target.get_input_embeddings()(block), context)[:, 1:]
    logits = hidden @ target.get_output_embeddings().weight.T
    found = draft_candidates(logits, resolve_topk(budget, logits.shape[-1], TOPK_CAP))
    nodes = best_first_tree(found.logprobs[0].tolist(), found.token_ids[0].tolist(), budget)
    return Step(text[0], nodes, text[1:])

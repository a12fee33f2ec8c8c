"""Whether a checkpoint is a plain DFlash drafter of this target; reads configs and tensor headers only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..config import ALGORITHM
from ..tree.capacity import MAX_DEPTHS
from .checkpoint import CheckpointError, option, read_config, read_shapes, shown
from .hooks import declare

ARCHITECTURE = "DFlashDraftModel"

# What else SGLang loads as a draft, by the architecture that its config declares.
_FAMILIES = {
    "DFlash2": "a DFlash2 drafter (candidate selector)",
    "LiLiCorr": "a LiLiCorr drafter",
    "DSpark": "a DSpark drafter",
    "Laguna": "a Laguna drafter (gated attention)",
    "MuseGlimmer": "a Muse drafter (other layer numbering)",
    "Eagle": "an EAGLE head",
    "NextN": "an MTP head",
    "MTP": "an MTP head",
}
# Tensors that only these families have, by a part of their name.
_FOREIGN_TENSORS = {
    "candidate_selector.": "DFlash2's candidate selector",
    "prefix_gru.": "Domino's projector",
    "embed_proj.": "Domino's projector",
    "lilicorr.": "LiLiCorr's head",
    "markov": "DSpark's Markov head",
    "confidence": "DSpark's confidence head",
    "_conv.": "grouped convolutions",
    "d2t": "EAGLE's reduced vocabulary",
    "t2d": "EAGLE's reduced vocabulary",
}
# Drafters may carry copies of what they borrow from the target, and rotary caches.
_IGNORED_TENSORS = ("embed_tokens.weight", "lm_head.weight", "inv_freq")
_TENSOR_ALIASES = {"encoder.fc.weight": "fc.weight", "encoder.output_norm_enc.weight": "hidden_norm.weight"}


class DrafterError(CheckpointError):
    """The checkpoint cannot draft for this target; the message lists every reason."""


@dataclass(frozen=True)
class DrafterReport:
    """A drafter that fits. `tensors` is None where no safetensors file was at hand to check."""

    path: str
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_layers: int
    hidden_size: int
    vocab_size: int
    rope_theta: float | None
    tensors: int | None


def check_drafter(
    draft_path: str | None,
    target: str | Mapping[str, Any],
    *,
    draft_revision: str | None = None,
    target_revision: str | None = None,
    weights: bool = True,
    ranks: int = 1,
) -> DrafterReport:
    """Check the drafter at `draft_path`, a folder or a hub id, against a target (path, id or config).

    `weights=False` leaves the tensors unread, as for `--load-format dummy`; `ranks` share the heads. Raises
    `DrafterError` that says for every problem what was found and what is allowed, and its base `CheckpointError` for
    files that are absent or damaged.
    """
    if not draft_path:
        raise DrafterError(
            "DDTREE needs a drafter: set --speculative-draft-model-path to a DFlash checkpoint "
            "trained for this target."
        )
    config = read_config(draft_path, draft_revision)
    target_config = read_config(target, target_revision) if isinstance(target, str) else target
    problems = list(_config_problems(config, _text_config(target_config)))
    if not problems:
        problems += _rank_problems(config, ranks)
    tensors = None
    if not problems and weights and not config.get("quantization_config"):
        shapes = read_shapes(draft_path, draft_revision)
        if shapes is not None:
            tensors = len(shapes)
            problems += _tensor_problems(config, shapes)
    _raise(draft_path, problems)
    return DrafterReport(
        path=draft_path,
        block_size=option(config, "block_size"),
        mask_token_id=option(config, "mask_token_id"),
        target_layer_ids=tuple(option(config, "target_layer_ids")),
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        vocab_size=config["vocab_size"],
        rope_theta=rope_theta(config),
        tensors=tensors,
    )


def install() -> None:
    """Declare the hook that reads the drafter's config before SGLang does."""
    declare(
        "sglang.srt.arg_groups.speculative_hook.handle_speculative_decoding",
        "before",
        "SGLang reads the drafter's config first and fails on a malformed one without naming file or field",
        _require_readable,
    )


def _require_readable(server_args: Any) -> None:
    from sglang.srt.arg_groups.overrides import resolving_view

    cfg = resolving_view(server_args)
    path = cfg.speculative_draft_model_path
    if str(cfg.speculative_algorithm).upper() != ALGORITHM or not path:
        return
    _raise(path, list(_malformed(read_config(path, cfg.speculative_draft_model_revision))))


def check_drafter_of(server_args: Any) -> DrafterReport:
    """`check_drafter` for a `ServerArgs` record or a view of one."""
    load_format = server_args.speculative_draft_load_format or server_args.load_format
    return check_drafter(
        server_args.speculative_draft_model_path,
        server_args.model_path,
        draft_revision=server_args.speculative_draft_model_revision,
        target_revision=server_args.revision,
        weights=load_format != "dummy",
        ranks=int(server_args.tp_size),
    )


def _rank_problems(config: Mapping[str, Any], ranks: int) -> Iterator[str]:
    heads = config["num_attention_heads"]
    for name in ("num_attention_heads", "intermediate_size"):
        if config[name] % ranks:
            yield f"{name} is {config[name]}, and --tensor-parallel-size {ranks} does not divide it"
    # Ranks share KV heads, or several ranks hold the same one.
    kv_heads = config.get("num_key_value_heads") or heads
    if max(kv_heads, ranks) % min(kv_heads, ranks):
        yield (
            f"num_key_value_heads is {kv_heads}: --tensor-parallel-size must divide it or be a multiple of it, "
            f"got {ranks}"
        )


def rope_theta(config: Mapping[str, Any]) -> float | None:
    """The rotary base from either shape of config: `rope_parameters.rope_theta` or `rope_theta`."""
    value = _rope_theta_entry(config)
    return None if value is None else float(value)


def _rope_theta_entry(config: Mapping[str, Any]) -> Any:
    nested = (config.get("rope_parameters") or {}).get("rope_theta")
    return config.get("rope_theta") if nested is None else nested


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else config


def _config_problems(config: Mapping[str, Any], target: Mapping[str, Any]) -> Iterator[str]:
    malformed = list(_malformed(config))
    if malformed:  # the other checks could not read it
        yield from malformed
        return
    foreign = _foreign_family(config)
    if foreign:
        # Its other fields mean other things: one clear reason is better than a list.
        yield f"it is {foreign}; DDTREE takes plain DFlash checkpoints (architectures: ['{ARCHITECTURE}'])"
        return
    yield from _block_problems(config)
    yield from _target_problems(config, target)


def _malformed(config: Mapping[str, Any]) -> Iterator[str]:
    for key in ("dflash_config", "rope_parameters"):
        value = config.get(key)
        if value is not None and not isinstance(value, Mapping):
            yield f"{key} is {shown(value)}, it must be a mapping"
    for key in ("architectures", "layer_types"):
        value = config.get(key)
        if value is not None and not (isinstance(value, list) and all(isinstance(v, str) for v in value)):
            yield f"{key} is {shown(value)}, it must be a list of names"


def _foreign_family(config: Mapping[str, Any]) -> str | None:
    declared = list(config.get("architectures") or [])
    for part, family in _FAMILIES.items():
        if any(part.lower() in name.lower() for name in declared):
            return f"{family}, architectures {declared}"
    if ARCHITECTURE not in declared:
        return f"no DFlash drafter, architectures {declared}"
    for key, family in {
        "selector_rank": "a DFlash2 drafter (candidate selector)",
        "selector_top_k": "a DFlash2 drafter (candidate selector)",
        "final_logit_softcapping": "a drafter with transformed logits",
        "projector_type": "a Domino drafter",
        "lilicorr_hidden_size": "a LiLiCorr drafter",
        "markov_rank": "a DSpark drafter",
        "conv_kernel_size": "a drafter with grouped convolutions",
        "attention_sink_bias": "a drafter with attention sinks",
        "has_embed_tokens": "a Nemotron drafter (own embedding)",
    }.items():
        value = option(config, key)
        if value:
            return f"{family}, {key} = {value!r}"
    if option(config, "output_multiplier") not in (None, 1, 1.0):
        return (
            f"a drafter with transformed logits, output_multiplier = {option(config, 'output_multiplier')!r}"
        )
    if option(config, "sample_from_anchor") is False:
        return "a drafter with another query layout, sample_from_anchor = False"
    if "sliding_attention" in (config.get("layer_types") or []):
        return "a drafter with sliding-window layers, layer_types has 'sliding_attention'"
    return None


def _block_problems(config: Mapping[str, Any]) -> Iterator[str]:
    for key in ("num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads", "intermediate_size"):
        if not _is_whole(config.get(key)) or config[key] < 1:
            yield f"{key} is {config.get(key)!r}, it must be a whole number from 1"
    block = option(config, "block_size")
    if not _is_whole(block) or not 2 <= block <= MAX_DEPTHS + 1:
        yield (
            f"block_size is {block!r}, it must be a whole number from 2 (a known token, then drafted ones) "
            f"to {MAX_DEPTHS + 1}"
        )
    for key in ("head_dim", "num_key_value_heads"):
        value = config.get(key)
        if value is not None and (not _is_whole(value) or value < 1):
            yield f"{key} is {value!r}, it must be a whole number from 1, or absent"
    rope = config.get("rope_parameters") or {}
    if any(isinstance(value, Mapping) for value in rope.values()):
        yield f"rope_parameters is given per layer type, {sorted(rope)}; it must be one set for all layers"
    theta = _rope_theta_entry(config)
    if theta is not None and not (_is_number(theta) and 0 < theta < math.inf):
        yield f"rope_theta is {theta!r}, it must be a number above 0"
    mask, vocabulary = option(config, "mask_token_id"), config.get("vocab_size")
    if mask is None:
        yield "dflash_config.mask_token_id is missing; it must name the token of the empty slots"
    elif not _is_whole(mask) or mask < 0 or (_is_whole(vocabulary) and mask >= vocabulary):
        yield f"mask_token_id is {mask!r}, outside the vocabulary of {vocabulary} tokens"


def _target_problems(config: Mapping[str, Any], target: Mapping[str, Any]) -> Iterator[str]:
    for key, meaning in (("vocab_size", "vocabulary size"), ("hidden_size", "hidden size")):
        if config.get(key) != target.get(key):
            yield (
                f"its {meaning} is {config.get(key)}, the target's is {target.get(key)}; they must be equal, "
                "since it borrows the target's embedding and head"
            )
    layers = target.get("num_hidden_layers")
    trained = option(config, "num_target_layers")
    if trained is not None and trained != layers:
        yield f"it was trained for a target of {trained} layers, this one has {layers}"
    ids = option(config, "target_layer_ids")
    if not isinstance(ids, (list, tuple)) or not ids or not all(map(_is_whole, ids)):
        yield f"dflash_config.target_layer_ids is {ids!r}, it must list the target layers that it reads"
    elif isinstance(layers, int):
        outside = [i for i in ids if not 0 <= i < layers]
        if outside:
            yield f"it reads the target layers {outside}, the target has 0..{layers - 1}"
        if list(ids) != sorted(set(ids)):
            # SGLang gathers them on its way through the layers.
            yield (
                f"dflash_config.target_layer_ids is {ids!r}, it must be ascending without repetition: SGLang "
                "hands each layer over once, in the target's order"
            )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or _is_whole(value)


def _expected_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    query, key_value = heads * head_dim, (config.get("num_key_value_heads") or heads) * head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(option(config, "target_layer_ids")) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    per_layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (query, hidden),
        "self_attn.k_proj.weight": (key_value, hidden),
        "self_attn.v_proj.weight": (key_value, hidden),
        "self_attn.o_proj.weight": (hidden, query),
        "self_attn.q_norm.weight": (head_dim,),
        "self_attn.k_norm.weight": (head_dim,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if config.get("attention_bias"):
        per_layer |= {
            "self_attn.q_proj.bias": (query,),
            "self_attn.k_proj.bias": (key_value,),
            "self_attn.v_proj.bias": (key_value,),
            "self_attn.o_proj.bias": (hidden,),
        }
    for layer in range(config["num_hidden_layers"]):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in per_layer.items()}
    return shapes


def _tensor_problems(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    expected = _expected_shapes(config)
    found = {_TENSOR_ALIASES.get(name, name.removeprefix("model.")): shape for name, shape in shapes.items()}
    foreign = {
        meaning: name for part, meaning in _FOREIGN_TENSORS.items() for name in sorted(found) if part in name
    }
    if foreign:
        listed = ", ".join(f"{name} ({meaning})" for meaning, name in foreign.items())
        return [f"its weights hold {listed}: it is no plain DFlash drafter"]
    problems = []
    missing = [name for name in expected if name not in found]
    if missing:
        problems.append(f"{_some(missing)} missing from its weights")
    wrong = [f"{n} {list(found[n])}, must be {list(s)}" for n, s in expected.items() if found.get(n, s) != s]
    if wrong:
        problems.append(f"shapes that do not fit its config: {_some(wrong)}")
    unknown = [n for n in sorted(found) if n not in expected and not n.endswith(_IGNORED_TENSORS)]
    if unknown:
        problems.append(f"tensors that a plain DFlash drafter does not have: {_some(unknown)}")
    return problems


def _raise(path: str, problems: list[str]) -> None:
    if problems:
        raise DrafterError(f"The drafter {path} cannot be used by DDTREE: " + "; ".join(problems) + ".")


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"

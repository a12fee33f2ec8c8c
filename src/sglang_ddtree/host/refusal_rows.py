"""What this version does not serve: SGLang's server options and kinds of target, each with its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .recurrent import follows_accepted_node


@dataclass(frozen=True)
class OptionRow:
    """A field of `ServerArgs` that DDTREE refuses when `refused(value)`."""

    field: str
    allowed: str
    refused: Callable[[Any], bool]
    why: str
    fix: str
    flag: str = ""

    @property
    def name(self) -> str:
        """The flag as a user types it."""
        return self.flag or "--" + self.field.replace("_", "-")


@dataclass(frozen=True)
class TargetRow:
    """A kind of target that DDTREE refuses when `refused(model_config)`."""

    name: str
    refused: Callable[[Any], bool]
    why: str
    fix: str = "Use another target or another --speculative-algorithm."


def _one(field: str, why: str, flag: str = "") -> OptionRow:
    return OptionRow(field, "1", lambda value: (value or 1) > 1, why, "Set it to 1.", flag)


def _off(field: str, why: str, fix: str = "Leave it out.") -> OptionRow:
    return OptionRow(field, "off", bool, why, fix)


def _unset(field: str, why: str, fix: str = "Leave it out.") -> OptionRow:
    return OptionRow(field, "unset", lambda value: value not in (None, [], ""), why, fix)


def _is(field: str, value: Any, why: str) -> OptionRow:
    return OptionRow(field, str(value), lambda got: got != value, why, f"Leave it at {value}.")


_ONE_GROUP = "this version runs on one tensor-parallel group"
_SCATTERED = "the draft reads the target's hidden states whole, and here each rank has a part of the tokens"
_OTHER = "it belongs to another speculative algorithm and DDTREE does not read it"
_INEXACT = "DDTREE emits samples of the target alone, and this would change their distribution"
_KV_COPIES = "it keeps copies of the target's KV, and the draft's KV would be missing for what it brings back"
_RETURNS = "a tree verify does not keep what it returns"

OPTION_ROWS = (
    # The tree's own numbers
    _unset(
        "speculative_token_map",
        "the draft's candidates come from the full vocabulary",
    ),
    _unset(
        "speculative_draft_window_size",
        "the tree's draft reads the whole context",
    ),
    _unset("speculative_draft_sink_size", "the tree's draft reads the whole context"),
    # Exactness
    _is("speculative_accept_threshold_single", 1.0, _INEXACT),
    _is("speculative_accept_threshold_acc", 1.0, _INEXACT),
    _off("speculative_use_rejection_sampling", "DDTREE samples the target at every node instead"),
    _off("speculative_use_block_verification", "DDTREE samples the target at every node instead"),
    _off("speculative_adaptive", "it changes the steps of EAGLE; the tree's size is fixed"),
    _unset("speculative_adaptive_config", "it changes the steps of EAGLE; the tree's size is fixed"),
    # Other algorithms' options
    _unset("speculative_dspark_block_size", _OTHER),
    _unset("speculative_dspark_sps_table_path", _OTHER),
    _unset("speculative_dspark_confidence_sts_path", _OTHER),
    _off("speculative_dspark_align_verify_tokens_to_graph_tier", _OTHER),
    _is("speculative_domino_candidate_pool_size", 2048, _OTHER),
    _is("speculative_ngram_min_bfs_breadth", 1, _OTHER),
    _is("speculative_ngram_max_bfs_breadth", 10, _OTHER),
    _is("speculative_ngram_match_type", "BFS", _OTHER),
    _is("speculative_ngram_max_trie_depth", 18, _OTHER),
    _is("speculative_ngram_capacity", 10_000_000, _OTHER),
    _unset("speculative_ngram_external_corpus_path", _OTHER),
    _is("speculative_ngram_external_sam_budget", 0, _OTHER),
    _is("speculative_ngram_external_corpus_max_tokens", 10_000_000, _OTHER),
    _unset("uno_lora_path", _OTHER),
    _off("enable_multi_layer_eagle", _OTHER),
    _is("decoupled_spec_role", "null", "draft and target run in one process"),
    _unset("spec_trace_dir", "draft and target run in one process"),
    # Parallelism
    _one("pp_size", _ONE_GROUP, "--pipeline-parallel-size"),
    _one("attn_dp_size", _ONE_GROUP),
    _one("attn_cp_size", _ONE_GROUP),
    _one("dcp_size", _ONE_GROUP),
    _one("ep_size", _ONE_GROUP, "--expert-parallel-size"),
    _one("moe_dp_size", _ONE_GROUP),
    _one("dwdp_size", _ONE_GROUP),
    _one("nnodes", _ONE_GROUP),
    _off("enable_attn_tp_input_scattered", _SCATTERED),
    _off("enable_layernorm_sp", _SCATTERED),
    _unset("moe_dense_tp_size", _SCATTERED),
    _off("enable_prefill_cp", _ONE_GROUP),
    _off("enable_kv_cache_sharding", _ONE_GROUP),
    # Disaggregation and other ways to split a forward
    _is("disaggregation_mode", "null", "prefill and decode run in one server"),
    _off("encoder_only", "prefill and decode run in one server"),
    _off("language_only", "prefill and decode run in one server"),
    _off("enable_pdmux", "prefill and decode steps may not run side by side"),
    _off("enable_two_batch_overlap", "a tree verify is not split into two batches"),
    _one("tokenizer_worker_num", "SGLang's tokenizer workers load no plugins and do not know DDTREE"),
    # Caches
    _off("enable_hierarchical_cache", _KV_COPIES),
    _unset("hicache_storage_backend", _KV_COPIES),
    _off("enable_lmcache", _KV_COPIES),
    _off("enable_flexkv", _KV_COPIES),
    _off("enable_unified_cache_external_linker", _KV_COPIES),
    _off("enable_hisparse", _KV_COPIES),
    _off("enable_unified_memory", "accepted rows could not be moved in a unified pool"),
    _off("enable_page_major_kv_layout", "moving accepted rows is not tested in this layout"),
    _off("prefill_only_disable_kv_cache", "decoding needs the KV cache"),
    OptionRow(
        "kv_cache_dtype",
        "auto, bf16 or fp8",
        lambda value: str(value).startswith(("fp4", "mxfp", "nvfp", "int4")),
        "moving accepted rows is not tested for block-scaled formats",
        "Use auto.",
    ),
    # Features of requests that need a server option
    _off("enable_lora", "an adapter would apply to the target and not to the drafter"),
    _unset("lora_paths", "an adapter would apply to the target and not to the drafter"),
    _off("enable_custom_logit_processor", "a processor would have to run at every node of the tree"),
    _off("enable_return_hidden_states", _RETURNS),
    _unset("return_hidden_states_mode", _RETURNS),
    _off("enable_return_routed_experts", _RETURNS),
    _off("enable_return_indexer_topk", _RETURNS),
    _off("enable_watermark", "a watermark would have to be sampled at every node of the tree"),
    _off("enable_strict_thinking", "it needs a grammar, which a tree verify does not apply"),
    _off("enable_mis", "multi-item scoring does not decode"),
    _off("enable_streaming_session", "sessions are not tested"),
    _off("enable_session_radix_cache", "sessions are not tested"),
    # Kernels that replace the forward
    _unset("dllm_algorithm", "a diffusion model does not decode token by token"),
    _off("is_embedding", "an embedding model does not decode"),
    _off("enable_linear_replayssm_spec", "its verify is strictly causal, a chain"),
    _off("enable_linear_replayssm", "it serves plain decoding, which a DDTREE server does not do"),
    _off("enable_int8_mamba_checkpoint", "checkpoints of the recurrent state are kept exact"),
    _off("enable_mamba_cache_stochastic_rounding", "the recurrent state is rounded to the nearest value"),
    _off("enable_nvidia_megakernel", "it replaces the forward by one without a tree mask"),
    _off("enable_amd_monokernel", "it replaces the forward by one without a tree mask"),
)


def _slides(model_config: Any) -> bool:
    layer_types = getattr(model_config.hf_text_config, "layer_types", None) or []
    return bool(model_config.is_hybrid_swa) or "sliding_attention" in layer_types


def _takes_images(model_config: Any) -> bool:
    # Qwen3.5's checkpoints carry a vision tower; text goes through them as through any other target, and
    # requests with images are refused one by one.
    return bool(model_config.is_multimodal) and not follows_accepted_node(model_config)


TARGET_ROWS = (
    TargetRow(
        "sliding-window target",
        _slides,
        "the window would be counted by the node's index in the tree, not by its depth",
    ),
    TargetRow(
        "target with chunked local attention",
        lambda config: bool(config.is_local_attention_model) or config.attention_chunk_size is not None,
        "the chunks would be counted by the node's index in the tree, not by its depth",
    ),
    TargetRow(
        "multimodal target other than Qwen3.5",
        _takes_images,
        "positions of images and audio are not kept per node of the tree",
    ),
    TargetRow(
        "encoder-decoder target",
        lambda config: bool(config.is_encoder_decoder),
        "a tree verify has no cross attention",
    ),
    TargetRow(
        "target with n-gram embeddings",
        lambda config: bool(config.use_ngram_embedding or config.use_engram),
        "its embedding reads the previous tokens, which differ from node to node",
    ),
)

"""The one table of every SGLang name that this package uses.

An entry is `name`, or `name(parameters)` where the parameters must be exactly these; a name is a function, a
class or `Class.member`. Add a line where a new name is used.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """`name` in `module`, with its parameters where it is called or hooked; `used_by` names our modules."""

    module: str
    name: str
    parameters: str | None
    used_by: str


def _names(module: str, used_by: str, *entries: str) -> list[Row]:
    rows = []
    for entry in entries:
        name, has_parameters, rest = entry.partition("(")
        rows.append(Row(module, name, rest.removesuffix(")") if has_parameters else None, used_by))
    return rows


ROWS = (
    *_names(
        "sglang.srt.plugins.hook_registry",
        "host.hooks, cpu.shims",
        "HookRegistry.register(cls, target, hook, hook_type, *, source)",
        "HookRegistry.apply_hooks(cls)",
        "HookRegistry._patched",
        "HookType",
    ),
    *_names(
        "sglang.srt.plugins",
        "host.doctor, cpu.shims",
        "_plugins_loaded",
        "load_plugins()",
    ),
    *_names(
        "sglang.srt.server_args",
        "host.flags, host.guard",
        "ServerArgs.add_cli_args(parser)",
        "ServerArgs.from_cli_args(cls, args)",
        "ServerArgs.resolved_dict(self)",
        "ServerArgs.__reduce__(self)",
        "prepare_server_args(argv)",
        "ServerArgs.resolve_once(self)",
    ),
    *_names(
        "sglang.srt.entrypoints.engine",
        "host.flags",
        "Engine.server_args_class",
    ),
    *_names(
        "sglang.srt.platforms",
        "host.refusals",
        "current_platform",
    ),
    *_names(
        "sglang.srt.platforms.interface",
        "host.backend, host.refusals, cpu.device",
        "SRTPlatform.is_out_of_tree(self)",
        "SRTPlatform.supports_speculative_algorithm(self, algorithm)",
        "PlatformCapabilities",
        "SRTPlatform.get_default_attention_backend(self)",
        "SRTPlatform.get_kv_pool_cls(self, *, kind)",
        "SRTPlatform.get_speculative_cache_locs_fn(self)",
    ),
    *_names(
        "sglang.srt.arg_groups.arg_utils",
        "host.refusals",
        "is_record(cls)",
    ),
    *_names(
        "sglang.srt.arg_groups.overrides",
        "host.backend, host.budget, host.flags, host.refusals, host.startup, step.algorithm",
        "declare_resolution(server_args, source, **fields)",
        "is_attention_backend_not_set(cfg)",
        "model_config_of(server_args)",
        "resolved_view(server_args)",
        "resolving_view(server_args)",
        "record_foreign_defaults(server_args, source, resolve)",
    ),
    *_names(
        "sglang.srt.arg_groups.attention_hook",
        "host.backend",
        "handle_deterministic_inference(server_args)",
    ),
    *_names(
        "sglang.srt.arg_groups.speculative_hook",
        "host.drafter, step.algorithm",
        "handle_speculative_decoding(server_args)",
    ),
    *_names(
        "sglang.srt.arg_groups.pipeline",
        "host.refusals, cpu.device",
        "run_resolution_pipeline(server_args)",
    ),
    *_names(
        "sglang.srt.configs.hybrid_arch",
        "host.recurrent",
        "hybrid_gdn_config(model_config)",
        "hybrid_kda_config(model_config)",
        "hybrid_lightning_config(model_config)",
        "mamba2_config(model_config)",
        "mambaish_config(model_config)",
    ),
    *_names(
        "sglang.srt.configs.qwen3_next",
        "host.recurrent",
        "Qwen3NextConfig.mamba2_cache_params(self)",
    ),
    *_names(
        "sglang.srt.configs.qwen3_5",
        "host.recurrent",
        "Qwen3_5MoeTextConfig",
        "Qwen3_5TextConfig",
    ),
    *_names(
        "sglang.srt.configs.mamba_utils",
        "host.recurrent",
        "BaseLinearStateParams.mamba_cache_per_req(self)",
        "mamba2_state_dtype(config)",
    ),
    *_names(
        "sglang.srt.mem_cache.kv_cache_configurator",
        "host.recurrent_seams",
        "KVCacheConfigurator._build_hybrid_req_pool(self, *, max_num_reqs, extra_max_context_len)",
        "KVCacheConfigurator._calculate_mamba_ratio(self)",
        "KVCacheConfigurator._handle_max_mamba_cache(self, total_rest_memory)",
        "_pd_prefill_skips_mamba_spec_state()",
    ),
    *_names(
        "sglang.srt.layers.attention.hybrid_linear_attn_backend",
        "step.recurrent",
        "HybridLinearAttnBackend.__init__(self, full_attn_backend, linear_attn_backend, full_attn_layers)",
        "MambaAttnBackendBase.forward_metadata",
        "MambaAttnBackendBase.topk",
    ),
    *_names(
        "sglang.srt.layers.radix_linear_attention",
        "step.recurrent",
        "RadixLinearAttention.A_log",
        "RadixLinearAttention.activation",
        "RadixLinearAttention.bias",
        "RadixLinearAttention.conv_weights",
        "RadixLinearAttention.dt_bias",
    ),
    *_names(
        "sglang.srt.layers.attention.linear.gdn_backend",
        "step.recurrent",
        "GDNAttnBackend.__init__(self, model_runner)",
        "GDNAttnBackend.forward_extend(self, layer, forward_batch, mixed_qkv, a, b, **kwargs)",
    ),
    *_names(
        "sglang.srt.configs.model_config",
        "host.backend, host.doctor, host.refusals, host.startup",
        "ModelConfig",
        "ModelConfig.attention_arch",
        "ModelConfig.attention_chunk_size",
        "ModelConfig.is_encoder_decoder",
        "ModelConfig.is_hybrid_swa",
        "ModelConfig.is_local_attention_model",
        "ModelConfig.is_multimodal",
        "ModelConfig.use_engram",
        "ModelConfig.use_ngram_embedding",
        "ModelConfig.hf_config",
        "ModelConfig.hf_text_config",
        "ModelConfig.vocab_size",
    ),
    *_names(
        "sglang.srt.models.dflash",
        "host.drafter",
        "DFlashDraftModel",
    ),
    *_names(
        "sglang.srt.layers.logits_processor",
        "host.startup",
        "should_apply_lm_head_quant_method(lm_head, quant_method)",
    ),
    *_names(
        "sglang.srt.speculative.dflash_utils",
        "host.startup, host.drafter, host.admission",
        "is_dense_head_weight(weight)",
        "parse_dflash_draft_config(*, draft_hf_config)",
        "validate_dflash_request(req, enable_overlap)",
    ),
    *_names(
        "sglang.srt.managers.scheduler",
        "host.admission",
        "Scheduler._handle_generate_request(self, recv_req, mm_cleanup, *, mm_input_error)",
    ),
    *_names(
        "sglang.srt.managers.scheduler",
        "host.metrics",
        "Scheduler.draft_worker",
    ),
    *_names(
        "sglang.srt.managers.scheduler_components.metrics_reporter",
        "host.metrics",
        "SchedulerMetricsReporter._maybe_log_idle_metrics(self)",
        "SchedulerMetricsReporter.report_decode_stats(self, can_run_cuda_graph, running_batch, "
        "num_generated_tokens)",
        "SchedulerMetricsReporter.current_scheduler_metrics_enabled",
        "SchedulerMetricsReporter.decode_log_interval",
        "SchedulerMetricsReporter.forward_ct_decode",
        "SchedulerMetricsReporter.metrics_collector",
        "SchedulerMetricsReporter.scheduler",
        "logger",
    ),
    *_names(
        "sglang.srt.observability.metrics_collector",
        "host.metrics",
        "SchedulerMetricsCollector._counter_cls",
        "SchedulerMetricsCollector._gauge_cls",
        "SchedulerMetricsCollector.labels",
    ),
    *_names(
        "sglang.srt.speculative.base_spec_worker",
        "host.metrics",
        "BaseSpecWorker.on_verify_complete_cpu(self, num_correct_drafts_per_req, batch_size)",
    ),
    *_names(
        "sglang.srt.managers.schedule_batch",
        "host.admission, host.recurrent_seams, step.worker",
        "Req.set_finish_with_abort(self, error_msg, status_code, err_type)",
        "Req.vocab_size",
        "ScheduleBatch",
        "mamba_lazy_spec_in_window(req, mamba_track_interval, max_draft_tokens)",
    ),
    *_names(
        "sglang.srt.runtime_context",
        "host.admission, host.seams, host.recurrent_seams, step.recurrent, step.widths",
        "get_exec()",
        "get_memory()",
        "get_schedule()",
        "get_spec()",
        "mamba_track_grid(tree_page)",
    ),
    *_names(
        "sglang.srt.mem_cache.allocation_sizing",
        "host.seams",
        "get_alloc_page_size()",
        "get_alloc_reserve_per_decode()",
        "get_req_to_token_extra_context_len()",
        "page_aligned_decode_alloc_lens(reqs, *, reserve, page_size)",
    ),
    *_names(
        "sglang.srt.model_executor.forward_batch_info",
        "step.verify, step.draft, host.admission",
        "CaptureHiddenMode.FULL",
        "CaptureHiddenMode.NULL",
        "CaptureHiddenMode.need_capture(self)",
        "ForwardBatch",
        "ForwardMode.TARGET_VERIFY",
    ),
    *_names(
        "sglang.srt.model_executor.model_runner",
        "step.draft, step.prewarm, step.widths, host.seams, cpu.shims",
        "SamplingPrewarmResult.sampling_headroom_bytes",
        "SamplingPrewarmResult.sampling_input_bytes",
        "ModelRunner.max_decode_logits_rows(self)",
        "ModelRunner.max_running_requests",
        "ModelRunner.prewarm_sampling(self)",
        "ModelRunner.sampling_prewarm_result",
        "ModelRunner.forward(self, forward_batch, skip_attn_backend_init, pp_proxy_tensors, "
        "reinit_attn_backend, split_forward_count)",
        "ModelRunner._extend_forward_kwargs(self, forward_batch, pp_proxy_tensors)",
        "ModelRunner._get_attention_backend(self, init_new_workspace)",
    ),
    *_names(
        "sglang.srt.layers.attention.triton_backend",
        "host.verify_attention, host.verify_metadata",
        "TritonAttnBackend.__init__(self, model_runner, skip_prefill, kv_indptr_buf, *, dllm_fa4)",
        "TritonAttnBackend.init_cuda_graph_state(self, max_bs, max_num_tokens, kv_indices_buf, "
        "cuda_graph_num_kv_splits_buf)",
        "TritonAttnBackend._init_forward_metadata_out_graph(self, forward_batch, in_capture)",
        "TritonAttnBackend._set_kv_buffer(self, forward_batch, layer, loc_info, k, v, k_scale, v_scale)",
        "TritonAttnBackend._target_verify_num_tokens_per_req(self, spec_info)",
        "TritonAttnBackend.cuda_graph_kv_indices",
        "TritonAttnBackend.dcp_size",
        "TritonAttnBackend.device",
        "TritonAttnBackend.device_core_count",
        "TritonAttnBackend.enable_deterministic",
        "TritonAttnBackend.forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache, sinks, score_mod, "
        "aux_tensors)",
        "TritonAttnBackend.forward_metadata",
        "TritonAttnBackend.init_forward_metadata_in_graph(self, forward_batch)",
        "TritonAttnBackend.kv_index_translator",
        "TritonAttnBackend.kv_indptr",
        "TritonAttnBackend.mask_indptr",
        "TritonAttnBackend.qo_indptr",
        "TritonAttnBackend.sliding_window_size",
        "TritonAttnBackend.token_to_kv_pool",
        "TritonAttnBackend.use_sliding_window_kv_pool",
        "TritonAttnBackend.use_mla",
        "TritonAttnBackend.v_head_dim",
    ),
    *_names(
        "sglang.srt.layers.attention.base_attn_backend",
        "host.verify_metadata",
        "AttentionBackend.dllm_attention",
    ),
    *_names(
        "sglang.srt.mem_cache.kv_index_translator",
        "host.verify_metadata",
        "KVIndexTranslator._reads_translated(self, kind)",
        "KVIndexTranslator.pack_read_stream(self, plan, *, req_pool_indices, seq_lens, indptr, out, kv_start_idx, "
        "kind, token_mapping, num_token_blocks, kv_lens_sum)",
    ),
    *_names(
        "sglang.srt.mem_cache.kv_loc_plan",
        "host.verify_metadata",
        "IdSpaceKind.FULL",
    ),
    *_names(
        "sglang.srt.layers.radix_attention",
        "host.verify_attention",
        "AttentionType.ENCODER_ONLY",
        "RadixAttention.attn_type",
        "RadixAttention.is_cross_attention",
        "RadixAttention.k_scale",
        "RadixAttention.layer_id",
        "RadixAttention.logit_cap",
        "RadixAttention.qk_head_dim",
        "RadixAttention.scaling",
        "RadixAttention.sliding_window_size",
        "RadixAttention.tp_q_head_num",
        "RadixAttention.xai_temperature_len",
    ),
    *_names(
        "sglang.srt.mem_cache.memory_pool",
        "host.verify_attention",
        "KVWriteLoc.for_batch(cls, forward_batch, *, swa_loc, full_loc)",
    ),
    *_names(
        "sglang.srt.model_executor.model_runner_components.cuda_graph_setup",
        "host.seams",
        "capture_decode_graph(*, model_runner)",
    ),
    *_names(
        "sglang.srt.model_executor.runner.decode_cuda_graph_runner",
        "host.seams, step.widths",
        "DecodeCudaGraphRunner.get_spec_info(self, num_tokens)",
        "DecodeCudaGraphRunner.__init__(self, model_runner, *, attn_backend, speculative_num_steps, "
        "speculative_num_draft_tokens, record_nolora_graph)",
        "DecodeCudaGraphRunner._make_graph_key(self, size, stream_idx, variant_label, attention_variant)",
    ),
    *_names(
        "sglang.srt.managers.scheduler_components.internal_state",
        "host.seams",
        "SchedulerInternalStateController._add_speculative(self, state)",
    ),
    *_names(
        "sglang.srt.model_executor.runner_backend.full_cuda_graph_backend",
        "step.widths",
        "FullCudaGraphBackend.replay(self, shape_key, static_forward_batch, **kwargs)",
        "FullCudaGraphBackend.replay_session(self)",
    ),
    *_names(
        "sglang.srt.model_executor.runner.base_cuda_graph_runner",
        "step.widths",
        "get_batch_sizes_to_capture(model_runner, captured_req_width, *, gathered_buffer_required)",
    ),
    *_names(
        "sglang.srt.model_executor.cuda_graph_config",
        "host.budget, step.widths",
        "CudaGraphConfig.decode",
        "PhaseConfig.bs",
        "PhaseConfig.backend",
    ),
    *_names(
        "sglang.srt.speculative.spec_info",
        "host.seams, step.draft, host.guard, step.algorithm",
        "SpecInput",
        "SpeculativeAlgorithm.DFLASH",
        "SpeculativeAlgorithm.from_string(cls, name)",
        "SpeculativeAlgorithm.register(cls, name, *, supports_overlap, validate_server_args, spec_class)",
        "create_dummy_verify_input(spec_algorithm, custom_mask, num_tokens_per_req, is_draft_worker)",
    ),
    *_names(
        "sglang.srt.speculative.spec_registry",
        "step.algorithm",
        "CustomSpecAlgo.__init__(self, name, factory, *, supports_overlap, validate_server_args)",
        "CustomSpecAlgo.create_worker(self, server_args)",
        "CustomSpecAlgo.handle_server_args(self, server_args)",
        "CustomSpecAlgo.get_num_tokens_per_req_for_target_verify(self, num_draft_tokens, is_draft_worker)",
        "CustomSpecAlgo.resolve_max_speculative_num_draft_tokens(self, server_args)",
    ),
    *_names(
        "sglang.srt.speculative.spec_utils",
        "step.worker, step.recurrent, host.seams",
        "commit_mamba_states_after_verify(target_worker, batch, accept_lens, accept_index, draft_token_num, "
        "prepared_step_indices)",
        "draft_tp_context(layout)",
        "spec_need_hidden_states()",
    ),
    *_names(
        "sglang.srt.managers.overlap_utils",
        "step.algorithm",
        "FutureMap.__init__(self, device, spec_algo, req_to_token_pool, needs_cpu_seq_lens, "
        "needs_confidence_relay)",
    ),
    *_names(
        "sglang.srt.speculative.dflash_worker_v2",
        "step.worker, step.draft",
        "DFlashWorkerV2.__init__(self, server_args, gpu_id, nccl_port, target_worker)",
        "DFlashWorkerV2.forward_batch_generation(self, batch, on_publish, grammar_barrier, pp_proxy_tensors)",
        "DFlashWorkerV2.alloc_memory_pool(self, memory_pool_config, req_to_token_pool, "
        "token_to_kv_pool_allocator)",
        "DFlashWorkerV2.init_attention_backends(self)",
        "DFlashWorkerV2.init_cuda_graphs(self)",
        "DFlashWorkerV2._append_target_hidden_to_draft_kv_by_loc(self, *, target_hidden, cache_loc, "
        "positions, cache_loc_2d, commit_lens, extend_lens)",
        "DFlashWorkerV2._maybe_build_draft_sampler(self)",
        "DFlashWorkerV2.prewarm_sampling(self)",
        "DFlashWorkerV2._mask_token_id",
        "DFlashWorkerV2._draft_block_spec_info",
        "DFlashWorkerV2._noise_embed_scale",
        "DFlashWorkerV2.draft_model_runner",
        "DFlashWorkerV2.draft_parallel_layout",
        "DFlashWorkerV2.model_runner",
        "DFlashWorkerV2.target_worker(self)",
    ),
    *_names(
        "sglang.srt.speculative.dflash_info",
        "step.worker",
        "DFlashVerifyInput",
    ),
    *_names(
        "sglang.srt.speculative.dflash_info_v2",
        "step.worker, step.window",
        "DFlashDraftInputV2.bonus_tokens",
        "DFlashDraftInputV2.nxt_kv_lens_cpu",
        "DFlashDraftInputV2.nxt_kv_lens_sum",
    ),
    *_names(
        "sglang.srt.speculative.draft_worker_common",
        "step.worker",
        "make_draft_input_v2(*, bonus_tokens, new_seq_lens)",
    ),
    *_names(
        "sglang.srt.speculative.eagle_info",
        "step.verify_input, step.verify",
        "EagleVerifyInput",
        "EagleVerifyInput.tree_topk(self)",
        "EagleVerifyInput.prepared_out_cache_loc",
    ),
    *_names(
        "sglang.srt.speculative.eagle_utils",
        "step.verify",
        "eagle_prepare_for_verify(verify_input, req_to_token_pool, batch, target_worker)",
    ),
    *_names(
        "sglang.srt.lora.layers",
        "step.draft",
        "unwrap_lora_layer(module)",
    ),
    *_names(
        "sglang.srt.managers.utils",
        "step.worker",
        "GenerationBatchResult",
    ),
    *_names(
        "sglang.srt.managers.tp_worker",
        "step.verify",
        "TpModelWorker.forward_batch_generation(self, batch, forward_batch, pp_proxy_tensors, "
        "is_verify, skip_attn_backend_init, *, capture_hidden_mode, return_kv_loc_plan)",
    ),
    *_names(
        "sglang.srt.mem_cache.memory_pool",
        "step.commit, step.recurrent, cpu.attention, cpu.kv_pool",
        "HybridReqToTokenPool.mamba2_layer_cache(self, layer_id)",
        "MHATokenToKVPool.move_kv_cache(self, tgt_loc, src_loc)",
        "KVWriteLoc",
        "MHATokenToKVPool.use_native_move_kv_cache",
    ),
    *_names(
        "sglang.srt.sampling.sampling_batch_info",
        "step.accept",
        "SamplingBatchInfo.is_all_greedy",
        "SamplingBatchInfo.temperatures",
        "SamplingBatchInfo.top_ks",
        "SamplingBatchInfo.top_ps",
        "SamplingBatchInfo.min_ps",
        "SamplingBatchInfo.need_top_k_sampling",
        "SamplingBatchInfo.need_top_p_sampling",
        "SamplingBatchInfo.need_min_p_sampling",
        "SamplingBatchInfo.max_top_k",
        "SamplingBatchInfo.sampling_seed",
    ),
    *_names(
        "sglang.srt.arg_groups.choices",
        "cpu.shims",
        "ATTENTION_BACKEND_CHOICES",
        "DRAFT_ATTENTION_BACKEND_CHOICES",
        "add_attention_backend_choices",
        "add_draft_attention_backend_choices",
    ),
    *_names(
        "sglang.srt.layers.attention.attention_registry",
        "cpu.attention, host.recurrent_seams",
        "attn_backend_wrapper(runner, full_attn_backend)",
        "register_attention_backend(name)",
    ),
    *_names(
        "sglang.srt.layers.attention.base_attn_backend",
        "cpu.attention",
        "AttentionBackend",
    ),
    *_names(
        "sglang.srt.layers.radix_attention",
        "cpu.attention",
        "AttentionType",
        "RadixAttention",
    ),
    *_names(
        "sglang.srt.mem_cache.allocation",
        "cpu.shims",
        "get_last_loc(req_to_token, req_pool_indices_tensor, prefix_lens_tensor)",
        "get_last_loc_torch(req_to_token, req_pool_indices_tensor, prefix_lens_tensor)",
    ),
    *_names(
        "sglang.srt.platforms.cpu",
        "cpu.device",
        "CpuDeviceMixin",
    ),
    *_names(
        "sglang.srt.platforms.device_mixin",
        "cpu.device",
        "PlatformEnum.OOT",
    ),
)

# Fields of ServerArgs that are read or set, besides those of the refusal table.
SERVER_ARGS_FIELDS = (
    "attention_backend",
    "cuda_graph_config",
    "decode_attention_backend",
    "device",
    "disable_radix_cache",
    "load_format",
    "linear_attn_decode_backend",
    "linear_attn_verify_backend",
    "mamba_radix_cache_strategy",
    "mamba_ssm_dtype",
    "mamba_track_interval",
    "max_running_requests",
    "model_path",
    "prefill_attention_backend",
    "revision",
    "speculative_algorithm",
    "speculative_dflash_block_size",
    "speculative_draft_attention_backend",
    "speculative_draft_load_format",
    "speculative_draft_model_path",
    "speculative_draft_model_revision",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "speculative_num_steps",
)

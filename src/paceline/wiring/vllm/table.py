"""The table of vLLM's settings that paceline does not have, or has under another name."""

import json
from dataclasses import dataclass, replace
from typing import Any

from paceline.wiring.vllm.values import (
    Reader,
    attention,
    attention_config,
    from_config,
    kv_bytes,
    pooler,
    several,
)

NOTHING: tuple[object, ...] = (
    None,
    False,
    "",
    dict[str, Any](),
    list[Any](),
    (),
    set[Any](),
)  # ask for nothing, anywhere


@dataclass(frozen=True, slots=True)
class Theirs:
    """A setting of vLLM: its default, which passes like `NOTHING`, and what another value is here.

    default  vLLM's
    passes   other values that ask for nothing
    reason   why another value is refused, or has no effect, and what to do instead
    ignored  other values pass, with a warning
    read     the settings that another value becomes
    """

    default: Any = None
    passes: tuple[Any, ...] = ()
    reason: str = ""
    ignored: bool = False
    read: Reader | None = None

    def asks_for_nothing(self, value: Any) -> bool:
        empty = (None,) if self.default is True else NOTHING
        return any(
            type(value) is type(one) and value == one
            for one in (self.default, *self.passes, *empty)
        )


def refused(reason: str, names: str) -> dict[str, Theirs]:
    """Settings that need what paceline lacks: names, or NAME=DEFAULT where vLLM asks for something
    by default."""
    pairs = [one.partition("=") for one in names.split()]
    return {name: Theirs(plain(default), reason=reason) for name, _, default in pairs}


def ignored(reason: str, names: str) -> dict[str, Theirs]:
    """Settings without an effect here."""
    return {name: replace(one, ignored=True) for name, one in refused(reason, names).items()}


def plain(text: str) -> Any:
    """A value as it is written in JSON, or else the text; None for an empty one."""
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text


def renamed(**names: str) -> dict[str, Theirs]:
    """Settings that have another name here, and the same values."""

    def reader(name: str) -> Reader:
        return lambda value: {name: value}

    return {
        theirs: Theirs(reason=f"see {ours}", read=reader(ours)) for theirs, ours in names.items()
    }


SPEAKS_HTTP = "it is for a server; see paceline serve"
BY_DEVICE = "kernels and graphs are chosen by device; see enforce_eager and attention"
READ_AS_NEEDED = "weights are mapped and read as they are needed"
COUNTED = "metrics are always counted; get_metrics() and /metrics return them"
ONE_FORMAT = "the format of weights is read from the files; on a CPU, weights='int8' quantizes"
ONE_MACHINE = "an engine runs on one machine; see tensor_parallel_size and data_parallel_size"
NO_STATES = "no state-space model is supported"
NO_OFFLOAD = "weights stay on the device; a smaller or a quantized model needs less memory"
WHOLE_MODEL = "the files of a model are taken as they are; change its config.json in a copy"
ONE_FOLDER = "the tokenizer comes from the folder or repository of the weights"

VLLM: dict[str, Theirs] = {
    # -- renamed ------------------------------------------------------------
    **renamed(
        scheduling_policy="policy",
        max_num_queued_tokens="max_queued_tokens",
        spec_model="speculative_model",
        spec_method="proposer",
        spec_tokens="num_speculative_tokens",
        guided_decoding_backend="structured_outputs_backend",
        otlp_traces_endpoint="otlp_endpoint",
    ),
    "api_key": Theirs(reason=SPEAKS_HTTP, read=several("api_keys")),
    "served_model_name": Theirs(
        reason="only a server names the model in its answers", ignored=True, read=several("aliases")
    ),
    "scheduler_reserve_full_isl": Theirs(
        True, reason="see reserve_full_prompt", read=lambda value: {"reserve_full_prompt": value}
    ),
    "kv_cache_memory_bytes": Theirs(reason="see kv_cache_gib", read=kv_bytes),
    "kv_cache_memory": Theirs(reason="see kv_cache_gib", read=kv_bytes),
    "structured_outputs_config": Theirs(
        reason="see structured_outputs_backend",
        read=from_config("structured_outputs_config", {"backend": "structured_outputs_backend"}),
    ),
    "pooler_config": Theirs(reason="see pooling", read=pooler),
    "override_pooler_config": Theirs(reason="see pooling", read=pooler),
    "attention_backend": Theirs(reason="see attention", read=attention),
    "attention_config": Theirs(reason="see attention", read=attention_config),
    # -- what vLLM's users may leave as it is -------------------------------
    "runner": Theirs("auto", ("generate", "pooling"), "a model generates and embeds as it can"),
    "task": Theirs(
        "auto", ("generate", "embed", "embedding", "score", "classify", "reward"), "see runner"
    ),
    "convert": Theirs(
        "auto", ("none", "embed", "classify"), "the files of a model say what it makes"
    ),
    "tokenizer_mode": Theirs("auto", ("hf", "fast"), "tokenizers are read from tokenizer.json"),
    "model_impl": Theirs("auto", ("vllm", "paceline"), "every model runs on code of paceline"),
    "distributed_executor_backend": Theirs(None, ("mp", "uni"), "ranks are processes; see mp"),
    "worker_cls": Theirs("auto", reason="no worker of vLLM is run"),
    "logprobs_mode": Theirs(
        "raw_logprobs", reason="log-probabilities are those of the model, before any processing"
    ),
    "prefix_caching_hash_algo": Theirs(
        "sha256", ("builtin", "sha256_cbor", "xxhash", "xxhash_cbor"), "keys of blocks are BLAKE2"
    ),
    "hf_token": Theirs(None, (True,), "set HF_TOKEN in the environment"),
    # -- without effect -----------------------------------------------------
    **ignored("no code of a model is run", "trust_remote_code=false code_revision"),
    **ignored(
        COUNTED,
        """
        disable_log_stats=false aggregate_engine_logging=false kv_cache_metrics=false
        show_hidden_metrics_for_version collect_detailed_traces cudagraph_metrics=false
        custom_histogram_buckets enable_layerwise_nvtx_tracing=false enable_mfu_metrics=false
        enable_logging_iteration_details=false enable_mm_processor_stats=false
        enable_trace_replay=false disable_log_requests=false enable_log_requests=false
        max_log_len profiler_config enable_log_outputs=false logging_config log_level
        log_config_file enable_server_load_tracking=false log_error_stack=false
        uvicorn_log_level disable_uvicorn_access_log=false disable_access_log_for_endpoints
        kv_cache_metrics_sample=0.01 jit_monitor_mode=warn jit_monitor_verbose=false
        enable_log_deltas=true per_request_spec_decode_metrics=none
        """,
    ),
    **ignored(
        BY_DEVICE,
        """
        compilation_config cudagraph_capture_sizes max_cudagraph_capture_size optimization_level
        kernel_config ir_op_priority enable_flashinfer_autotune
        monokernel=false disable_cascade_attn use_fp64_gumbel=false mamba_config
        disable_custom_all_reduce=false gdn_prefill_backend kda_prefill_backend
        kda_decode_backend max_seq_len_to_capture use_v2_block_manager=false nccl_config
        disable_async_output_proc=false enable_shm_tensor_arena=false disable_nccl_for_dp=false
        disable_nccl_for_dp_synchronization ray_workers_use_nsight=false
        disable_hybrid_kv_cache_manager enable_batch_sharded_sampling
        enable_cumem_allocator=false enable_nccl_comm_suspend=false
        enable_flash_late_interaction=true moe_backend=auto linear_backend=auto
        sparse_indexer_topk_backend=auto all2all_backend=allgather_reducescatter
        performance_mode=balanced swa_bounded_replay=true
        """,
    ),
    **ignored(
        "the scheduler has settings of its own for that; see docs/settings.md",
        """
        prefill_schedule_interval=1 long_prefill_token_threshold_adaptive=false
        num_scheduler_steps=1 num_lookahead_slots kv_sharing_fast_prefill=false
        """,
    ),
    **ignored(
        "tokens are sent as they are generated, several together under load", "stream_interval=1"
    ),
    **ignored(
        "processes keep to the cores that they are given, and wait for each other without a limit",
        """
        numa_bind=false numa_bind_nodes numa_bind_cpus
        distributed_timeout_seconds cpu_distributed_timeout_seconds
        """,
    ),
    **ignored("it is for platforms of vLLM", "additional_config"),
    **ignored(
        READ_AS_NEEDED,
        """
        safetensors_load_strategy max_parallel_loading_workers ignore_patterns
        safetensors_prefetch_num_threads safetensors_prefetch_block_size use_tqdm_on_load=true
        pt_load_map_location=cpu
        """,
    ),
    **ignored(
        "graphs stay on the GPU while a model sleeps; see enable_sleep_mode",
        """
        sleep_mode_offload_cudagraph=false sleep_preserve_parameter_names sleep_mode_backend=cumem
        """,
    ),
    **ignored(
        "images are read as they come",
        """
        skip_mm_profiling=false mm_encoder_attn_backend mm_encoder_attn_dtype mm_processor_fps
        disable_mm_preprocessor_cache=false
        mm_processor_cache_gb=4 mm_processor_cache_type=lru mm_hasher_algorithm=blake3
        mm_shm_cache_max_object_size_mb=128 mm_encoder_tp_mode=weights mm_tensor_ipc=direct_rpc
        mm_processor_device=auto mm_ipc_gpu_memory_gb=0 mm_device_do_normalize=true
        renderer_num_workers=1
        """,
    ),
    **ignored(
        "adapters have the type of the model, and every shape that its layers allow",
        """
        specialize_active_lora=false fully_sharded_loras=false lora_extra_vocab_size
        enable_mixed_moe_lora_format=false enable_moe_shared_loras=false lora_dtype=auto
        """,
    ),
    **ignored(
        "engines find ports by themselves",
        """
        data_parallel_address data_parallel_rpc_port data_parallel_backend=mp
        master_addr=127.0.0.1 master_port=29501 dp_sync_interval=16
        """,
    ),
    **ignored(
        "the server has limits, pages and processes of its own; see paceline serve --help",
        """
        h11_max_incomplete_event_size h11_max_header_count
        disable_frontend_multiprocessing=false fail_on_environ_validation=false
        enable_offline_docs=false disable_fastapi_docs=false shutdown_timeout=0
        """,
    ),
    **ignored("the usage always has them", "enable_prompt_tokens_details=false"),
    # -- refused ------------------------------------------------------------
    **refused(
        SPEAKS_HTTP,
        """
        reasoning_parser tool_call_parser enable_auto_tool_choice=false host port uds
        allowed_media_domains api_server_count root_path allowed_origins
        """,
    ),
    **refused(
        "every rank has a part of every layer; see tensor_parallel_size",
        "pipeline_parallel_size=1",
    ),
    **refused(
        "an engine has one KV cache for all its ranks",
        """
        dcp_comm_backend dcp_q_replicate cp_kv_cache_interleave_size
        prefill_context_parallel_size=1 decode_context_parallel_size=1
        dcp_kv_cache_interleave_size=1
        """,
    ),
    **refused(
        "only a server has several engines; see paceline serve",
        """
        data_parallel_rank data_parallel_start_rank data_parallel_size_local
        data_parallel_hybrid_lb=false data_parallel_external_lb=false headless=false
        data_parallel_multi_port_external_lb=false data_parallel_size=1
        """,
    ),
    **refused(ONE_MACHINE, "device_ids nnodes=1 node_rank=0"),
    **refused(
        "experts are divided among ranks with every layer; see tensor_parallel_size",
        """
        enable_expert_parallel=false enable_eplb=false eplb_config enable_elastic_ep=false
        enable_dbo=false enable_ep_weight_filter=false enable_hc_sp=false
        enable_return_routed_experts=false elastic_ep_max_dp_size ubatch_size=0
        dbo_decode_token_threshold=32 dbo_prefill_token_threshold=512
        expert_placement_strategy=linear
        """,
    ),
    **refused(ONE_FORMAT, "quantization_config allow_deprecated_quantization=false"),
    **refused(
        NO_OFFLOAD,
        """
        cpu_offload_params offload_params cpu_offload_gb=0 offload_group_size=0
        offload_backend=auto offload_num_in_group=1 offload_prefetch_step=1
        """,
    ),
    **refused("see kv_connector='host'", "kv_offloading_size kv_offloading_backend=native"),
    **refused(
        WHOLE_MODEL,
        """
        hf_overrides hf_config_path model_class_overrides rope_scaling rope_theta
        model_loader_extra_config disable_sliding_window=false override_neuron_config
        config_format=auto
        """,
    ),
    **refused(ONE_FOLDER, "tokenizer tokenizer_revision model_weights"),
    **refused(
        "texts come from the tokenizer of the model", "skip_tokenizer_init=false tokens_only=false"
    ),
    **refused("set HF_HOME or PACELINE_CACHE", "download_dir"),
    **refused(
        "give SamplingParams; generation_config='none' drops those of the model",
        "override_generation_config",
    ),
    **refused("give them in the SamplingParams of a request", "logits_processors"),
    **refused("see policy and discipline, which take dotted paths", "scheduler_cls"),
    **refused("see max_num_batched_tokens", "max_num_scheduled_tokens"),
    **refused("see max_num_seqs", "max_num_active_seqs"),
    **refused(
        "prompts are texts, token ids and images",
        """
        enable_prompt_embeds=false enable_mm_embeds=false io_processor_plugin
        mm_encoder_only=false diffusion_config engram_config
        """,
    ),
    **refused(
        "images are given in the request, or fetched; see allowed_media_domains",
        """
        allowed_local_media_path media_io_kwargs mm_processor_kwargs interleave_mm_strings=false
        language_model_only=false video_pruning_rate mm_encoder_fp8_scale_path
        mm_encoder_fp8_scale_save_path video_pruning_method=evs
        mm_encoder_fp8_scale_save_margin=1.5
        """,
    ),
    **refused(
        "adapters change the language model alone, by the names in their files",
        """
        default_mm_loras lora_target_modules enable_tower_connector_lora=false
        max_lora_cls_labels
        """,
    ),
    **refused(
        NO_STATES,
        """
        mamba_block_size mamba_ssu_algorithm mamba_cache_mode
        enable_mamba_shared_prefix_checkpoint=false use_replayssm=false mamba_backend
        enable_mamba_cache_stochastic_rounding=false mamba_cache_philox_rounds=0
        mamba_cache_dtype=auto mamba_ssm_cache_dtype=auto replayssm_buffer_len=16
        """,
    ),
    **refused(
        "put a proxy with TLS in front",
        """
        ssl_keyfile ssl_certfile ssl_ca_certs ssl_ciphers ssl_cert_reqs=0
        enable_ssl_refresh=false
        """,
    ),
    **refused(
        "it has no counterpart here",
        """
        kv_cache_dtype_skip_layers prefix_match_unit ec_transfer_config ec_manager_config
        weight_transfer_config watermark_config worker_extension_cls
        enable_fault_tolerance=false fault_tolerance_config watchdog_config aux_output_config
        return_sampling_mask=false calculate_kv_scales=false reasoning_parser_plugin
        reasoning_config tool_parser_plugin tool_server middleware grpc_port
        enable_tokenizer_info_endpoint=false enable_scale_out=false default_chat_template_kwargs
        reasoning_effort_map trust_request_mm_kwargs=false tool_strict_level fingerprint_value
        prefix_cache_retention_interval=0 chat_template_content_format=auto
        sse_keep_alive_interval=0
        """,
    ),
}

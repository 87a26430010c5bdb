"""The help text of each metric; names are without prefix and `_total`."""

METRIC_HELP = {
    # gauges
    "num_requests_running": "Requests with a slot, which the next step may compute.",
    "num_requests_waiting": "Requests without a slot: in the queue, swapped or parked.",
    "num_requests_swapped": "Waiting requests whose KV is on the host.",
    "num_requests_waiting_by_reason": "Waiting requests: for capacity, or deferred until an event.",
    "kv_cache_usage_perc": "Share of the KV blocks that requests hold, 0 to 1.",
    "gpu_cache_usage_perc": "The old name of kv_cache_usage_perc.",
    "lora_requests_info": "Adapters of running and of waiting requests, as labels; its value is a "
    "time in seconds.",
    "cache_config_info": "Settings of the KV cache, as labels.",
    # counters
    "prompt_tokens": "Prompt tokens of requests that have their first token.",
    "prompt_tokens_cached": "Prompt tokens that came from the prefix cache, of finished requests "
    "that had a token.",
    "prompt_tokens_by_source": "Prompt tokens of finished requests that had a token, computed or "
    "from the cache.",
    "generation_tokens": "Tokens generated.",
    "request_success": "Finished choices, by finish reason.",
    "num_preemptions": "Preemptions of requests.",
    "prefix_cache_queries": "Tokens looked up in the prefix cache.",
    "prefix_cache_hits": "Tokens found in the prefix cache.",
    "external_prefix_cache_queries": "Tokens looked up on the host or by a connector.",
    "external_prefix_cache_hits": "Tokens found on the host or by a connector.",
    "mm_cache_queries": "Images that prompts reached and that were looked up in the encoder cache.",
    "mm_cache_hits": "Images found in the encoder cache.",
    "gpu_prefix_cache_queries": "The old name of prefix_cache_queries.",
    "gpu_prefix_cache_hits": "The old name of prefix_cache_hits.",
    "spec_decode_num_drafts": "Rows that verified drafts.",
    "spec_decode_num_draft_tokens": "Draft tokens verified.",
    "spec_decode_num_accepted_tokens": "Accepted draft tokens.",
    "spec_decode_num_accepted_tokens_per_pos": "Accepted draft tokens, by position.",
    # histograms, observed once per request unless the text says otherwise
    "time_to_first_token_seconds": "From arrival to the first token.",
    "inter_token_latency_seconds": "Between two deliveries of tokens of a choice.",
    "request_time_per_output_token_seconds": "Time after the first token, per further token.",
    "e2e_request_latency_seconds": "From arrival to the end.",
    "request_queue_time_seconds": "From arrival to the first slot, or to the end without one.",
    "request_inference_time_seconds": "From the first slot to the end.",
    "request_prefill_time_seconds": "From the first slot to the first token.",
    "request_decode_time_seconds": "From the first token to the end.",
    "request_prompt_tokens": "Tokens of the prompt.",
    "request_generation_tokens": "Tokens generated for all choices together.",
    "request_max_num_generation_tokens": "Tokens of the longest choice.",
    "request_params_max_tokens": "max_tokens of the request, if it is set.",
    "request_params_n": "n of the request.",
    "request_prefill_kv_computed_tokens": "Prompt tokens that were not in the cache.",
    "iteration_tokens_total": "Tokens of a step that generated some: those, and the prompts of "
    "requests that have their first token with it.",
    # of paceline
    "engine_healthy": "1, or 0 while /health answers 503.",
    "drafting_paused": "1 while speculation does not draft because it would cost time, else 0.",
    "num_requests_waiting_for_grammar": "Requests that wait until their grammar is compiled.",
    "grammars_compiled": "Grammars compiled.",
    "grammars_refused": "Constraints that were malformed, not supported or too costly.",
    "grammar_cache_hits": "Constraints whose grammar, or refusal, was in the cache.",
    "grammar_compile_seconds": "Seconds that compiling took, of all constraints together.",
    "engine_crashes": "Times that the step loop died.",
    "failed_rows": "Requests that failed alone, without the others of their step.",
    "step_tokens": "Tokens computed in a step, of prompts and drafts too.",
    # of HTTP
    "http_requests": "Requests by route, method and status; 499: the client left before a status.",
    "http_request_duration_seconds": "From the head of a request to the end of its response.",
}

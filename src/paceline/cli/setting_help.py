"""What each setting means: one sentence, its unit, and the defaults that depend on the machine."""

TITLES = {
    "server": "Server",
    "loop": "Engine loop",
    "core": "Engine process",
    "load": "Model and device",
    "adapters": "Adapters",
    "cache": "KV cache",
    "step": "Step",
    "queue": "Queue",
    "policy": "Policy",
    "preemption": "Preemption",
    "speculation": "Speculative decoding",
    "journal": "Journal",
    "encoder": "Images",
    "loading": "Connectors",
    "record": "Recording",
}

# Flags with another name than their setting: one value each, or the name that vLLM has.
NAMES = {
    "api_keys": "api_key",
    "allowed_origins": "allowed_origin",
    "aliases": "served_model_name",
    "tenant_weights": "tenant_weight",
}
SHORT = {"tensor_parallel_size": "-tp"}  # as in vLLM
METAVARS = {
    "tenant_weights": "NAME=WEIGHT",
    "record": "FILE",
    "trace": "FILE",
    "lora_modules": "NAME=PATH",
    "record_max_bytes": "BYTES",
    "tool_call_parser": "NAME",
    "reasoning_parser": "NAME",
    "speculative_config": "JSON",
    "kv_events_config": "JSON",
    "limit_mm_per_prompt": "JSON",
    "kv_transfer_config": "JSON",
}
ENVIRONMENT = {"api_keys": "PACELINE_API_KEY"}

# Defaults of an engine that depend on the device, the model or the command.
OF_ENGINES = {
    "max_num_seqs": "72; on a GPU 256",
    "slots_for_others": "8; on a GPU 32",
    "max_num_batched_tokens": "512; on a GPU 8192",
    "max_step_s": "0.25 on a CPU; 0.0 on a GPU, for batches, or if max_num_batched_tokens is given",
    "watermark": "0.0; on a GPU 0.01",
    "fill_positions": "0; on a GPU 256 for weights of 3 GiB or more",
    "policy": "fcfs; for batches longest",
    "ageing_s": "60.0; for batches 3600.0",
    "max_model_len": "the model's own",
    "max_loras": "0; with enable_lora 1",
}

# Defaults of a server that depend on the machine.
OF_SERVERS = {
    "api_server_count": "one for every four cores, 1 to 8; with --core thread 1",
    "dashboard": "yes on localhost and Unix sockets, otherwise no",
}

# Units of the settings whose names do not end in one.
UNITS = {
    "body_values": "values",
    "max_prompts": "prompts",
    "tensor_parallel_size": "processes",
    "max_connections": "connections",
    "api_server_count": "processes",
    "inbox_requests": "requests",
    "max_queued_tokens": "tokens",
    "core_restarts": "restarts",
    "data_parallel_size": "engines",
    "gpu_memory_utilization": "fraction",
    "kv_cache_gib": "GiB",
    "swap_space": "GiB",
    "num_gpu_blocks_override": "blocks",
    "depth": "steps",
    "seed": "seed",
    "threads": "threads",
    "max_logprobs": "tokens",
    "max_stored_responses": "responses",
    "batch_concurrency": "requests",
    "max_image_pixels": "pixels",
    "block_size": "tokens",
    "max_num_seqs": "sequences",
    "slots_for_others": "sequences",
    "max_num_batched_tokens": "tokens",
    "max_model_len": "tokens",
    "long_prefill_token_threshold": "tokens",
    "watermark": "fraction",
    "max_wait": "seconds",
    "max_loras": "adapters",
    "max_cpu_loras": "adapters",
    "max_lora_rank": "rank",
    "max_num_queued_reqs": "requests",
    "fill_positions": "tokens",
    "prefill_tokens_per_s": "tokens/s",
    "tenant_weights": "weight",
    "input_token_weight": "weight",
    "output_token_weight": "weight",
    "num_speculative_tokens": "tokens",
    "prompt_lookup_min": "tokens",
    "prompt_lookup_max": "tokens",
    "suffix_decoding_max_tree_depth": "tokens",
    "suffix_decoding_max_cached_requests": "requests",
    "suffix_decoding_max_spec_factor": "tokens",
    "suffix_decoding_min_token_prob": "fraction",
    "speculation_max_batch_tokens": "tokens",
    "journal_requests": "requests",
    "journal_spells": "intervals",
    "record_files": "files",
    "max_num_encoder_input_tokens": "embeddings",
    "encoder_cache_size": "embeddings",
}
SUFFIXES = {"_s": "seconds", "_bytes": "bytes"}

SENTENCES = {
    # server
    "api_keys": "Require this API key, except on probes and metrics; may be repeated. "
    "PACELINE_API_KEY sets it too, or several, separated by spaces.",
    "allowed_origins": "Origin of a web page that may call the server, or * for all; may be "
    "repeated.",
    "aliases": "Another name of the model; may be repeated. The first one is in answers, "
    "lists and metrics.",
    "body_bytes": "Maximum size of a request body.",
    "allowed_media_domains": "Host that images are fetched from, or * for every public one; may be "
    "repeated. Without it, images must be sent as data URLs.",
    "media_bytes": "Maximum size of an image that is fetched.",
    "media_s": "Maximum time to fetch an image.",
    "body_values": "Maximum number of values in the JSON of a body: numbers, texts, lists, "
    "objects.",
    "max_prompts": "Maximum number of prompts of a completion.",
    "header_bytes": "Maximum size of the request headers, names and values together.",
    "max_connections": "Maximum number of open connections; beyond it, a new one replaces the one "
    "that has been without a request for longest.",
    "send_buffer_bytes": "What the kernel buffers of a response before the server notices that "
    "the client does not read.",
    "head_s": "Maximum time from the connection, or the first byte of a request, to the end of "
    "its headers.",
    "body_s": "Maximum time between two parts of a request body.",
    "idle_s": "Close a connection that has had no request for this time; longer than load "
    "balancers keep it, so that they close it first.",
    "unread_s": "Drop a client that reads nothing of its response for this time.",
    "drain_s": "Time that running requests get to finish when the server shuts down; 0: none.",
    "timeout_s": "Timeout of requests that set none; 0: no limit.",
    "timings": "Add timings to every response, not only to those of requests that ask for them.",
    "log_format": "Format of log lines: text, or json with one object per line.",
    "docs": "Serve a page that describes the API at /docs, without a key. Browsers load its "
    "scripts from a CDN.",
    "otlp_endpoint": "Send one OpenTelemetry span per request to this URL, for example "
    "http://localhost:4318/v1/traces.",
    "api_server_count": "Processes that handle HTTP, tokens and text, in front of the engine "
    "process.",
    "tool_call_parser": "Format of the model's tool calls: deepseek_v3, glm45, hermes, json, "
    "llama3_json, mistral, pythonic, qwen3_coder, or a dotted path to a class; auto: by the chat "
    "template; none: refuse tools.",
    "reasoning_parser": "Format of the model's reasoning: deepseek_r1, mistral, qwen3, or a dotted "
    "path to a class; auto: by the chat template; none: leave it in the text.",
    "trust_request_chat_template": "Let clients bring a chat template with a request. It is a "
    "program, which runs in a sandbox.",
    "enable_auto_tool_choice": "Let the model choose whether it calls a tool. Otherwise only "
    "requests that require a call may have tools.",
    "enable_request_id_headers": "Send X-Request-Id with every response, also with those of "
    "probes and lists.",
    "enable_force_include_usage": "Have the usage in every chunk of every stream, whatever its "
    "stream_options say.",
    "enable_per_request_metrics": "Return the times of a request in the field metrics of its "
    "response; of a stream, with the usage.",
    "return_tokens_as_token_ids": "Write the tokens of logprobs as token_id:ID, unless a request "
    "says otherwise.",
    "response_role": "Role of the new messages of chats, as responses name it.",
    "enable_responses_store": "Keep the responses of /v1/responses in memory, for "
    "previous_response_id and for clients that read them later.",
    "max_stored_responses": "Maximum number of stored responses and conversations; the oldest are "
    "forgotten first.",
    "stored_response_bytes": "Maximum size of all stored responses and conversations together.",
    "stored_response_s": "Time for which a response is stored.",
    "files_dir": "Folder of /v1/files and /v1/batches, which are refused without one; batches of "
    "an earlier run continue.",
    "file_bytes": "Largest file that is uploaded.",
    "files_bytes": "Maximum size of all files together.",
    "batch_concurrency": "Maximum number of open requests of a batch.",
    "dashboard": "Serve the live page at /dashboard: slots, blocks, the queue and step times.",
    "dashboard_show_prompts": "Let the live page show the beginning of prompts, not only lengths.",
    "root_path": "Path under which a proxy shows the server, such as /llm.",
    # engine loop
    "inbox_requests": "Maximum number of requests that wait for the next turn of the loop.",
    "on_failure": "What happens after a failed step: continue with other requests, or stop.",
    "stall_s": "/health fails after this time without a step while requests wait.",
    "max_queued_tokens": "Maximum number of prompt tokens in the waiting queue; more are refused "
    "with status 429; 0: no limit.",
    "queue_timeout_s": "Maximum time in the waiting queue; 0: no limit.",
    # engine process
    "core": "Run the engine loop in a process of its own, whose crash the server survives, or on "
    "a thread.",
    "on_core_crash": "Restart a crashed engine process, or exit the server with status 1.",
    "core_restarts": "The server exits after more than this many restarts within "
    "core_restart_span_s.",
    "core_restart_span_s": "Time within which restarts are counted.",
    "core_restart_wait_s": "Requests wait so long for an engine that is restarted; then they end.",
    "data_parallel_size": "Engines with a process, a copy of the model and KV each, on GPUs or CPU "
    "cores of their own. A request goes to the engine that knows most of its prompt, unless that "
    "one is busy.",
    # model and device
    "device": "Device of the model; auto: a GPU if there is one.",
    "load_format": "Format of the weights; auto: detect it; dummy: random weights, for a folder "
    "with a config.json or a shape such as qwen3-0.6b.",
    "chat_template": "Chat template: a file, its text, or chatml; empty: the model's own. A model "
    "without one refuses requests with messages.",
    "dtype": "Data type of the weights on a GPU; auto: bfloat16. A CPU computes in "
    "float32, whatever it says.",
    "kv_cache_dtype": "Data type of the KV cache on a GPU; auto: as the weights.",
    "gpu_memory_utilization": "Fraction of GPU memory for weights, activations and KV cache.",
    "kv_cache_gib": "Memory of the KV cache; 0: on a CPU a quarter of the free memory, at most 2 "
    "GiB, or more if two sequences of max_model_len need more; on a GPU what "
    "gpu_memory_utilization leaves.",
    "swap_space": "Host memory for preempted sequences and cached prefixes.",
    "num_gpu_blocks_override": "Number of KV cache blocks; 0: as many as the memory holds.",
    "tensor_parallel_size": "Number of processes that hold a part of every layer each: on GPUs one "
    "for each GPU. Heads, MLP columns and vocabulary of the model must be multiples of it.",
    "attention": "Attention backend: native, paged or sdpa; on a GPU triton or flashinfer; a "
    "dotted path to a class; auto: by device.",
    "quantization": "Format that the weights of a plain checkpoint are quantized to while they are "
    "loaded: a module of runner/formats, or a dotted path to a class; auto: as the files say.",
    "weights": "Precision of matrix products on a CPU: float32 or int8; auto: int8 if the file is "
    "quantized, otherwise float32.",
    "generation_config": "Sampling defaults of requests: auto, those that the model recommends in "
    "generation_config.json or in its GGUF file, or none, which vllm names too.",
    "seed": "Seed of the samples of requests that set none, together with their ids; 0: their ids "
    "alone. LLM numbers its requests, so a script repeats its samples.",
    "pooling": "Hidden states that embeddings are made of: last, mean or cls; auto: as the files "
    "of the model say, or else last.",
    "max_logprobs": "Maximum number of alternatives that logprobs and prompt_logprobs may request "
    "per token; -1: no limit.",
    "enforce_eager": "On a GPU, start without CUDA graphs and without a warm-up: kernels are "
    "compiled at their first use, and steps take longer.",
    "async_scheduling": "On a GPU, plan the next step while one runs.",
    "depth": "Steps in flight; 0: by device, 2 on a GPU and 1 on a CPU.",
    "threads": "CPU threads of a forward pass; 0: the default of torch.",
    "limit_mm_per_prompt": "Maximum number of images of a prompt. LLM also takes a dict.",
    "max_image_pixels": "Maximum size of an image, width by height, before it is resized.",
    "structured_outputs_backend": "Library that compiles grammars for structured output; guidance "
    "is llguidance; auto: xgrammar if it is installed, and llguidance for what xgrammar refuses.",
    "grammar_compile_limit_s": "Seconds of processor time that a grammar of a client may take to "
    "compile, with all libraries; a request with one that takes longer gets a 400.",
    "kv_events_config": "Publish stored and removed blocks for routers, with vLLM's names: "
    "enable_kv_cache_events, endpoint, replay_endpoint, buffer_steps, hwm, max_queue_size, topic "
    "and publisher; also encoding, array or map. LLM also takes a dict.",
    "role": "Part of requests that this engine does: prefill computes prompts and keeps their KV, "
    "decode reads it and generates; both needs no other engine.",
    "kv_connector": "Where KV is kept beyond the device: a module of kv/connectors, such as host "
    "or disk, or a dotted path to a class.",
    "kv_transfer_config": "Settings of a connector in vLLM's names: kv_connector, kv_role, "
    "kv_connector_extra_config and kv_load_failure_policy. LLM also takes a dict.",
    "speculative_config": "Settings of speculative decoding in vLLM's names: method, model, "
    "num_speculative_tokens, prompt_lookup_min, prompt_lookup_max and suffix_decoding_*. LLM also "
    "takes a dict.",
    # KV cache
    "block_size": "Tokens of one KV cache block; prefixes are shared in whole blocks.",
    "enable_prefix_caching": "Share the KV cache between requests with the same prefix.",
    "free_order": "Which free block is reused first: one without cached content, or the least "
    "recently used.",
    # step
    "max_num_seqs": "Maximum number of sequences that run at once.",
    "max_num_batched_tokens": "Maximum number of tokens computed in one step: more increases "
    "throughput, fewer shortens the time between tokens while prompts are computed.",
    "max_model_len": "Maximum length of a sequence, prompt and output together.",
    "enable_chunked_prefill": "Compute long prompts in chunks, together with decodes.",
    "long_prefill_token_threshold": "Maximum number of tokens of one prompt in a step; 0: no "
    "limit.",
    "slots_for_others": "Slots that the prompts of one body, or the sequences of one request, "
    "leave free for others; 0: none. If max_num_seqs is given, an eighth of it at most by default; "
    "for batches 0.",
    "max_step_s": "CPU: time that a step with prompts should take, by the speed that is measured "
    "at start. Prompts are cut to it and share it, so that a long one holds up no others; 0: no "
    "limit.",
    "reserve_full_prompt": "Admit a request only when there are free blocks for its whole prompt.",
    "watermark": "Fraction of blocks that admission leaves free for running sequences.",
    "discipline": "How a step is filled: unified, prefill_first, or a dotted path to a class.",
    "max_wait": "prefill_first: maximum time that new prompts may delay decodes.",
    "allow_runtime_lora_updating": "Let clients load adapters from any folder of this machine, and "
    "unload them: /v1/load_lora_adapter and /v1/unload_lora_adapter.",
    "enable_lora": "Serve LoRA adapters in PEFT's format.",
    "lora_modules": "Adapter to load at start, as NAME=PATH or as JSON with name and path; may be "
    "repeated.",
    "max_lora_rank": "Largest rank of an adapter.",
    "max_cpu_loras": "Maximum number of adapters in host memory; further ones are read again when "
    "they are needed; 0: max_loras.",
    "max_loras": "Maximum number of different adapters among running sequences; 0: no limit.",
    "max_num_queued_reqs": "Maximum length of the waiting queue; more requests are refused with "
    "status 429.",
    # policy
    "policy": "Which request is admitted first: fcfs, priority, shortest, longest, deadline, "
    "fair, or a dotted path to a class.",
    "victim": "Which sequence is preempted when memory runs out: the newest, or the cheapest to "
    "recompute.",
    "ageing_s": "priority, shortest, longest: a request that has waited this long goes first.",
    "fill_positions": "longest: prompts that can wait are computed in steps of up to this many "
    "tokens; 0: no prompt waits.",
    "preempt_on_arrival": "priority: a request of higher priority preempts a running one.",
    "refuse_late": "deadline: refuse a request that missed its first-token deadline in the queue.",
    "default_deadline_s": "deadline: time to the first token for requests that set none.",
    "prefill_tokens_per_s": "deadline: speed at which prompts are assumed to be computed.",
    "tenant_weights": "fair: weight of a tenant; 1 for tenants without one; may be repeated.",
    "input_token_weight": "fair: charge for a computed prompt token.",
    "output_token_weight": "fair: charge for a generated token.",
    # preemption
    "preemption_mode": "Recompute a preempted sequence, swap it to host memory, or auto: "
    "whichever costs less.",
    # speculative decoding
    "num_speculative_tokens": "Draft tokens per sequence and step for requests that set none.",
    "proposer": "What proposes draft tokens: ngram, which finds the latest tokens earlier in the "
    "sequence and proposes what followed them; suffix, which also looks in past outputs; "
    "draft_model or eagle3, which need a speculative_model; or a dotted path to a class.",
    "speculative_model": "draft_model, eagle3: the model that proposes draft tokens.",
    "prompt_lookup_min": "ngram: minimum number of latest tokens that must match.",
    "prompt_lookup_max": "ngram: maximum number of latest tokens to match; longer matches go "
    "first.",
    "suffix_decoding_max_tree_depth": "suffix: maximum number of latest tokens to match and of "
    "tokens that follow them, together.",
    "suffix_decoding_max_cached_requests": "suffix: outputs of finished requests that are kept, "
    "the oldest of which are dropped; 0: look in the request alone.",
    "suffix_decoding_max_spec_factor": "suffix: maximum number of draft tokens for each latest "
    "token that matches.",
    "suffix_decoding_min_token_prob": "suffix: minimum share of earlier occurrences that a draft "
    "token must follow.",
    "speculation": "How many draft tokens are used: adaptive, fixed, or a dotted path to a class.",
    "speculation_max_batch_tokens": "Most rows and drafts of a step with drafts; 0: what pays.",
    # journal
    "journal_requests": "Finished requests that `explain` remembers.",
    "journal_spells": "Intervals of blocked admission that `explain` remembers.",
    # encoder
    "max_num_encoder_input_tokens": "Embeddings of images that one step computes; 0: as "
    "max_num_batched_tokens, or those of the largest image if it has more.",
    "encoder_cache_size": "Embeddings of images that are kept; 0: as max_num_batched_tokens, or "
    "those of the largest image if it has more.",
    "disable_chunked_mm_input": "Compute all tokens of an image in one step.",
    # loading
    "kv_load_failure_policy": "Whether a request whose KV cannot be loaded computes it, or fails.",
    "kv_load_timeout_s": "Maximum time that a request waits for a connector before it computes.",
    # record
    "record": "File to record the scheduler's calls to, for `replay` and `explain`; it contains "
    "the token ids of prompts.",
    "record_max_bytes": "Maximum size of one recording file; then recording continues in a new "
    "file.",
    "record_files": "Recording files to keep; 1: recording stops when the file is full.",
    "trace": "Write a timeline of steps, transfers, requests and front ends to this file, which "
    "Perfetto opens; "
    "empty: none.",
}


def unit_of(name: str) -> str:
    """The unit of a setting; empty where it has none."""
    found = next((unit for end, unit in SUFFIXES.items() if name.endswith(end)), "")
    return UNITS.get(name, found)

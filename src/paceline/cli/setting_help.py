"""What each setting means, for `--help`: one sentence, with its unit and when to touch it."""

TITLES = {
    "server": "the server",
    "loop": "the step loop (engine)",
    "core": "where the step loop runs (core)",
    "load": "the model on this machine",
    "cache": "KV memory (cache)",
    "step": "what one step may hold (step)",
    "queue": "what may wait, and for how long (queue)",
    "policy": "who goes first and who gives way (policy)",
    "preemption": "what becomes of those who give way (preemption)",
    "speculation": "draft tokens (speculation)",
    "journal": "what `explain` remembers (journal)",
}

# Flags with another name than their setting: one value each, or the name that the field knows.
NAMES = {
    "api_keys": "api_key",
    "allowed_origins": "allowed_origin",
    "aliases": "served_model_name",
    "tenant_weights": "tenant_weight",
}
METAVARS = {"tenant_weights": "NAME=WEIGHT"}

# Defaults that an engine has and a scheduler by itself has not.
OF_ENGINES = {
    "max_num_seqs": "64, on a card 256",
    "max_num_batched_tokens": "512, on a card 8192",
    "watermark": "0.0, on a card 0.01",
    "fill_positions": "0, on a card 256 for weights of 3 GiB or more",
    "policy": "fcfs, for batches longest",
    "ageing_s": "60.0, for batches 3600.0",
    "max_model_len": "the model's own",
}

SENTENCES = {
    # the server
    "api_keys": "Ask for this key, except on probes and metrics; may repeat.",
    "allowed_origins": "A web page that may call from a browser, or * for all; may repeat.",
    "aliases": "A further name of the model; may repeat.",
    "body_bytes": "Largest body of a request.",
    "header_bytes": "Largest head of a request, names and values together.",
    "body_s": "Seconds within which each part of a body must come.",
    "unread_s": "A client that reads nothing of its stream for so many seconds is dropped.",
    "drain_s": "Seconds that running requests get when the server is told to end.",
    "timeout_s": "Seconds that a request gets where it names no timeout; 0: no limit.",
    "timings": "Put timings into every response, not only where a request asks for them.",
    "log_format": "Lines of the log: text, or json, one object each.",
    "otlp_endpoint": "Where spans go, one for each request: the full address, such as "
    "http://localhost:4318/v1/traces.",
    # the step loop
    "inbox_requests": "Requests that may wait for the loop's next turn.",
    "on_failure": "After a step that failed: go on with the next requests, or stop.",
    "stall_s": "Seconds without a step, while requests wait, that turn /health red.",
    # where it runs
    "core": "In a process of its own, whose crash leaves the server alive, or on a thread.",
    "on_core_crash": "Begin a crashed loop again, or end the server with status 1.",
    "core_restarts": "Most restarts within core_restart_span_s; then the server ends.",
    "core_restart_span_s": "Seconds in which restarts are counted.",
    # the model on this machine
    "device": "Where the model runs; auto: on a card if there is one.",
    "load_format": "How weights are stored; auto: by what is found; dummy: random ones, for a "
    "folder with a config.json or a shape such as qwen3-0.6b.",
    "dtype": "Of weights on a card; auto: bfloat16.",
    "kv_cache_dtype": "Of keys and values on a card; auto: as the weights.",
    "gpu_memory_utilization": "Share of a card's memory for weights, steps and KV.",
    "async_scheduling": "Plan a step while one runs, where the device is another.",
    "kv_cache_gib": "GiB of memory for keys and values; 0 takes a share of what is free, "
    "as far as it is of use.",
    "num_gpu_blocks_override": "Blocks of KV memory by count; 0: as many as the memory holds.",
    "attention": "How attention is computed: native, paged, sdpa; on a card triton, flashinfer; "
    "a dotted path; or auto.",
    "weights": "How products use the weights: float32, int8, or auto, whichever is faster here.",
    "depth": "Steps in flight: above 1 the next is planned while one runs; 0: by device.",
    "threads": "Cores that a forward may use; 0: as many as torch takes.",
    # cache
    "block_size": "Positions in one block; prefixes are shared in whole blocks.",
    "enable_prefix_caching": "Let requests that begin alike share what was computed.",
    "free_order": "Which free block is reused first: one without cached content, or the oldest.",
    # step
    "max_num_seqs": "Sequences that run at once; more of them share a step, each a bit slower.",
    "max_num_batched_tokens": "Positions computed in one step: more favours throughput, fewer "
    "keep the gaps between tokens short while prompts come in.",
    "max_model_len": "Tokens of a sequence, prompt and output together.",
    "enable_chunked_prefill": "May a prompt be computed in pieces, beside those who decode?",
    "long_prefill_token_threshold": "Most positions of one prompt in a step; 0: no limit.",
    "reserve_full_prompt": "Admit a request only when blocks for all its known tokens are free.",
    "watermark": "Fraction of blocks that admission leaves free for those who grow.",
    "discipline": "How a step is filled: unified, prefill_first, or a dotted path to a class.",
    "max_wait": "prefill_first: seconds that arrivals may hold up those who decode.",
    # queue
    "max_num_queued_reqs": "Requests that may wait; more are refused with status 429.",
    "max_queued_tokens": "Prompt tokens that may wait to start; more are refused; 0: no limit.",
    "queue_timeout_s": "Seconds that a request may wait to start; then it ends; 0: no limit.",
    # policy
    "policy": "Who is first: fcfs, priority, shortest, longest, deadline, fair, or a dotted path.",
    "victim": "Who gives way when memory runs out: the newest, or the cheapest to recompute.",
    "ageing_s": "priority, shortest, longest: who has waited so many seconds goes first.",
    "fill_positions": "longest: prompts that can wait fill steps up to so many positions; 0: none "
    "waits.",
    "preempt_on_arrival": "priority: may a strictly better request displace one that runs?",
    "refuse_late": "deadline: refuse what missed its first-token deadline in the queue.",
    "default_deadline_s": "deadline: seconds to the first token where a request names none.",
    "prefill_tokens_per_s": "deadline: turns prompt tokens into time.",
    "tenant_weights": "fair: the share of a tenant beside those of others, 1 where unnamed; may "
    "repeat.",
    "input_token_weight": "fair: what a tenant is charged for a prompt token computed.",
    "output_token_weight": "fair: what a tenant is charged for a token generated.",
    # preemption
    "preemption_mode": "Compute again, copy to host memory and back, or whichever costs less.",
    "swap_space": "GiB of host memory for sequences that are swapped out.",
    # speculation
    "num_speculative_tokens": "Drafts per sequence and step, where a request names none.",
    "proposer": "What proposes drafts: ngram, which looks up what followed the latest tokens when "
    "they occurred before, or a dotted path to a class.",
    "prompt_lookup_min": "ngram: fewest latest tokens that must have occurred before.",
    "prompt_lookup_max": "ngram: most latest tokens that are looked for; longer runs go first.",
    "speculation": "How many drafts are worth it: adaptive, fixed, or a dotted path.",
    "speculation_max_batch_tokens": "No drafts beyond this many rows and drafts in a step.",
    # journal
    "journal_requests": "Ended requests remembered.",
    "journal_spells": "Stretches of blocked admission remembered.",
}

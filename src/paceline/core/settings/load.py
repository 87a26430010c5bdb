"""Settings of a model on a device."""

from dataclasses import dataclass
from typing import Literal

from paceline.core.sampling import MOST_LOGPROBS
from paceline.core.settings.checks import check_types, not_negative, positive, require

Device = Literal["auto", "cpu", "cuda"]
LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]
DTYPES = {"half": "float16", "float": "float32"}  # other names of values
MOST_THREADS = 1024  # torch crashes with many more


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """A model on a device. The scheduler does not read these settings: they are not in `Config`.

    Attributes:
        device: Device of the model; auto: a GPU if there is one.
        load_format: Format of the weights; auto: detect it; dummy: random weights, for a folder
            with a config.json or a shape such as qwen3-0.6b.
        chat_template: Chat template: a file, its text, or chatml; empty: the model's own. A model
            without one refuses requests with messages.
        dtype: Data type of the weights on a GPU; auto: bfloat16. A CPU computes in float32,
            whatever it says.
        kv_cache_dtype: Data type of the KV cache on a GPU; auto: as the weights.
        gpu_memory_utilization (fraction): Fraction of GPU memory for weights, activations and KV
            cache.
        kv_cache_gib (GiB): Memory of the KV cache; 0: on a CPU a quarter of the free memory, at
            most 2 GiB, or more if two sequences of max_model_len need more; on a GPU what
            gpu_memory_utilization leaves.
        swap_space (GiB): Host memory for preempted sequences and cached prefixes.
        num_gpu_blocks_override (blocks): Number of KV cache blocks; 0: as many as the memory holds.
        tensor_parallel_size (processes): Number of processes that hold a part of every layer each:
            on GPUs one for each GPU. Heads, MLP columns and vocabulary of the model must be
            multiples of it.
        attention: Attention backend: native, paged or sdpa; on a GPU triton or flashinfer; a dotted
            path to a class; auto: by device.
        enforce_eager: On a GPU, start without CUDA graphs and without a warm-up: kernels are
            compiled at their first use, and steps take longer.
        enable_sleep_mode: On a GPU, keep weights and KV in memory that sleep gives back. It takes
            as much host memory as the weights have, from the start on.
        quantization: Format that the weights of a plain checkpoint are quantized to while they are
            loaded: fp8, int8, int4, modelopt (NVFP4), mxfp4 for experts, or a dotted path to a
            class; auto: as the files say.
        weights: Precision of linears on a CPU: float32, or int8, which keeps weights of 4 bits;
            auto: int8 if the weights are quantized, otherwise float32.
        batch_invariant: Compute each token with the same bits, whatever else is in the step and
            however the prompt is cut, cached or computed again. Kernels that do not promise this
            are left out, and a model that needs one of them is refused.
        async_scheduling: On a GPU, plan the next step while one runs.
        depth (steps): Steps in flight; 0: by device, 2 on a GPU and 1 on a CPU.
        threads (threads): CPU threads of a forward pass; 0: the default of torch.
        generation_config: Sampling defaults of requests: auto, those that the model recommends in
            generation_config.json or in its GGUF file, or none, which vllm names too.
        max_logprobs (tokens): Maximum number of alternatives that logprobs and prompt_logprobs may
            request per token; -1: no limit.
        limit_mm_per_prompt: Maximum number of images of a prompt. LLM also takes a dict.
        max_image_pixels (pixels): Maximum size of an image, width by height, before it is resized.
        structured_outputs_backend: Library that compiles grammars for structured output: xgrammar
            or llguidance, which vLLM calls guidance; a dotted path to a class; auto: xgrammar if it
            is installed, and llguidance for what xgrammar refuses.
        grammar_compile_limit_s: Seconds of processor time that a grammar of a client may take to
            compile, with all libraries; a request with one that takes longer gets a 400.
        speculative_config: Settings of speculative decoding in vLLM's names: method, model,
            num_speculative_tokens, prompt_lookup_min, prompt_lookup_max and suffix_decoding_*. LLM
            also takes a dict.
        role: Part of requests that this engine does: prefill computes prompts and keeps their KV,
            decode reads it and generates; both needs no other engine.
        kv_connector: Where KV is kept beyond the device: a module of kv/connectors, such as host or
            disk, or a dotted path to a class.
        kv_transfer_config: Settings of a connector in vLLM's names: kv_connector, kv_role,
            kv_connector_extra_config and kv_load_failure_policy. LLM also takes a dict.
        kv_events_config: Publish stored and removed blocks for routers, with vLLM's names:
            enable_kv_cache_events, endpoint, replay_endpoint, buffer_steps, hwm, max_queue_size,
            topic and publisher; also encoding, array or map. LLM also takes a dict.
        seed (seed): Seed of the samples of requests that set none, together with their ids; 0:
            their ids alone. LLM numbers its requests, so a script repeats its samples.
        pooling: Hidden states that embeddings are made of: last, mean or cls; auto: as the files of
            the model say, or else last.
    """

    device: Device = "auto"
    load_format: LoadFormat = "auto"
    chat_template: str = ""
    dtype: Literal["auto", "bfloat16", "float16", "float32", "half", "float"] = "auto"
    kv_cache_dtype: Literal["auto", "bf16", "fp8"] = "auto"
    gpu_memory_utilization: float = 0.9
    kv_cache_gib: float = 0.0
    swap_space: float = 0.0
    num_gpu_blocks_override: int = 0
    tensor_parallel_size: int = 1
    attention: str = "auto"
    enforce_eager: bool = False
    enable_sleep_mode: bool = False
    quantization: str = "auto"
    weights: str = "auto"
    batch_invariant: bool = False
    async_scheduling: bool = True
    depth: int = 0
    threads: int = 0
    generation_config: Literal["auto", "none", "vllm"] = "auto"
    max_logprobs: int = MOST_LOGPROBS
    limit_mm_per_prompt: str = '{"image": 16}'
    max_image_pixels: int = 1 << 26
    structured_outputs_backend: str = "auto"
    grammar_compile_limit_s: float = 2.0
    speculative_config: str = ""
    role: Literal["both", "prefill", "decode"] = "both"
    kv_connector: str = ""
    kv_transfer_config: str = ""
    kv_events_config: str = ""
    seed: int = 0
    pooling: Literal["auto", "last", "mean", "cls"] = "auto"

    def __post_init__(self) -> None:
        check_types(self)
        not_negative(self, "kv_cache_gib", "swap_space", "num_gpu_blocks_override")
        not_negative(self, "depth", "threads")
        object.__setattr__(self, "dtype", DTYPES.get(self.dtype, self.dtype))
        if self.generation_config == "vllm":
            object.__setattr__(self, "generation_config", "none")
        require(self.threads <= MOST_THREADS, f"threads is {self.threads}; at most {MOST_THREADS}")
        positive(self, "max_image_pixels", "tensor_parallel_size", "grammar_compile_limit_s")
        require(self.max_logprobs >= -1, f"max_logprobs is {self.max_logprobs}; at least -1")
        share = self.gpu_memory_utilization
        require(0.0 < share <= 1.0, f"gpu_memory_utilization is {share}; it must lie in (0, 1]")
        require(
            self.async_scheduling or self.depth <= 1,
            f"depth is {self.depth}; without async_scheduling one step is in flight",
        )

    def steps_in_flight(self, by_device: int) -> int:
        return self.depth or (by_device if self.async_scheduling else 1)

"""The settings of scheduler and model: frozen, checked, one dataclass per component."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from sys import float_info
from types import MappingProxyType
from typing import Any, Literal, get_args

from paceline.core.errors import ConfigError
from paceline.core.multimodal import MultimodalConfig
from paceline.core.sampling import MOST_LOGPROBS
from paceline.core.settings.checks import check_types, not_negative, one_of, positive, require
from paceline.core.settings.features import (
    FULL_ATTENTION,
    AttentionGroup,
    LoadingConfig,
    SpeculationConfig,
    attention_groups,
)

FreeOrder = Literal["unsealed_first", "lru"]
Victim = Literal["newest", "cheapest"]
PreemptionMode = Literal["recompute", "swap", "auto"]
Device = Literal["auto", "cpu", "cuda"]
LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]
DType = Literal["auto", "bfloat16", "float16", "float32", "half", "float"]
GENERATION = {"vllm": "none"}  # other words for values
DTYPES = {"half": "float16", "float": "float32"}
CacheDType = Literal["auto", "bf16", "fp8"]
MOST_THREADS = 1024  # torch crashes with many more
GenerationConfig = Literal["auto", "none", "vllm"]
PoolingChoice = Literal["auto", "last", "mean", "cls"]
GrammarLibrary = Literal["auto", "xgrammar", "llguidance", "guidance"]
EngineRole = Literal["both", "prefill", "decode"]
CHOICES: dict[str, Any] = {
    "role": EngineRole,
    "generation_config": GenerationConfig,
    "pooling": PoolingChoice,
    "device": Device,
    "load_format": LoadFormat,
    "dtype": DType,
    "kv_cache_dtype": CacheDType,
    "structured_outputs_backend": GrammarLibrary,
}


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The paged KV memory."""

    num_blocks: int = 4096  # usable blocks on the device
    block_size: int = 16  # positions in one block
    enable_prefix_caching: bool = True  # let equal prefixes share blocks
    free_order: FreeOrder = "unsealed_first"  # which free block is reused first; "lru": oldest
    enable_kv_cache_events: bool = False  # record stored and removed blocks for routers
    attention_groups: tuple[AttentionGroup, ...] = FULL_ATTENTION  # which positions layers read
    model_fingerprint: str = ""  # names the weights; blocks of different models have other keys

    def __post_init__(self) -> None:
        object.__setattr__(self, "attention_groups", attention_groups(self.attention_groups))
        check_types(self)
        positive(self, "num_blocks", "block_size")
        one_of("free_order", self.free_order, get_args(FreeOrder))

    @property
    def groups(self) -> tuple[AttentionGroup, ...]:
        """Every group that has block tables of its own, in the order of their numbers."""
        return tuple(one for one in self.attention_groups for _ in range(one.count))


@dataclass(frozen=True, slots=True)
class StepConfig:
    """What one step may hold."""

    max_num_seqs: int = 128  # resident sequences
    max_num_batched_tokens: int = 2048  # positions computed in one step
    max_model_len: int = 8192  # tokens of a sequence, prompt and output together
    enable_chunked_prefill: bool = True  # may a prompt be computed in pieces?
    long_prefill_token_threshold: int = 0  # most positions of one row in a step; 0: no limit
    max_step_s: float = 0.0  # seconds that a step with prompts should take; 0: no limit
    slots_for_others: int = 0  # slots that one body, or one request of several, leaves; 0: none
    reserve_full_prompt: bool = True  # admission takes the blocks of the whole known sequence
    watermark: float = 0.0  # fraction of blocks that admission leaves free
    discipline: str = "unified"  # a module in sched/disciplines, or a dotted path to a class
    max_wait: float = 1.0  # prefill_first: seconds that arrivals may hold up those who decode
    max_loras: int = 0  # different adapters of residents; 0: no limit

    def __post_init__(self) -> None:
        check_types(self)
        positive(self, "max_num_seqs", "max_num_batched_tokens")
        require(self.max_model_len > 1, f"max_model_len is {self.max_model_len}; 2 is the least")
        require(
            self.max_num_batched_tokens >= self.max_num_seqs,
            f"max_num_batched_tokens ({self.max_num_batched_tokens}) is less than "
            f"max_num_seqs ({self.max_num_seqs}): a full batch could not decode in one step",
        )
        require(
            self.enable_chunked_prefill or self.max_num_batched_tokens >= self.max_model_len,
            f"without chunked prefill max_num_batched_tokens ({self.max_num_batched_tokens}) "
            f"must reach max_model_len ({self.max_model_len})",
        )
        not_negative(self, "long_prefill_token_threshold", "max_wait", "max_loras", "max_step_s")
        not_negative(self, "slots_for_others")
        require(
            self.slots_for_others < self.max_num_seqs,
            f"slots_for_others ({self.slots_for_others}) must be below {self.max_num_seqs} slots",
        )
        require(not (self.max_step_s and self.unpaced), self.unpaced)
        require(
            self.enable_chunked_prefill or not self.long_prefill_token_threshold,
            "long_prefill_token_threshold cuts prompts, which needs enable_chunked_prefill",
        )
        require(
            0.0 <= self.watermark < 1.0, f"watermark is {self.watermark}; it must lie in [0, 1)"
        )

    @property
    def longest_row(self) -> int:
        """Most positions of one sequence in a step."""
        return min(
            self.max_num_batched_tokens,
            self.long_prefill_token_threshold or self.max_num_batched_tokens,
        )

    @property
    def unpaced(self) -> str:
        """Why steps cannot be bounded by time, if they cannot."""
        if not self.enable_chunked_prefill:
            return "max_step_s cuts prompts, which needs enable_chunked_prefill"
        if self.discipline == "prefill_first":
            return "max_step_s is for discipline 'unified'; with 'prefill_first', see max_wait"
        return ""

    @property
    def unfillable(self) -> str:
        """Why prompts cannot fill steps of those who decode, if they cannot."""
        if not self.enable_chunked_prefill:
            return "fill_positions cuts prompts, which needs enable_chunked_prefill"
        if self.long_prefill_token_threshold:
            return (
                "fill_positions reckons with whole steps for a prompt, which "
                "long_prefill_token_threshold does not allow"
            )
        if self.max_step_s:
            return "fill_positions reckons with whole steps for a prompt: remove max_step_s"
        if self.discipline == "prefill_first":
            return (
                "fill_positions lets prompts and decodes share steps, which discipline "
                "'prefill_first' does not"
            )
        return ""


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """Who goes first and who gives way."""

    policy: str = "fcfs"  # a module in sched/policies, or a dotted path to a class
    victim: Victim = "newest"  # among those that may be preempted; "cheapest": least to recompute
    ageing_s: float = 60.0  # priority, shortest, longest: who has waited so long goes first
    fill_positions: int = 0  # longest: prompts that can wait join smaller steps; 0: none waits
    preempt_on_arrival: bool = False  # priority: a strictly better request displaces a resident
    refuse_late: bool = False  # deadline: refuse what missed its first-token deadline in the queue
    default_deadline_s: float = 30.0  # deadline: seconds assumed where a request names none
    prefill_tokens_per_s: float = 10_000.0  # deadline: turns work into time
    tenant_weights: MappingProxyType[str, float] = field(
        default_factory=lambda: MappingProxyType({})
    )  # fair: share of each tenant; 1 where unnamed
    input_token_weight: float = 1.0  # fair: charge for a prompt token computed
    output_token_weight: float = 2.0  # fair: charge for a token generated

    def __post_init__(self) -> None:
        check_types(self)
        one_of("victim", self.victim, get_args(Victim))
        self._copy_weights()
        positive(self, "ageing_s", "default_deadline_s", "prefill_tokens_per_s")
        positive(self, "output_token_weight")
        not_negative(self, "input_token_weight", "fill_positions")
        for tenant, weight in self.tenant_weights.items():
            require(weight > 0, f"the weight of tenant {tenant!r} is {weight}; it must be positive")

    def _copy_weights(self) -> None:
        given: Any = self.tenant_weights
        complaint = f"tenant_weights is {given!r}; it maps names of tenants to numbers"
        require(isinstance(given, Mapping), complaint)
        weights: dict[Any, Any] = dict(given)
        require(all(isinstance(tenant, str) for tenant in weights), complaint)
        require(all(isinstance(weight, int | float) for weight in weights.values()), complaint)
        require(all(abs(weight) <= float_info.max for weight in weights.values()), complaint)
        object.__setattr__(self, "tenant_weights", MappingProxyType(weights))

    def __reduce__(self) -> tuple[Any, ...]:
        """A mapping proxy cannot be sent to another process, a dict can."""
        values: list[Any] = [getattr(self, setting.name) for setting in fields(self)]
        plain = [dict(self.tenant_weights) if v is self.tenant_weights else v for v in values]
        return PolicyConfig, tuple(plain)


@dataclass(frozen=True, slots=True)
class PreemptionConfig:
    """What becomes of the KV of those who give way."""

    preemption_mode: PreemptionMode = "recompute"  # "auto": whichever costs less
    swap_space: int = 0  # blocks on the host
    recompute_tokens_per_s: float = 10_000.0  # auto: positions computed again; runners measure it
    swap_blocks_per_s: float = 10_000.0  # auto: blocks moved either way; runners measure it

    def __post_init__(self) -> None:
        check_types(self)
        one_of("preemption_mode", self.preemption_mode, get_args(PreemptionMode))
        not_negative(self, "swap_space")
        require(
            self.preemption_mode != "swap" or self.swap_space > 0,
            "preemption_mode 'swap' needs a swap_space: blocks for a scheduler, GiB for an engine",
        )
        positive(self, "recompute_tokens_per_s", "swap_blocks_per_s")


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """What may be queued, and for how long."""

    max_num_queued_reqs: int = 65536  # requests waiting or parked; more are refused
    max_queued_tokens: int = 0  # of prompts not yet started; more are refused; 0: no limit
    queue_timeout_s: float = 0.0  # seconds from submission to the first admission; 0: no limit

    def __post_init__(self) -> None:
        check_types(self)
        positive(self, "max_num_queued_reqs")
        not_negative(self, "max_queued_tokens", "queue_timeout_s")


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """How much of the past is kept for `explain`."""

    journal_requests: int = 256  # ended requests remembered
    journal_spells: int = 8192  # stretches of blocked admission remembered

    def __post_init__(self) -> None:
        check_types(self)
        positive(self, "journal_requests", "journal_spells")


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """A model on a device. The scheduler does not read these settings: they are not in `Config`.

    Files: load_format, chat_template, generation_config, pooling. Numbers: dtype, kv_cache_dtype,
    quantization, weights, max_logprobs. Images: limit_mm_per_prompt, max_image_pixels. Memory:
    gpu_memory_utilization, kv_cache_gib, swap_space, num_gpu_blocks_override. Steps: device,
    tensor_parallel_size, attention, enforce_eager, async_scheduling, depth, threads. Grammars:
    structured_outputs_backend, grammar_compile_limit_s. KV elsewhere: role, kv_connector,
    kv_transfer_config. Routers: kv_events_config. Other names of settings: speculative_config.
    Samples: seed.
    """

    device: Device = "auto"  # where the model runs; "auto": on a GPU if there is one
    load_format: LoadFormat = "auto"  # "auto": by what is found; "dummy": random weights
    chat_template: str = ""  # a file, its text, or "chatml"; "": the one of the model
    dtype: DType = "auto"  # of weights on a GPU; "auto": bfloat16
    kv_cache_dtype: CacheDType = "auto"  # of KV on a GPU; "auto": as the weights
    gpu_memory_utilization: float = 0.9  # share of a GPU's memory for weights, steps and KV
    kv_cache_gib: float = 0.0  # memory for KV; 0: by the free memory
    swap_space: float = 0.0  # host memory for swapped sequences, in GiB
    num_gpu_blocks_override: int = 0  # blocks of KV; 0: as many as the memory holds
    tensor_parallel_size: int = 1  # processes that have a part of every layer each
    attention: str = "auto"  # a module in runner/attention, a dotted path, or "auto", by device
    enforce_eager: bool = False  # no CUDA graphs, and no warm-up before the first request
    quantization: str = "auto"  # a module in runner/formats, or a dotted path; "auto": by the files
    weights: str = "auto"  # of products on a CPU: float32, int8; "auto": as precise as the file
    async_scheduling: bool = True  # plan a step while one runs, where the device is another
    depth: int = 0  # steps in flight; 0: by device, 2 on a GPU and 1 on a CPU
    threads: int = 0  # cores that a forward may use; 0: as many as torch takes
    generation_config: GenerationConfig = "auto"  # sampling defaults: the model's own, or none
    max_logprobs: int = MOST_LOGPROBS  # alternatives per token at most; -1: no limit
    limit_mm_per_prompt: str = '{"image": 16}'  # most images of a prompt, as JSON
    max_image_pixels: int = 1 << 26  # of an image, before it is resized
    structured_outputs_backend: GrammarLibrary = "auto"  # what compiles grammars
    grammar_compile_limit_s: float = 2.0  # processor time that a grammar may take to compile
    speculative_config: str = ""  # settings of speculation in vLLM's names, as JSON
    role: EngineRole = "both"  # its part of requests whose KV goes from engine to engine
    kv_connector: str = ""  # a module in kv/connectors, or a dotted path to a class; "": none
    kv_transfer_config: str = ""  # settings of a connector in vLLM's names, as JSON
    kv_events_config: str = ""  # where stored and removed blocks are published, as JSON
    seed: int = 0  # of requests without a seed, beside their ids; 0: their ids alone
    pooling: PoolingChoice = "auto"  # hidden states of embeddings; "auto": as the model's files say

    def __post_init__(self) -> None:
        check_types(self)
        not_negative(self, "kv_cache_gib", "swap_space", "num_gpu_blocks_override")
        not_negative(self, "depth", "threads")
        for name, kind in CHOICES.items():
            one_of(name, getattr(self, name), get_args(kind))
        object.__setattr__(self, "dtype", DTYPES.get(self.dtype, self.dtype))
        own = GENERATION.get(self.generation_config, self.generation_config)
        object.__setattr__(self, "generation_config", own)
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


COMPONENTS: dict[str, type[Any]] = {
    "cache": CacheConfig,
    "step": StepConfig,
    "queue": QueueConfig,
    "policy": PolicyConfig,
    "preemption": PreemptionConfig,
    "speculation": SpeculationConfig,
    "journal": JournalConfig,
    "encoder": MultimodalConfig,
    "loading": LoadingConfig,
}


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of a scheduler, by component."""

    cache: CacheConfig = CacheConfig()
    step: StepConfig = StepConfig()
    queue: QueueConfig = QueueConfig()
    policy: PolicyConfig = PolicyConfig()
    preemption: PreemptionConfig = PreemptionConfig()
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    journal: JournalConfig = JournalConfig()
    encoder: MultimodalConfig = field(default_factory=MultimodalConfig)
    loading: LoadingConfig = field(default_factory=LoadingConfig)

    def __post_init__(self) -> None:
        is_filling = self.policy.policy == "longest" and self.policy.fill_positions > 0
        require(not is_filling or not self.step.unfillable, self.step.unfillable)
        require(
            not (self.step.max_step_s and self.encoder.disable_chunked_mm_input),
            "max_step_s cuts multimodal items, which disable_chunked_mm_input does not allow",
        )
        if any(one.kind == "state" for one in self.cache.attention_groups):
            drafts, swapped = self.speculation.num_speculative_tokens, self.preemption.swap_space
            require(not drafts, "drafts that are rejected would stay in states; remove them")
            require(not swapped, "states are not swapped; set swap_space to 0")

    @property
    def encoder_budget(self) -> int:
        """Embeddings that a step may encode."""
        return self.encoder.max_num_encoder_input_tokens or self.step.max_num_batched_tokens

    @property
    def encoder_capacity(self) -> int:
        """Embeddings that are kept."""
        return self.encoder.encoder_cache_size or self.step.max_num_batched_tokens

    @staticmethod
    def of(**settings: Any) -> "Config":
        """Sort flat settings into components; an unknown name is an error."""
        components: dict[str, Any] = {}
        for component, kind in COMPONENTS.items():
            names = {setting.name for setting in fields(kind)} & settings.keys()
            own = {name: settings.pop(name) for name in sorted(names)}
            components[component] = kind(**own)
        for name in settings:
            close = get_close_matches(name, Config.names(), 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ConfigError(f"unknown setting {name!r}{hint}")
        return Config(**components)

    @staticmethod
    def names() -> list[str]:
        return [setting.name for kind in COMPONENTS.values() for setting in fields(kind)]

    def to_dict(self) -> dict[str, Any]:
        """Flat settings again, plain data."""
        flat: dict[str, Any] = {}
        for component, kind in COMPONENTS.items():
            values = getattr(self, component)
            flat |= {setting.name: getattr(values, setting.name) for setting in fields(kind)}
        flat["tenant_weights"] = dict(flat["tenant_weights"])
        flat["attention_groups"] = [one.to_dict() for one in self.cache.attention_groups]
        return flat

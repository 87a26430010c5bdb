"""The settings of a scheduler: frozen, checked, one dataclass per component."""

from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal

from paceline.core.errors import ConfigError, nearest
from paceline.core.multimodal import MultimodalConfig
from paceline.core.settings.checks import (
    by_tenant,
    check_types,
    not_negative,
    plain,
    positive,
    require,
    sendable,
)
from paceline.core.settings.features import (
    FULL_ATTENTION,
    AttentionGroup,
    LoadingConfig,
    ServiceConfig,
    SpeculationConfig,
    attention_groups,
)

FreeOrder = Literal["unsealed_first", "lru"]


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The paged KV memory.

    Attributes:
        num_blocks: Number of KV cache blocks.
        block_size (tokens): Tokens of one KV cache block; prefixes are shared in whole blocks.
        enable_prefix_caching: Share the KV cache between requests with the same prefix.
        free_order: Which free block is reused first: one without cached content, or the least
            recently used.
        eviction: Which cached block is reused first when there is no other: lru (the least recently
            used), sessions (what is least likely to be used soon, as learned from the pauses of
            sessions, for what it costs to compute again), or a dotted path to a class.
        enable_kv_cache_events: Record stored and removed blocks for `Scheduler.cache_events`.
        attention_groups: Layers by the positions they read. Engines take them from the model.
        state_blocks (blocks): Blocks that the state of a sequence takes in the cache; 0: the model
            keeps no states. Engines take it from the model.
        snapshots: Where states of sequences are kept for prefix hits, if the model has them: auto,
            block (behind every block of a prompt), last (behind prompts and turns), none, or a
            dotted path to a class.
        model_fingerprint: Name of the weights, as part of the keys of cached blocks.
        system_fingerprint: Name of everything that outputs depend on, as answers report it.
    """

    num_blocks: int = 4096
    block_size: int = 16
    enable_prefix_caching: bool = True
    free_order: FreeOrder = "unsealed_first"
    eviction: str = "lru"
    enable_kv_cache_events: bool = False
    attention_groups: tuple[AttentionGroup, ...] = FULL_ATTENTION
    state_blocks: int = 0
    snapshots: str = "auto"
    model_fingerprint: str = ""
    system_fingerprint: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "attention_groups", attention_groups(self.attention_groups))
        check_types(self)
        positive(self, "num_blocks", "block_size")
        not_negative(self, "state_blocks")
        require(
            self.eviction == "lru" or self.free_order == "unsealed_first",
            f"eviction {self.eviction!r} orders blocks with content; free_order 'lru' reuses "
            "blocks without content as late: remove one of the settings",
        )

    @property
    def groups(self) -> tuple[AttentionGroup, ...]:
        """Every group that has block tables of its own, in the order of their numbers."""
        return tuple(one for one in self.attention_groups for _ in range(one.count))


@dataclass(frozen=True, slots=True)
class StepConfig:
    """What one step may hold.

    Attributes:
        max_num_seqs (sequences): Maximum number of sequences that run at once.
        max_num_batched_tokens (tokens): Maximum number of tokens computed in one step: more
            increases throughput, fewer shortens the time between tokens while prompts are computed.
        max_model_len (tokens): Maximum length of a sequence, prompt and output together.
        enable_chunked_prefill: Compute long prompts in chunks, together with decodes.
        long_prefill_token_threshold (tokens): Maximum number of tokens of one prompt in a step; 0:
            no limit.
        max_step_s: CPU: time that a step with prompts should take, by the speed that is measured at
            start. Prompts are cut to it and share it, so that a long one holds up no others; 0: no
            limit.
        slots_for_others (sequences): Slots that the prompts of one body, or the sequences of one
            request, leave free for others; 0: none. If max_num_seqs is given, an eighth of it at
            most by default; for batches 0.
        reserve_full_prompt: Admit a request only when there are free blocks for its whole prompt.
        watermark (fraction): Fraction of blocks that admission leaves free for running sequences.
        discipline: How a step is filled: unified, prefill_first, or a dotted path to a class.
        max_wait (seconds): prefill_first: maximum time that new prompts may delay decodes.
        max_loras (adapters): Maximum number of different adapters among running sequences; 0: no
            limit.
    """

    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    max_model_len: int = 8192
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    max_step_s: float = 0.0
    slots_for_others: int = 0
    reserve_full_prompt: bool = True
    watermark: float = 0.0
    discipline: str = "unified"
    max_wait: float = 1.0
    max_loras: int = 0

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
    """Who goes first and who gives way.

    Attributes:
        policy: Which request is admitted first: fcfs, priority, shortest, longest, deadline, fair,
            slo, or a dotted path to a class. With targets (ttft_target_ms, ...) slo, unless
            another one is given.
        victim: Which sequence is preempted when memory runs out: the newest, or the cheapest to
            recompute.
        ageing_s: priority, shortest, longest, slo: a request that has waited this long goes first;
            under slo in turn with those that can meet their targets.
        fill_positions (tokens): longest: prompts that can wait are computed in steps of up to this
            many tokens; 0: no prompt waits.
        preempt_on_arrival: priority: a request of higher priority preempts a running one.
        refuse_late: deadline, slo: refuse a request that missed its first-token deadline in the
            queue; under slo with status 503 as soon as it cannot meet it.
        default_deadline_s: deadline, slo: time to the first token for requests that set none.
        prefill_tokens_per_s (tokens/s): deadline: speed at which prompts are assumed to be
            computed.
        tenant_weights (weight): fair: weight of a tenant; 1 for tenants without one; may be
            repeated.
        input_token_weight (weight): fair: charge for a computed prompt token.
        output_token_weight (weight): fair: charge for a generated token.
    """

    policy: str = "fcfs"
    victim: Literal["newest", "cheapest"] = "newest"
    ageing_s: float = 60.0
    fill_positions: int = 0
    preempt_on_arrival: bool = False
    refuse_late: bool = False
    default_deadline_s: float = 30.0
    prefill_tokens_per_s: float = 10_000.0
    tenant_weights: MappingProxyType[str, float] = field(
        default_factory=lambda: MappingProxyType({})
    )
    input_token_weight: float = 1.0
    output_token_weight: float = 2.0

    def __post_init__(self) -> None:
        check_types(self)
        by_tenant(self, "tenant_weights")
        positive(self, "ageing_s", "default_deadline_s", "prefill_tokens_per_s")
        positive(self, "output_token_weight")
        not_negative(self, "input_token_weight", "fill_positions")
        for tenant, weight in self.tenant_weights.items():
            require(weight > 0, f"the weight of tenant {tenant!r} is {weight}; it must be positive")

    def __reduce__(self) -> tuple[Any, ...]:
        return sendable(self)


@dataclass(frozen=True, slots=True)
class PreemptionConfig:
    """What becomes of the KV of those who give way.

    Attributes:
        preemption_mode: Recompute a preempted sequence, swap it to host memory, or auto: whichever
            costs less.
        swap_space (blocks): Number of blocks in host memory for preempted sequences and cached
            prefixes.
        recompute_tokens_per_s: preemption_mode auto: tokens recomputed per second.
        swap_blocks_per_s: preemption_mode auto: blocks swapped per second.
    """

    preemption_mode: Literal["recompute", "swap", "auto"] = "recompute"
    swap_space: int = 0
    recompute_tokens_per_s: float = 10_000.0
    swap_blocks_per_s: float = 10_000.0

    def __post_init__(self) -> None:
        check_types(self)
        not_negative(self, "swap_space")
        require(
            self.preemption_mode != "swap" or self.swap_space > 0,
            "preemption_mode 'swap' needs a swap_space: blocks for a scheduler, GiB for an engine",
        )
        positive(self, "recompute_tokens_per_s", "swap_blocks_per_s")


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """What may be queued, and for how long.

    Attributes:
        max_num_queued_reqs (requests): Maximum length of the waiting queue; more requests are
            refused with status 429.
        max_queued_tokens (tokens): Maximum number of prompt tokens in the waiting queue; more are
            refused with status 429; 0: no limit.
        queue_timeout_s: Maximum time in the waiting queue; 0: no limit.
    """

    max_num_queued_reqs: int = 65536
    max_queued_tokens: int = 0
    queue_timeout_s: float = 0.0

    def __post_init__(self) -> None:
        check_types(self)
        positive(self, "max_num_queued_reqs")
        not_negative(self, "max_queued_tokens", "queue_timeout_s")


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """How much of the past is kept for `explain`.

    Attributes:
        journal_requests (requests): Finished requests that `explain` remembers.
        journal_spells (intervals): Intervals of blocked admission that `explain` remembers.
    """

    journal_requests: int = 256
    journal_spells: int = 8192

    def __post_init__(self) -> None:
        check_types(self)
        positive(self, "journal_requests", "journal_spells")


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
    "service": ServiceConfig,
}

PROMISES = {setting.name for setting in fields(ServiceConfig)}


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
    service: ServiceConfig = field(default_factory=ServiceConfig)

    def __post_init__(self) -> None:
        is_filling = self.policy.policy == "longest" and self.policy.fill_positions > 0
        require(not is_filling or not self.step.unfillable, self.step.unfillable)
        require(
            not (self.step.max_step_s and self.encoder.disable_chunked_mm_input),
            "max_step_s cuts images, which disable_chunked_mm_input does not allow",
        )

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
        if "policy" not in settings and PROMISES & {name for name, one in settings.items() if one}:
            settings["policy"] = "slo"
        for component, kind in COMPONENTS.items():
            names = {setting.name for setting in fields(kind)} & settings.keys()
            own = {name: settings.pop(name) for name in sorted(names)}
            components[component] = kind(**own)
        for name in settings:
            raise ConfigError(f"unknown setting {name!r}{nearest(name, Config.names())}")
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
        flat = {name: plain(value) for name, value in flat.items()}
        flat["attention_groups"] = [one.to_dict() for one in self.cache.attention_groups]
        return flat

"""Settings of optional parts: attention groups, connectors, KV events, drafts, service levels,
recordings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import Any, Literal, TypeVar, cast, get_args

from paceline.core.arrays import I32
from paceline.core.settings.checks import (
    by_tenant,
    check_types,
    not_negative,
    one_of,
    positive,
    require,
    sendable,
)

AttentionKind = Literal["full", "sliding_window", "chunked_local"]
Positions = TypeVar("Positions", int, I32)


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Layers that read the same positions.

        full              all positions up to its own
        sliding_window    the last `window` positions up to its own
        chunked_local     those of its own chunk: `window` positions, counted from the first one

    All groups of a model have the same number of layers, so a block has the same size in each.
    """

    kind: AttentionKind = "full"
    window: int = 0  # positions of a window or of a chunk; 0 for full attention
    count: int = 1  # groups of this kind; each has its own block tables

    def __post_init__(self) -> None:
        one_of("the kind of an attention group", self.kind, get_args(AttentionKind))
        check_types(self)
        positive(self, "count")
        require(
            (self.window > 0) == self.slides,
            f"the window of a {self.kind} attention group is {self.window}; it must be "
            f"{'positive' if self.slides else '0'}",
        )

    @property
    def slides(self) -> bool:
        """Whether a sequence reads its first positions no more when it has grown."""
        return self.kind != "full"

    def unread(self, computed: Positions) -> Positions:
        """How many of the first positions no position from `computed` on reads."""
        if self.kind == "full":
            return computed * 0
        if self.kind == "sliding_window":
            return (computed - self.window + 1) * (computed >= self.window)
        return computed // self.window * self.window

    def to_dict(self) -> dict[str, Any]:
        """Plain data, from which `attention_groups` makes the same group."""
        return {"kind": self.kind, "window": self.window, "count": self.count}


FULL_ATTENTION: tuple[AttentionGroup, ...] = (AttentionGroup(),)


def attention_groups(given: Any) -> tuple[AttentionGroup, ...]:
    """Groups from groups or plain data. ConfigError if they cannot be."""
    complaint = (
        f"attention_groups is {given!r}; it lists groups such as "
        '{"kind": "sliding_window", "window": 1024, "count": 5}'
    )
    require(isinstance(given, list | tuple) and given not in ([], ()), complaint)
    return tuple(_group(one, complaint) for one in cast("list[Any]", given))


def _group(given: Any, complaint: str) -> AttentionGroup:
    if isinstance(given, AttentionGroup):
        return given
    require(isinstance(given, dict), complaint)
    plain = cast("dict[str, Any]", given)
    require(plain.keys() <= {"kind", "window", "count"}, complaint)
    return AttentionGroup(**plain)


ConnectorRole = Literal["kv_both", "kv_producer", "kv_consumer"]


def no_options() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LoadingConfig:
    """What becomes of a request whose KV a connector cannot load.

    Attributes:
        kv_load_failure_policy: Whether a request whose KV cannot be loaded computes it, or fails.
        kv_load_timeout_s: Maximum time that a request waits for a connector before it computes.
    """

    kv_load_failure_policy: Literal["recompute", "fail"] = "recompute"
    kv_load_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        check_types(self)
        limit = self.kv_load_timeout_s
        require(0 < limit < inf, f"kv_load_timeout_s is {limit}; it must be positive and finite")


@dataclass(frozen=True, slots=True)
class ConnectorConfig:
    """Which connector an engine has, in vLLM's names. The scheduler does not read it."""

    kv_connector: str = ""  # a module in kv/connectors, or a dotted path to a class; "": none
    kv_role: ConnectorRole = "kv_both"  # whether it stores KV (producer), loads it, or both
    engine_id: str = ""  # names this engine to others; "": the connector chooses a name
    kv_connector_extra_config: Mapping[str, Any] = field(default_factory=no_options)  # its options

    def __post_init__(self) -> None:
        check_types(self)
        given: Any = self.kv_connector_extra_config
        require(
            isinstance(given, Mapping),
            f"kv_connector_extra_config is {given!r:.200}; it maps names of options to values",
        )
        object.__setattr__(self, "kv_connector_extra_config", MappingProxyType(dict(given)))


EventEncoding = Literal["array", "map"]


@dataclass(frozen=True, slots=True)
class KVEventsConfig:
    """Where stored and removed blocks are published, in vLLM's names; `encoding` is ours, and so is
    `data_parallel_rank`, which several engines of a server get."""

    enable_kv_cache_events: bool = False  # publish events
    publisher: Literal["", "null", "zmq"] = ""  # "null": none; "": zmq if events are enabled
    endpoint: str = "tcp://*:5557"  # bound if it has a wildcard or is a file, else connected to
    replay_endpoint: str = ""  # bound, to send past batches again; "": they are not kept
    buffer_steps: int = 10_000  # batches kept for that
    hwm: int = 100_000  # batches queued for a subscriber that reads too slowly; more are dropped
    max_queue_size: int = 100_000  # batches that wait to be sent; more are dropped
    topic: str = ""  # first frame of each message, which subscribers filter by
    encoding: EventEncoding = "array"  # of events; "map": as vLLM from 0.24 on
    data_parallel_rank: int = 0  # which of several engines publishes; a part of each batch

    def __post_init__(self) -> None:
        check_types(self)
        positive(self, "buffer_steps", "max_queue_size")
        not_negative(self, "hwm", "data_parallel_rank")
        for name in ("endpoint", "replay_endpoint"):
            given = getattr(self, name)
            require(
                "://" in given or (given == "" and name == "replay_endpoint"),
                f"{name} is {given!r}; write it as PROTOCOL://ADDRESS, such as tcp://*:5557",
            )

    @property
    def is_on(self) -> bool:
        return self.enable_kv_cache_events and self.publisher != "null"

    @property
    def is_bound(self) -> bool:
        """Whether subscribers connect to the endpoint, rather than the publisher to it."""
        return any(sign in self.endpoint for sign in ("*", "::", "ipc://", "inproc://"))


MOST_LOOKUP = 64  # tokens; a proposer compares each of them with the whole sequence
LEAST_DEPTH, MOST_DEPTH = 3, 256  # tokens; each token of an output adds a path of so many


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """Draft tokens: who proposes them, and how many a step verifies.

    Names that vLLM has in its `speculative_config` are the same here, except `proposer`, which is
    its `method`, and `speculative_model`, which is its `model`.

    Attributes:
        num_speculative_tokens (tokens): Draft tokens per sequence and step for requests that set
            none.
        proposer: What proposes draft tokens: ngram, which finds the latest tokens earlier in the
            sequence and proposes what followed them; suffix, which also looks in past outputs;
            draft_model or eagle3, which need a speculative_model; mtp, a head in the checkpoint of
            the model; or a dotted path to a class.
        speculative_model: draft_model, eagle3: the model that proposes draft tokens.
        prompt_lookup_min (tokens): ngram: minimum number of latest tokens that must match.
        prompt_lookup_max (tokens): ngram: maximum number of latest tokens to match; longer matches
            go first.
        suffix_decoding_max_tree_depth (tokens): suffix: maximum number of latest tokens to match
            and of tokens that follow them, together.
        suffix_decoding_max_cached_requests (requests): suffix: outputs of finished requests that
            are kept, the oldest of which are dropped; 0: look in the request alone.
        suffix_decoding_max_spec_factor (tokens): suffix: maximum number of draft tokens for each
            latest token that matches.
        suffix_decoding_min_token_prob (fraction): suffix: minimum share of earlier occurrences that
            a draft token must follow.
        speculation: How many draft tokens are used: adaptive, fixed, or a dotted path to a class.
        speculation_max_batch_tokens (tokens): Most rows and drafts of a step with drafts; 0: what
            pays.
        lookahead_slots: Additional KV positions that a drafter writes beyond the sequence.
    """

    num_speculative_tokens: int = 0
    proposer: str = "ngram"
    speculative_model: str = ""
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 4
    suffix_decoding_max_tree_depth: int = 24
    suffix_decoding_max_cached_requests: int = 10000
    suffix_decoding_max_spec_factor: float = 1.0
    suffix_decoding_min_token_prob: float = 0.1
    speculation: str = "adaptive"
    speculation_max_batch_tokens: int = 0
    lookahead_slots: int = 0

    def __post_init__(self) -> None:
        check_types(self)
        not_negative(self, "num_speculative_tokens", "lookahead_slots")
        not_negative(self, "speculation_max_batch_tokens")
        positive(self, "prompt_lookup_min")
        least, most = self.prompt_lookup_min, self.prompt_lookup_max
        require(
            least <= most <= MOST_LOOKUP,
            f"prompt_lookup_max is {most}; it must lie between prompt_lookup_min ({least}) and "
            f"{MOST_LOOKUP}",
        )
        self._check_suffixes()

    def _check_suffixes(self) -> None:
        depth, likely = self.suffix_decoding_max_tree_depth, self.suffix_decoding_min_token_prob
        require(
            LEAST_DEPTH <= depth <= MOST_DEPTH,
            f"suffix_decoding_max_tree_depth is {depth}; it must lie between "
            f"{LEAST_DEPTH} and {MOST_DEPTH}",
        )
        not_negative(self, "suffix_decoding_max_cached_requests", "suffix_decoding_max_spec_factor")
        require(
            0.0 <= likely <= 1.0,
            f"suffix_decoding_min_token_prob is {likely}; it must lie in [0, 1]",
        )


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """Service levels: how soon requests are to have their tokens.

    Attributes:
        ttft_target_ms (milliseconds): Target of the time from arrival to the first token, of
            requests that bring none; 0: none.
        itl_target_ms (milliseconds): Target of the time between two tokens, of requests that bring
            none; a hundredth of the gaps of a request may be longer; 0: none.
        tenant_ttft_target_ms (milliseconds): ttft_target_ms of one tenant; may be repeated.
        tenant_itl_target_ms (milliseconds): itl_target_ms of one tenant; may be repeated.
    """

    ttft_target_ms: float = 0.0
    itl_target_ms: float = 0.0
    tenant_ttft_target_ms: MappingProxyType[str, float] = field(
        default_factory=lambda: MappingProxyType({})
    )
    tenant_itl_target_ms: MappingProxyType[str, float] = field(
        default_factory=lambda: MappingProxyType({})
    )

    def __post_init__(self) -> None:
        check_types(self)
        not_negative(self, "ttft_target_ms", "itl_target_ms")
        for name in ("tenant_ttft_target_ms", "tenant_itl_target_ms"):
            by_tenant(self, name)
            for tenant, target in getattr(self, name).items():
                require(
                    target > 0,
                    f"{name} of tenant {tenant!r} is {target}; it must be positive",
                )

    def __reduce__(self) -> tuple[Any, ...]:
        return sendable(self)

    def ttft_s(self, tenant: str, own: float | None) -> float:
        """The target of a request for its first token: its own, its tenant's or the server's; inf:
        none."""
        return own or target_s(tenant, self.tenant_ttft_target_ms, self.ttft_target_ms)

    def itl_s(self, tenant: str, own: float | None) -> float:
        """The target of a request between two tokens."""
        return own or target_s(tenant, self.tenant_itl_target_ms, self.itl_target_ms)


def target_s(tenant: str, by_tenant: Mapping[str, float], of_all: float) -> float:
    return by_tenant.get(tenant, of_all) / 1e3 or inf


LEAST_RECORD_BYTES = 64 << 10  # the settings alone take 2 KiB


@dataclass(frozen=True, slots=True)
class RecordConfig:
    """What is written of a run. It changes no decision, so it is not in `Config`.

    Attributes:
        record: File to record the scheduler's calls to, for `replay` and `explain`; it contains the
            token ids of prompts.
        record_max_bytes: Maximum size of one recording file; then recording continues in a new
            file.
        record_files (files): Recording files to keep; 1: recording stops when the file is full.
        trace: Write a timeline of steps, transfers, requests and front ends to this file, which
            Perfetto opens; empty: none.
        trace_name: Name of the engine in the timeline.
    """

    record: str = ""
    record_max_bytes: int = 256 << 20
    record_files: int = 4
    trace: str = ""
    trace_name: str = "engine"

    def __post_init__(self) -> None:
        check_types(self)
        require(
            self.record_max_bytes >= LEAST_RECORD_BYTES,
            f"record_max_bytes is {self.record_max_bytes}; it must be at least "
            f"{LEAST_RECORD_BYTES}",
        )
        positive(self, "record_files")

"""MoE layers: their description, traits of architectures, and the sizes that files give."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

from paceline.core.errors import ConfigError
from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.linear_spec import Activation, LinearSpec, NormSpec
from paceline.runner.models.tensor_spec import TensorSpec


@dataclass(frozen=True, slots=True)
class ClampedGate:
    """gate * sigmoid(alpha * gate) * (up + 1), of gates up to `limit` and ups from -limit to it."""

    alpha: float
    limit: float


@dataclass(frozen=True, slots=True)
class ExpertSpec:
    """down(activation(gate) * up), where gate and up are gate_up of the input; see `MLPSpec`."""

    gate_up: LinearSpec
    down: LinearSpec


@dataclass(frozen=True, slots=True)
class SharedExpertSpec:
    """An expert that computes every position, times sigmoid(gate(x)) if it has a gate.

    gate         [1, width]
    norm         of what it reads; None: that of the other experts
    output_norm  of what it computes
    """

    gate_up: LinearSpec
    down: LinearSpec
    gate: LinearSpec | None = None
    norm: NormSpec | None = None
    output_norm: NormSpec | None = None


@dataclass(frozen=True, slots=True)
class ExpertGroups:
    """Groups of adjacent experts. A position chooses among the experts of the best groups.

    count    groups of a layer
    chosen   groups of a position
    judges   experts of a group, the best ones, whose scores add up to the score of the group
    """

    count: int
    chosen: int
    judges: int


@dataclass(frozen=True, slots=True)
class ExpertLatentSpec:
    """after(the sum of share * expert(before(x))): experts read and write a narrower vector."""

    before: LinearSpec
    after: LinearSpec


ExpertScores = Literal["softmax", "sigmoid"]


@dataclass(frozen=True, slots=True)
class Routing:
    """How a position chooses experts, and how much each counts.

    chosen             experts of a position: those with the best scores
    shares_sum_to_one  the shares of the chosen experts are their scores divided by the sum of them;
                       otherwise shares are scores
    scores             what turns the outputs of the router into scores
    groups             which experts are considered; None: all
    scale              factor of the shares
    of_inputs          experts read their input times the share, instead of returning their output
                       times it
    """

    chosen: int
    shares_sum_to_one: bool
    scores: ExpertScores = "softmax"
    groups: ExpertGroups | None = None
    scale: float = 1.0
    of_inputs: bool = False


@dataclass(frozen=True, slots=True)
class MoESpec:
    """x + output_norm(shared(norm(x)) + experts_norm(the sum of share * expert(norm(x)) over the
    chosen experts)).

    norm               of the residual stream
    router             from the residual stream to an output for each expert
    routing            from these outputs to experts and their shares
    experts            all of one shape
    activation         of all experts
    clamp              what experts compute of gate and up instead; None: activation(gate) * up
    correction         [experts]; added to scores where experts are chosen, and not to shares
    shared             computes every position; None: there is none
    router_scale       [width]; the router reads the residual stream, divided by its length, times
                       this; None: it reads what experts read
    expert_scales      [experts]; factors of their shares
    experts_norm       of the sum of experts
    output_norm        of what is added to the residual stream
    gated_experts      otherwise no expert has a gate, the shared one included
    latent             what the chosen experts read and write; None: vectors of the full width
    """

    FEATURE: ClassVar[str] = "moe"

    norm: NormSpec
    router: LinearSpec
    routing: Routing
    experts: tuple[ExpertSpec, ...]
    activation: Activation = "silu"
    clamp: ClampedGate | None = None
    correction: TensorSpec | None = None
    shared: SharedExpertSpec | None = None
    router_scale: TensorSpec | None = None
    expert_scales: TensorSpec | None = None
    experts_norm: NormSpec | None = None
    output_norm: NormSpec | None = None
    gated_experts: bool = True
    latent: ExpertLatentSpec | None = None

    @property
    def width(self) -> int:
        """Inside an expert."""
        return self.experts[0].down.inputs


@dataclass(frozen=True, slots=True)
class ExpertStack:
    """Tensors that have a linear of all experts, in HF's files.

    gate_up     name within the block; it has the outputs of both
    down        name within the block
    alternates  outputs of gate and up alternate; otherwise those of gate come first
    outputs     dimension of the outputs; -1: the last
    """

    gate_up: str = "experts.gate_up_proj"
    down: str = "experts.down_proj"
    alternates: bool = False
    outputs: int = -1


@dataclass(frozen=True, slots=True)
class ExpertTraits:
    """Names of the tensors of an MoE in HF's files, and what its router does.

    A router is `<block>.<router>`, and a linear of expert 3 is `<block>.experts.3.<gate, up or
    down>`. An empty block is the layer.

    stack              all experts are in these tensors instead
    has_biases         all linears have biases
    shared             an expert that computes every position; empty: there is none
    shared_gate        its gate; empty: it has none
    beside_mlp         the MLP of the layer is the shared expert, and both have norms of their own
    shared_is_fused    its gate and up are one tensor
    correction         of scores; empty: there is none
    correction_rank    dimensions of its tensor
    scores             what turns the outputs of the router into scores *
    shares_sum_to_one  shares of the chosen experts are divided by their sum *
    sums_in_gguf       the same in GGUF files *
    clamp              what experts compute of gate and up, if not activation(gate) * up *
    shares_of_inputs   see `Routing.of_inputs`

    * unless the file says otherwise
    """

    block: str
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    router: str = "gate"
    stack: ExpertStack | None = None
    has_biases: bool = False
    shared: str = ""
    shared_gate: str = ""
    beside_mlp: bool = False
    shared_is_fused: bool = False
    correction: str = ""
    correction_rank: int = 1
    scores: ExpertScores = "softmax"
    shares_sum_to_one: bool = False
    sums_in_gguf: bool = True
    clamp: ClampedGate | None = None
    shares_of_inputs: bool = False

    def name(self, part: str) -> str:
        """The name of a part of the block within the layer."""
        return f"{self.block}.{part}" if self.block else part


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """Sizes of MoE layers.

    count         experts of a layer
    width         inside an expert
    layers        whether each layer is an MoE; the others have a plain MLP
    routing       how experts are chosen
    shared_width  inside the shared expert; 0: there is none
    clamp         what experts compute of gate and up, if not activation(gate) * up
    latent        width of what experts read and write; 0: that of the residual stream
    """

    count: int
    width: int
    layers: tuple[bool, ...]
    routing: Routing
    shared_width: int = 0
    clamp: ClampedGate | None = None
    latent: int = 0

    def __post_init__(self) -> None:
        chosen, groups = self.routing.chosen, self.routing.groups
        if groups is not None:
            if self.count % groups.count or not 0 < groups.chosen <= groups.count:
                raise ConfigError(
                    f"{self.count} experts cannot be divided into {groups.count} groups, of which "
                    f"a position chooses {groups.chosen}"
                )
            most, where = self.count // groups.count * groups.chosen, " of its groups"
        else:
            most, where = self.count, ""
        if not 0 < chosen <= most:
            raise ConfigError(
                f"a position must choose between 1 and all {most} experts{where}, not {chosen}"
            )
        if self.width < 1:
            raise ConfigError(f"the width of experts must be positive, not {self.width}")


SCORES: dict[str, ExpertScores] = {"softmax": "softmax", "sigmoid": "sigmoid"}
COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
CHOSEN = ("num_experts_per_tok", "moe_k", "moe_topk", "top_k_experts")
SHARED = (
    "n_shared_experts",
    "moe_num_shared_experts",
    "num_shared_expert",
    "num_shared_experts",
)
SHARED_WIDTH = (
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "moe_shared_expert_intermediate_size",
)
FIRST = ("first_k_dense_replace", "moe_layer_start_index")
EVERY = ("decoder_sparse_step", "moe_layer_interval", "interleave_moe_layer_step")
LIMITED = "group_limited_greedy"  # the best expert of a group is its score


def experts_of_hf(
    read: ConfigEntries, layers: int, traits: ExpertTraits | None
) -> ExpertSizes | None:
    """Read the sizes of MoE layers in a config.json."""
    count = entry(read, COUNTS)
    if traits is None or not count:
        return None
    width = int(entry(read, ("moe_intermediate_size",)) or read.number("intermediate_size"))
    scores = read.get("scoring_func", traits.scores)
    if scores not in SCORES:
        raise ConfigError(f"{read.where}: scoring_func = {scores!r} is not supported")
    return ExpertSizes(
        count=int(count),
        width=width,
        layers=_layers_of_hf(read, layers),
        routing=Routing(
            chosen=int(entry(read, CHOSEN) or read.need(CHOSEN[0])),
            shares_sum_to_one=read.get("norm_topk_prob", traits.shares_sum_to_one),
            scores=SCORES[scores],
            groups=_groups_of_hf(read),
            scale=float(read.get("routed_scaling_factor", 1.0)),
            of_inputs=traits.shares_of_inputs,
        ),
        shared_width=shared_width(read, width, traits) if traits.shared else 0,
        clamp=clamp(read, traits),
        latent=int(read.get("moe_latent_size", 0)),
    )


def entry(read: ConfigEntries, keys: tuple[str, ...]) -> Any:
    """The first entry that a file has. Some files list it for each layer."""
    key = next((key for key in keys if read.get(key) is not None), keys[0])
    if not isinstance(found := read.get(key), list):
        return found
    values = set(cast("list[Any]", found))
    if len(values) > 1:
        raise ConfigError(f"{read.where}: {key} differs between layers: {found!r:.200}")
    return values.pop()


def shared_width(read: ConfigEntries, width: int, traits: ExpertTraits) -> int:
    """The width of all shared experts together, which are one expert."""
    if traits.beside_mlp:
        return read.number("intermediate_size")
    count = entry(read, SHARED)
    return int(entry(read, SHARED_WIDTH) or width * (1 if count is None else count))


def _groups_of_hf(read: ConfigEntries) -> ExpertGroups | None:
    count, method = read.get("n_group", 1), read.get("topk_method")
    if count == 1 or method == "greedy":
        return None
    judges = 1 if method == LIMITED else 2
    return ExpertGroups(int(count), int(read.need("topk_group")), judges)


def _layers_of_hf(read: ConfigEntries, layers: int) -> tuple[bool, ...]:
    """Which layers are MoE."""
    if (kinds := read.get("mlp_layer_types")) is not None:
        return tuple(kind == "sparse" for kind in kinds)
    if (listed := read.get("moe_layers")) is not None:
        return tuple(layer in listed for layer in range(layers))
    if (step := read.get("moe_layer_freq", 1)) != 1:
        raise ConfigError(f"{read.where}: moe_layer_freq = {step!r} is not supported")
    first, every = entry(read, FIRST) or 0, entry(read, EVERY) or 1
    last = read.get("moe_layer_end_index", -1)
    last = layers - 1 if last < 0 else last
    plain = read.get("mlp_only_layers", ())
    return tuple(
        first <= layer <= last and (layer + 1) % every == 0 and layer not in plain
        for layer in range(layers)
    )


def clamp(read: ConfigEntries, traits: ExpertTraits) -> ClampedGate | None:
    """Limits of gates and ups in experts; None: there are none."""
    if (usual := traits.clamp) is None:
        return None
    alpha, limit = read.get("swiglu_alpha", usual.alpha), read.get("swiglu_limit", usual.limit)
    return ClampedGate(float(alpha), float(limit))


def have_routers(layers: int, tensors: Collection[str]) -> tuple[bool, ...]:
    """Whether each layer has a router in a GGUF file."""
    return tuple(f"blk.{layer}.ffn_gate_inp.weight" in tensors for layer in range(layers))


GGUF_SCORES: dict[int, ExpertScores] = {1: "softmax", 2: "sigmoid"}


def experts_of_gguf(
    read: ConfigEntries, layers: int, traits: ExpertTraits | None, tensors: Collection[str]
) -> ExpertSizes | None:
    """Read the sizes of MoE layers in a GGUF header. A layer with a router is an MoE."""
    if traits is None or not read.get("expert_count"):
        return None
    width = read.get("expert_feed_forward_length") or read.number("feed_forward_length")
    scores = GGUF_SCORES.get(read.get("expert_gating_func", 0), traits.scores)
    groups = None
    if (count := read.get("expert_group_count", 1)) > 1:
        judges = 2 if scores == "sigmoid" else 1
        groups = ExpertGroups(count, read.need("expert_group_used_count"), judges)
    shared = read.get("expert_shared_feed_forward_length")
    return ExpertSizes(
        count=read.number("expert_count"),
        width=width,
        layers=have_routers(layers, tensors),
        routing=Routing(
            chosen=read.number("expert_used_count"),
            shares_sum_to_one=read.get("expert_weights_norm", traits.sums_in_gguf),
            scores=scores,
            groups=groups,
            scale=read.get("expert_weights_scale") or 1.0,
            of_inputs=traits.shares_of_inputs,
        ),
        shared_width=(shared or width * read.get("expert_shared_count", 1)) if traits.shared else 0,
        clamp=traits.clamp,
    )

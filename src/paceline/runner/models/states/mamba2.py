"""Mamba-2, as Bamba, Granite 4, Falcon-H1 and Nemotron-H have it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from paceline.core.errors import ConfigError
from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.linear_spec import EVERY_BACKEND, LinearSpec, NormSpec
from paceline.runner.models.states.state_sizes import NamedTensors, StateTensor, StateUpdate
from paceline.runner.models.tensor_spec import TensorSpec

LAYER = "mamba"


@dataclass(frozen=True, slots=True)
class GatedNorm:
    """norm(x * silu(gate)) of each of several groups of numbers, or norm(x) * silu(gate).

    weight        [width of all groups]
    gates_first   the first of these
    """

    weight: TensorSpec
    groups: int
    eps: float
    gates_first: bool


@dataclass(frozen=True, slots=True)
class Mamba2Spec:
    """x + output(gated(read + skip * value)), of a state [state_size, head_dim] for each head.

        state = exp(-exp(log_decay) * time) * state + key * time * value
        read  = query @ state

    `time` is softplus(… + time_bias), within limits. Values, keys and queries pass a convolution
    over the last positions and silu. Several consecutive heads of values share a group of queries
    and keys.

    inputs        gates, values, keys, queries and times
    convolution   [channels, 1, positions], of values, keys and queries
    bias          [channels], of the convolution; None: it has none
    log_decay     [heads]
    time_bias     [heads]
    skip          [heads]
    limits        of times
    gated_norm    None: x * silu(gate)
    multipliers   of gates, values, keys, queries and times; none: they are 1
    """

    FEATURE: ClassVar[str] = "mamba2"

    norm: NormSpec
    inputs: LinearSpec
    heads: int
    head_dim: int
    groups: int
    state_size: int
    convolution: TensorSpec
    bias: TensorSpec | None
    log_decay: TensorSpec
    time_bias: TensorSpec
    skip: TensorSpec
    limits: tuple[float, float]
    gated_norm: GatedNorm | None
    output: LinearSpec
    multipliers: tuple[float, ...] = field(default=(), metadata={EVERY_BACKEND: True})

    @property
    def channels(self) -> int:
        """Of values, keys and queries."""
        return self.convolution.shape[0]

    @property
    def kept(self) -> tuple[StateTensor, ...]:
        state = (self.heads, self.state_size, self.head_dim)
        tail = (self.convolution.shape[-1] - 1, self.channels)
        return StateTensor(state, is_recurrent=True), StateTensor(tail, is_recurrent=False)

    @property
    def update(self) -> StateUpdate:
        keys, values = self.groups * self.state_size, self.heads * self.head_dim
        return StateUpdate(self.heads, keys, values)


@dataclass(frozen=True, slots=True)
class Mamba2Sizes:
    """See `Mamba2Spec`.

    positions      of the convolution
    has_norm       there is a gated norm
    gates_first    the norm is after the gate
    multipliers    see `Mamba2Spec`
    layer          what the names of tensors begin with
    """

    width: int
    heads: int
    head_dim: int
    groups: int
    state_size: int
    positions: int
    eps: float
    has_bias: bool
    has_output_bias: bool
    has_conv_bias: bool
    limits: tuple[float, float]
    has_norm: bool = True
    gates_first: bool = True
    layer: str = LAYER
    multipliers: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.heads % self.groups:
            raise ConfigError(
                f"the number of heads of Mamba ({self.heads}) must be a multiple of the number of "
                f"its groups ({self.groups})"
            )

    def describe(self, tensors: NamedTensors, norm: NormSpec) -> Mamba2Spec:
        layer, inner = self.layer, self.heads * self.head_dim
        channels = inner + 2 * self.groups * self.state_size
        bias = gated_norm = None
        if self.has_conv_bias:
            bias = tensors.tensor(f"{layer}.conv1d.bias", "ssm_conv1d.bias", channels)
        if self.has_norm:
            weight = tensors.tensor(f"{layer}.norm.weight", "ssm_norm.weight", inner)
            gated_norm = GatedNorm(weight, self.groups, self.eps, self.gates_first)
        inputs = (inner + channels + self.heads, self.width)
        return Mamba2Spec(
            norm=norm,
            inputs=tensors.linear(f"{layer}.in_proj", "ssm_in", inputs, self.has_bias),
            heads=self.heads,
            head_dim=self.head_dim,
            groups=self.groups,
            state_size=self.state_size,
            convolution=tensors.tensor(
                f"{layer}.conv1d.weight", "ssm_conv1d.weight", channels, 1, self.positions
            ),
            bias=bias,
            log_decay=tensors.tensor(f"{layer}.A_log", "ssm_a", self.heads, is_decay=True),
            time_bias=tensors.tensor(f"{layer}.dt_bias", "ssm_dt.bias", self.heads),
            skip=tensors.tensor(f"{layer}.D", "ssm_d", self.heads),
            limits=self.limits,
            gated_norm=gated_norm,
            output=tensors.linear(
                f"{layer}.out_proj", "ssm_out", (self.width, inner), self.has_output_bias
            ),
            multipliers=self.multipliers,
        )


def mamba2(read: ConfigEntries, layer: str = LAYER) -> Mamba2Sizes:
    """The sizes, of which names of tensors begin with `layer`."""
    heads = read.number("mamba_n_heads", 128)
    dim, inner = read.get("mamba_d_head", "auto"), read.get("mamba_d_ssm")
    if dim == "auto":
        inner = inner or read.number("mamba_expand", 2) * read.number("hidden_size")
        dim = inner // heads
    has_bias = bool(read.get("mamba_proj_bias", False))
    return Mamba2Sizes(
        width=read.number("hidden_size"),
        heads=heads,
        head_dim=dim,
        groups=read.number("mamba_n_groups", 1),
        state_size=read.number("mamba_d_state", 256),
        positions=read.number("mamba_d_conv", 4),
        eps=float(read.get("rms_norm_eps", 1e-5)),
        has_bias=has_bias,
        has_output_bias=bool(read.get("projectors_bias", has_bias)),
        has_conv_bias=bool(read.get("mamba_conv_bias", True)),
        limits=time_limits(read.get("time_step_limit", (0.0, float("inf")))),
        has_norm=read.get("mamba_rms_norm", True),
        gates_first=not read.get("mamba_norm_before_gate", False),
        layer=layer,
        multipliers=tuple(map(float, read.get("ssm_multipliers", ()))),
    )


def time_limits(given: Iterable[Any]) -> tuple[float, float]:
    """Two numbers. Infinity is written as {"__float__": "Infinity"}."""
    least, most = (
        float(one if isinstance(one, int | float) else one["__float__"]) for one in given
    )
    return least, most

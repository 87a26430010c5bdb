"""Gated delta nets, as Qwen3-Next and Qwen3.5 have them."""

from dataclasses import dataclass
from typing import ClassVar

from paceline.core.errors import ConfigError
from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.description.tensors import joined
from paceline.runner.models.linear_spec import LinearSpec, NormSpec
from paceline.runner.models.states.state_sizes import NamedTensors, StateTensor, StateUpdate
from paceline.runner.models.tensor_spec import TensorSpec

LAYER = "linear_attn"


@dataclass(frozen=True, slots=True)
class GatedDeltaSpec:
    """x + output(head_norm(read) * silu(gate)), of a state [key_dim, value_dim] for each head.

        state = exp(decay) * state
        state = state + key * (rate * (value - key @ state))
        read  = query @ state

    Queries, keys and values pass a convolution over the last positions and silu; queries and keys
    then have length 1, and queries are divided by sqrt(key_dim). `rate` is a sigmoid, and `decay`
    is -exp(log_decay) * softplus(… + decay_bias). Several consecutive heads of values share a head
    of queries and keys.

    inputs        queries, keys, values, gates, rates and decays
    by_key_head   outputs of `inputs` are so ordered within each key head: once up to the gates, and
                  once for rates and decays; otherwise over all heads
    convolution   [channels, 1, positions], of queries, keys and values
    log_decay     [value_heads]
    decay_bias    [value_heads]
    head_norm     of what each head reads
    """

    FEATURE: ClassVar[str] = "gated_delta"

    norm: NormSpec
    inputs: LinearSpec
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    by_key_head: bool
    convolution: TensorSpec
    log_decay: TensorSpec
    decay_bias: TensorSpec
    head_norm: NormSpec
    output: LinearSpec

    @property
    def channels(self) -> int:
        """Of queries, keys and values."""
        return self.convolution.shape[0]

    @property
    def kept(self) -> tuple[StateTensor, ...]:
        state = (self.value_heads, self.key_dim, self.value_dim)
        tail = (self.convolution.shape[-1] - 1, self.channels)
        return StateTensor(state, is_recurrent=True), StateTensor(tail, is_recurrent=False)

    @property
    def update(self) -> StateUpdate:
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        return StateUpdate(self.value_heads, keys, values)


@dataclass(frozen=True, slots=True)
class GatedDeltaSizes:
    """See `GatedDeltaSpec`. The convolution covers `positions` positions."""

    width: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    positions: int
    eps: float
    by_key_head: bool

    def __post_init__(self) -> None:
        if self.value_heads % self.key_heads:
            raise ConfigError(
                f"linear_num_value_heads ({self.value_heads}) must be a multiple of "
                f"linear_num_key_heads ({self.key_heads})"
            )

    def describe(self, tensors: NamedTensors, norm: NormSpec) -> GatedDeltaSpec:
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        channels = 2 * keys + values
        parts = {"in_proj_qkvz": channels + values, "in_proj_ba": 2 * self.value_heads}
        if not self.by_key_head:
            parts = {"in_proj_qkv": channels, "in_proj_z": values}
            parts |= {f"in_proj_{name}": self.value_heads for name in "ba"}
        head_norm = tensors.tensor(f"{LAYER}.norm.weight", "ssm_norm.weight", self.value_dim)
        return GatedDeltaSpec(
            norm=norm,
            inputs=joined(
                tensors.linear(f"{LAYER}.{name}", f"ssm_{name}", (outputs, self.width))
                for name, outputs in parts.items()
            ),
            key_heads=self.key_heads,
            value_heads=self.value_heads,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
            by_key_head=self.by_key_head,
            convolution=tensors.tensor(
                f"{LAYER}.conv1d.weight", "ssm_conv1d.weight", channels, 1, self.positions
            ),
            log_decay=tensors.tensor(f"{LAYER}.A_log", "ssm_a", self.value_heads, is_decay=True),
            decay_bias=tensors.tensor(f"{LAYER}.dt_bias", "ssm_dt.bias", self.value_heads),
            head_norm=NormSpec(head_norm, self.eps, 0.0),
            output=tensors.linear(f"{LAYER}.out_proj", "ssm_out", (self.width, values)),
        )


def gated_delta(read: ConfigEntries) -> GatedDeltaSizes:
    """The sizes of Qwen3.5."""
    return _sizes(read, by_key_head=False)


def gated_delta_by_key_head(read: ConfigEntries) -> GatedDeltaSizes:
    """The sizes of Qwen3-Next."""
    return _sizes(read, by_key_head=True)


def _sizes(read: ConfigEntries, by_key_head: bool) -> GatedDeltaSizes:
    return GatedDeltaSizes(
        width=read.number("hidden_size"),
        key_heads=read.number("linear_num_key_heads", 16),
        value_heads=read.number("linear_num_value_heads", 32),
        key_dim=read.number("linear_key_head_dim", 128),
        value_dim=read.number("linear_value_head_dim", 128),
        positions=read.number("linear_conv_kernel_dim", 4),
        eps=float(read.get("rms_norm_eps", 1e-6)),
        by_key_head=by_key_head,
    )

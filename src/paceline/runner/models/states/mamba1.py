"""Mamba-1, as Jamba has it."""

from dataclasses import dataclass
from typing import ClassVar

from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.linear_spec import LinearSpec, NormSpec
from paceline.runner.models.states.state_sizes import NamedTensors, StateTensor
from paceline.runner.models.tensor_spec import TensorSpec

LAYER = "mamba"


@dataclass(frozen=True, slots=True)
class Mamba1Spec:
    """x + output((read + skip * value) * silu(gate)), of a state [state_size] for each channel.

        state = exp(-exp(log_decay) * time) * state + key * time * value
        read  = query · state

    Values pass a convolution over the last positions and silu. Keys and queries, which all channels
    share, are linears of the values and have norms. `time` is softplus(… + time_bias) of a
    linear of a narrow vector, which is a linear of the values with a norm too.

    inputs        values and gates
    convolution   [channels, 1, positions], of values
    bias          [channels], of the convolution; None: it has none
    selection     of values: the narrow vector of times, keys and queries
    times         of the narrow vector
    time_bias     [channels]
    log_decay     [channels, state_size]
    skip          [channels]
    """

    FEATURE: ClassVar[str] = "mamba1"

    norm: NormSpec
    inputs: LinearSpec
    convolution: TensorSpec
    bias: TensorSpec | None
    selection: LinearSpec
    time_norm: NormSpec
    key_norm: NormSpec
    query_norm: NormSpec
    times: LinearSpec
    time_bias: TensorSpec
    log_decay: TensorSpec
    skip: TensorSpec
    output: LinearSpec

    @property
    def kept(self) -> tuple[StateTensor, ...]:
        channels, _, positions = self.convolution.shape
        tail = (positions - 1, channels)
        state = StateTensor(self.log_decay.shape, is_recurrent=True)
        return state, StateTensor(tail, is_recurrent=False)

    @property
    def update(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Mamba1Sizes:
    """See `Mamba1Spec`. The convolution covers `positions` positions."""

    width: int
    channels: int
    state_size: int
    rank: int
    positions: int
    eps: float
    has_bias: bool
    has_conv_bias: bool

    def describe(self, tensors: NamedTensors, norm: NormSpec) -> Mamba1Spec:
        width, channels, size = self.width, self.channels, self.state_size
        bias = None
        if self.has_conv_bias:
            bias = tensors.tensor(f"{LAYER}.conv1d.bias", "ssm_conv1d.bias", channels)

        def its_norm(name: str, dims: int) -> NormSpec:
            stem, gguf = f"{LAYER}.{name}_layernorm", f"ssm_{name}_norm"
            return NormSpec(tensors.tensor(f"{stem}.weight", f"{gguf}.weight", dims), self.eps, 0.0)

        return Mamba1Spec(
            norm=norm,
            inputs=tensors.linear(
                f"{LAYER}.in_proj", "ssm_in", (2 * channels, width), self.has_bias
            ),
            convolution=tensors.tensor(
                f"{LAYER}.conv1d.weight", "ssm_conv1d.weight", channels, 1, self.positions
            ),
            bias=bias,
            selection=tensors.linear(f"{LAYER}.x_proj", "ssm_x", (self.rank + 2 * size, channels)),
            time_norm=its_norm("dt", self.rank),
            key_norm=its_norm("b", size),
            query_norm=its_norm("c", size),
            times=tensors.linear(f"{LAYER}.dt_proj", "ssm_dt", (channels, self.rank)),
            time_bias=tensors.tensor(f"{LAYER}.dt_proj.bias", "ssm_dt.bias", channels),
            log_decay=tensors.tensor(f"{LAYER}.A_log", "ssm_a", channels, size, is_decay=True),
            skip=tensors.tensor(f"{LAYER}.D", "ssm_d", channels),
            output=tensors.linear(f"{LAYER}.out_proj", "ssm_out", (width, channels), self.has_bias),
        )


def mamba1(read: ConfigEntries) -> Mamba1Sizes:
    width, rank = read.number("hidden_size"), read.get("mamba_dt_rank", "auto")
    return Mamba1Sizes(
        width=width,
        channels=read.number("mamba_expand", 2) * width,
        state_size=read.number("mamba_d_state", 16),
        rank=-(-width // 16) if rank == "auto" else rank,
        positions=read.number("mamba_d_conv", 4),
        eps=float(read.get("rms_norm_eps", 1e-6)),
        has_bias=bool(read.get("mamba_proj_bias")),
        has_conv_bias=bool(read.get("mamba_conv_bias", True)),
    )

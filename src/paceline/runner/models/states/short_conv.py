"""Short convolutions, as LFM2 has them."""

from dataclasses import dataclass
from typing import ClassVar

from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.linear_spec import LinearSpec, NormSpec
from paceline.runner.models.states.state_sizes import NamedTensors, StateTensor
from paceline.runner.models.tensor_spec import TensorSpec

LAYER = "conv"


@dataclass(frozen=True, slots=True)
class ShortConvSpec:
    """x + output(after * convolution(before * value)), of inputs before, after and value.

    inputs         before, after and value, each of the width of the residual stream
    convolution    [width, 1, positions]
    bias           [width], of the convolution; None: it has none
    """

    FEATURE: ClassVar[str] = "short_conv"

    norm: NormSpec
    inputs: LinearSpec
    convolution: TensorSpec
    bias: TensorSpec | None
    output: LinearSpec

    @property
    def kept(self) -> tuple[StateTensor, ...]:
        width, _, positions = self.convolution.shape
        return (StateTensor((positions - 1, width), is_recurrent=False),)

    @property
    def update(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class ShortConvSizes:
    """See `ShortConvSpec`. The convolution covers `positions` positions."""

    width: int
    positions: int
    has_bias: bool

    def describe(self, tensors: NamedTensors, norm: NormSpec) -> ShortConvSpec:
        width, bias, stem = self.width, None, f"{LAYER}.conv"
        if self.has_bias:
            bias = tensors.tensor(f"{stem}.bias", "shortconv.conv.bias", width)
        return ShortConvSpec(
            norm=norm,
            inputs=tensors.linear(
                f"{LAYER}.in_proj", "shortconv.in_proj", (3 * width, width), self.has_bias
            ),
            convolution=tensors.tensor(
                f"{stem}.weight", "shortconv.conv.weight", width, 1, self.positions
            ),
            bias=bias,
            output=tensors.linear(
                f"{LAYER}.out_proj", "shortconv.out_proj", (width, width), self.has_bias
            ),
        )


def short_conv(read: ConfigEntries) -> ShortConvSizes:
    return ShortConvSizes(
        width=read.number("hidden_size"),
        positions=read.number("conv_L_cache", 3),
        has_bias=bool(read.get("conv_bias")),
    )

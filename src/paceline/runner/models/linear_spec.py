"""The description of norms and linears, tensor by tensor."""

from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from paceline.core.errors import ConfigError
from paceline.runner.models.tensor_spec import TensorSpec
from paceline.runner.weights.weight_format import WeightFormat

Activation = Literal["silu", "gelu_pytorch_tanh", "relu2", "xielu"]
# In the metadata of fields: one that is no feature, and one without a default that may be None,
# which is a feature.
EVERY_BACKEND, OPTIONAL = "every backend", "optional"


@dataclass(frozen=True, slots=True)
class KVScale:
    """The scale of keys or values in an fp8 KV cache, folded into weights: some are divided by it
    and others multiplied, so that only what is cached changes.

    It is rounded up to a power of two, which changes no digit of a weight. Precision is not lost,
    because fp8 numbers have exponents of their own.
    """

    tensor: TensorSpec  # one number
    divides: bool
    has_bias: bool = True  # whether a bias is scaled too; not where the scale is that of the inputs


@dataclass(frozen=True, slots=True)
class NormSpec:
    """A root-mean-square norm: x / sqrt(mean(x * x) + eps) * (weight + offset) + bias.

    weight   [width]; without a tensor, its width, and all weights are 1
    centred  x is taken minus its mean first, which makes this a layer norm
    """

    weight: TensorSpec | int
    eps: float
    offset: float
    centred: bool = False
    bias: TensorSpec | None = None  # [width]
    scale: KVScale | None = field(default=None, metadata={EVERY_BACKEND: True})

    @property
    def width(self) -> int:
        return self.weight if isinstance(self.weight, int) else self.weight.shape[0]

    @property
    def floor(self) -> float:
        """The smallest length that the norm divides by: see `layers.norm`."""
        return (self.width * self.eps) ** 0.5


@dataclass(frozen=True, slots=True)
class Multiplier:
    """Factors that are folded into the weights and the biases of a linear."""

    weights: float
    biases: float


@dataclass(frozen=True, slots=True)
class LinearSpec:
    """One linear. Its outputs are those of several tensors, side by side."""

    weights: tuple[TensorSpec, ...]  # [outputs, inputs] each
    biases: tuple[TensorSpec, ...] = ()  # [outputs] each: one for every weight, or none
    # The format of every weight, None for plain ones; none: all are plain. Backends decode what
    # they have no kernel for.
    quantized: tuple[WeightFormat | None, ...] = field(default=(), metadata={EVERY_BACKEND: True})
    # The scale that is folded into every weight; none: no scale is.
    folded: tuple[KVScale | Multiplier | None, ...] = field(
        default=(), metadata={EVERY_BACKEND: True}
    )

    def __post_init__(self) -> None:
        parts = (("biases", self.biases), ("formats", self.quantized), ("scales", self.folded))
        for what, given in parts:
            if given and len(given) != len(self.weights):
                raise ConfigError(
                    f"a linear of {len(self.weights)} weights has {len(given)} {what}; it needs "
                    "one for each or none"
                )

    @property
    def name(self) -> str:
        """The name of its first weight."""
        return self.weights[0].name

    @property
    def formats(self) -> tuple[WeightFormat | None, ...]:
        """The format of every weight; None: it is plain."""
        return self.quantized or (None,) * len(self.weights)

    @property
    def scales(self) -> tuple[KVScale | Multiplier | None, ...]:
        """The scale that is folded into every weight, if there is one."""
        return self.folded or (None,) * len(self.weights)

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """All tensors that a checkpoint has for it."""
        pairs = zip(self.weights, self.formats, strict=True)
        stored = (
            (weight,) if format is None else format.stored(weight) for weight, format in pairs
        )
        scales = (scale.tensor for scale in self.folded if isinstance(scale, KVScale))
        return (*chain.from_iterable(stored), *self.biases, *scales)

    @property
    def outputs(self) -> int:
        return sum(weight.shape[0] for weight in self.weights)

    @property
    def inputs(self) -> int:
        return self.weights[0].shape[1]

"""The interfaces of mixers that keep a state of each sequence: descriptions and sizes."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

from paceline.runner.models.linear_spec import LinearSpec, NormSpec
from paceline.runner.models.tensor_spec import Shape, TensorSpec


@dataclass(frozen=True, slots=True)
class StateTensor:
    """A tensor that a layer keeps of each sequence. Recurrent states are float32; the last inputs
    of a convolution have the type of activations."""

    shape: Shape
    is_recurrent: bool


@dataclass(frozen=True, slots=True)
class StateUpdate:
    """How many numbers of a position update a recurrent state [heads, key_dim, value_dim] to
    exp(decay) * state + key * value. Heads may share keys."""

    decays: int
    keys: int
    values: int


class StateSpec(Protocol):
    """A mixer of positions that keeps a state of each sequence instead of keys and values.

    FEATURE   its kind
    norm      of the residual stream, which it reads
    inputs    its first linear
    output    its last linear, which is added to the residual stream
    kept      what it keeps of each sequence
    update    of the recurrent state; None: there is none, or it is updated in another way
    """

    FEATURE: ClassVar[str]

    @property
    def norm(self) -> NormSpec: ...

    @property
    def inputs(self) -> LinearSpec: ...

    @property
    def output(self) -> LinearSpec: ...

    @property
    def kept(self) -> tuple[StateTensor, ...]: ...

    @property
    def update(self) -> StateUpdate | None: ...


class NamedTensors(Protocol):
    """Names the tensors of one layer."""

    def tensor(self, name: str, gguf: str, *shape: int, is_decay: bool = False) -> TensorSpec: ...

    def linear(
        self, name: str, gguf: str, shape: tuple[int, int], has_bias: bool = False
    ) -> LinearSpec: ...


class StateSizes(Protocol):
    """The sizes of a mixer with a state, as config.json gives them."""

    def describe(self, tensors: NamedTensors, norm: NormSpec) -> StateSpec:
        """The mixer of a layer, after the layer's norm."""
        ...


@dataclass(frozen=True, slots=True)
class StateLayers:
    """The layers with states, of sizes that are the same for all.

    layers   whether each layer has a state
    mlps     whether each layer has an MLP
    """

    sizes: StateSizes
    layers: tuple[bool, ...]
    mlps: tuple[bool, ...]

"""The interface of the sizes of layers with states."""

from typing import Protocol

from paceline.runner.models.architecture import LinearSpec, NormSpec, StateSpec
from paceline.runner.models.tensor_spec import TensorSpec


class NamedTensors(Protocol):
    """Names the tensors of one layer."""

    def tensor(self, name: str, gguf: str, *shape: int) -> TensorSpec: ...

    def linear(
        self, name: str, gguf: str, shape: tuple[int, int], has_bias: bool = False
    ) -> LinearSpec: ...


class StateSizes(Protocol):
    """The sizes of a mixer with a state, as config.json gives them."""

    def describe(self, tensors: NamedTensors, norm: NormSpec) -> StateSpec:
        """The mixer of a layer, after the layer's norm."""
        ...

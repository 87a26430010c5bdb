"""What mixers of positions have in common: their protocol and the inputs of a step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from paceline.runner.attention_backend import Prepared
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.norm import Rotation
from paceline.runner.models.rope import Rope
from paceline.runner.state_store import StateRows


@dataclass(frozen=True, slots=True, eq=False)
class LayerContext:
    """Inputs of a step that all layers share."""

    position: Tensor  # [positions]; in its sequence
    rotations: dict[Rope, Rotation]
    kv: KVStore
    cells: Sequence[Tensor]  # by layer: [positions], cells to write in the store
    attention: Prepared
    states: StateRows | None = None  # None: no layer has states
    inputs: Sequence[Tensor] = ()  # by layer: [positions, width], its own inputs

    @property
    def rows(self) -> StateRows:
        """The rows of the step, for layers with states."""
        assert self.states is not None, "a step without states"
        return self.states


class Mixer(Protocol):
    """Attention, or another part of a layer that reads more of a step than one position.

    A layer may need only some positions after it, so a mixer works in two parts.
    """

    def __call__(self, x: Tensor, context: LayerContext) -> Tensor:
        """Everything but the last linear, of each position: [positions, …]. `x` is the residual
        stream after the layer's norm."""
        ...

    def add_to(self, hidden: Tensor, mixed: Tensor) -> None:
        """Add the last linear of what the mixer computed to the residual stream."""
        ...

"""Layers with states, by their descriptions."""

from typing import Any, Protocol

from torch import Tensor

from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import Linear
from paceline.runner.layers.states.gated_delta import GatedDelta
from paceline.runner.layers.states.mamba2 import Mamba2
from paceline.runner.layers.states.short_conv import ShortConv
from paceline.runner.models.states.gated_delta import GatedDeltaSpec
from paceline.runner.models.states.mamba2 import Mamba2Spec
from paceline.runner.models.states.short_conv import ShortConvSpec
from paceline.runner.models.states.state_sizes import StateSpec
from paceline.runner.state_store import StateRows


class StateMixer(Protocol):
    """A layer with a state, as `StateSpec` describes it."""

    output: Linear

    def __call__(self, x: Tensor, rows: StateRows) -> Tensor:
        """Everything but the linear `output`, of what the norm before it returns. Advances the
        states of the rows."""
        ...


MIXERS: dict[type[StateSpec], Any] = {
    GatedDeltaSpec: GatedDelta,
    Mamba2Spec: Mamba2,
    ShortConvSpec: ShortConv,
}
FEATURES = frozenset(
    {
        "layers.attention=none",
        "layers.mlp=none",
        "layers.state",
        *(f"layers.state={kind.FEATURE}" for kind in MIXERS),
    }
)


def state_mixer(factory: LayerFactory[Linear], spec: StateSpec, layer: int) -> StateMixer:
    return MIXERS[type(spec)](factory, spec, layer)

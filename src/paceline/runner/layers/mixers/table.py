"""Mixers by their descriptions."""

from typing import Any

from paceline.runner.layers.altup import Laurel
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import Linear
from paceline.runner.layers.mixers.gated_delta import GatedDelta
from paceline.runner.layers.mixers.kda import KDA
from paceline.runner.layers.mixers.latent_attention import LatentAttention
from paceline.runner.layers.mixers.mamba1 import Mamba1
from paceline.runner.layers.mixers.mamba2 import Mamba2
from paceline.runner.layers.mixers.mixer import Mixer
from paceline.runner.layers.mixers.self_attention import SelfAttention
from paceline.runner.layers.mixers.short_conv import ShortConv
from paceline.runner.models.architecture import AttentionSpec, LaurelSpec, LayerSpec
from paceline.runner.models.latent import LatentAttentionSpec
from paceline.runner.models.states.gated_delta import GatedDeltaSpec
from paceline.runner.models.states.kda import KDASpec
from paceline.runner.models.states.mamba1 import Mamba1Spec
from paceline.runner.models.states.mamba2 import Mamba2Spec
from paceline.runner.models.states.short_conv import ShortConvSpec
from paceline.runner.models.states.state_sizes import StateSpec

WITH_STATE: dict[type[StateSpec], Any] = {
    GatedDeltaSpec: GatedDelta,
    KDASpec: KDA,
    Mamba1Spec: Mamba1,
    Mamba2Spec: Mamba2,
    ShortConvSpec: ShortConv,
}
MIXERS: dict[type, Any] = {
    AttentionSpec: SelfAttention,
    LatentAttentionSpec: LatentAttention,
    LaurelSpec: Laurel,
    **WITH_STATE,
}


def mixers_of(factory: LayerFactory[Linear], spec: LayerSpec, layer: int) -> list[Mixer]:
    """The mixers of a layer, in the order of their sums."""
    return [MIXERS[type(one)](factory, one, layer) for one in spec.mixers]

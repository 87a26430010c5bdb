"""One layer of a decoder in torch: attention and MLP, each added to the residual stream."""

from torch import Tensor

from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.mixture import Mixture
from paceline.runner.layers.mlp import MLP
from paceline.runner.layers.norm import add_product
from paceline.runner.layers.self_attention import LayerContext, SelfAttention
from paceline.runner.models.architecture import LayerSpec, MLPSpec


class DecoderLayer:
    """Adds to the residual stream in place: the sum is part of the product."""

    def __init__(self, factory: LayerFactory, spec: LayerSpec, layer: int) -> None:
        self.attention = SelfAttention(factory, spec.attention, layer)
        mlp = spec.mlp
        self.mlp = MLP(factory, mlp) if isinstance(mlp, MLPSpec) else Mixture(factory, mlp)
        self._input_norm = factory.unscaled_norm(spec.attention.norm.floor)
        self.attention_norm = factory.optional_norm(spec.attention.output_norm)

    def __call__(
        self, hidden: Tensor, context: LayerContext, wanted: Tensor | None = None
    ) -> Tensor:
        """The residual stream after this layer, of all positions or of the wanted ones."""
        seen = self.attend(hidden, context)
        if wanted is not None:
            hidden, seen = hidden[wanted], seen[wanted]
        self.finish(hidden, seen)
        return hidden

    def attend(self, hidden: Tensor, context: LayerContext) -> Tensor:
        """What the positions see, before the last product of attention."""
        return self.attention(self._input_norm(hidden), context)

    def finish(self, hidden: Tensor, seen: Tensor) -> None:
        """Add attention and MLP to the residual stream."""
        add_product(hidden, seen, self.attention.output, self.attention_norm)
        self.mlp.add_to(hidden)

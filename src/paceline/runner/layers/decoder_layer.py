"""One layer of a decoder in torch: attention and MLP, each added to the residual stream."""

from torch import Tensor

from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import Linear
from paceline.runner.layers.mlp import MLP
from paceline.runner.layers.norm import Norm
from paceline.runner.layers.self_attention import LayerContext, SelfAttention
from paceline.runner.models.architecture import LayerSpec


class DecoderLayer:
    """Adds to the residual stream in place: the sum is part of the product."""

    def __init__(self, factory: LayerFactory, spec: LayerSpec, layer: int) -> None:
        self.attention = SelfAttention(factory, spec.attention, layer)
        self.mlp = MLP(factory, spec.mlp)
        self._attention_input_norm = factory.unscaled_norm(spec.attention.norm.floor)
        self._mlp_input_norm = factory.unscaled_norm(spec.mlp.norm.floor)
        self.attention_norm = factory.optional_norm(spec.attention.output_norm)
        self.mlp_norm = factory.optional_norm(spec.mlp.output_norm)

    def __call__(
        self, hidden: Tensor, context: LayerContext, wanted: Tensor | None = None
    ) -> Tensor:
        """The residual stream after this layer, of all positions or of the wanted ones."""
        seen = self.attention(self._attention_input_norm(hidden), context)
        if wanted is not None:
            hidden, seen = hidden[wanted], seen[wanted]
        _add(hidden, seen, self.attention.output, self.attention_norm)
        _add(hidden, self.mlp(self._mlp_input_norm(hidden)), self.mlp.down, self.mlp_norm)
        return hidden


def _add(hidden: Tensor, x: Tensor, product: Linear, norm: Norm | None) -> None:
    if norm is None:
        product.add_to(hidden, x)
    else:
        hidden.add_(norm(product(x)))

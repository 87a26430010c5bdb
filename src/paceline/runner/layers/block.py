"""One layer of a decoder: attention and MLP, each added to the residual stream."""

from torch import Tensor

from paceline.runner.layers.factory import Parts
from paceline.runner.layers.linear import Linear
from paceline.runner.layers.mlp import MLP
from paceline.runner.layers.norm import Norm
from paceline.runner.layers.self_attention import SelfAttention, Step


class Block:
    """Adds to the residual stream in place, so that the sum costs nothing beside the product."""

    def __init__(self, parts: Parts, layer: int) -> None:
        name, has_post_norms = f"model.layers.{layer}", parts.config.traits.post_norms
        # With norms on both sides, HF calls by this name the one after attention.
        before_mlp = "pre_feedforward" if has_post_norms else "post_attention"
        attention_factor = parts.factor(f"{name}.input_layernorm")
        mlp_factor = parts.factor(f"{name}.{before_mlp}_layernorm")
        self._direction = parts.direction(parts.config.width)
        self.attention = SelfAttention(parts, layer, attention_factor)
        self.mlp = MLP(parts, f"{name}.mlp", mlp_factor)
        self.attention_norm = self.mlp_norm = None
        if has_post_norms:
            self.attention_norm = parts.norm(f"{name}.post_attention_layernorm")
            self.mlp_norm = parts.norm(f"{name}.post_feedforward_layernorm")

    def __call__(self, hidden: Tensor, step: Step, wanted: Tensor | None = None) -> Tensor:
        """The residual stream after this layer, of all positions or of those that are wanted."""
        found = self.attention(self._direction(hidden), step)
        if wanted is not None:
            hidden, found = hidden[wanted], found[wanted]
        _add(hidden, found, self.attention.out, self.attention_norm)
        _add(hidden, self.mlp(self._direction(hidden)), self.mlp.down, self.mlp_norm)
        return hidden


def _add(hidden: Tensor, x: Tensor, product: Linear, norm: Norm | None) -> None:
    if norm is None:
        product.add_to(hidden, x)
    else:
        hidden.add_(norm(product(x)))

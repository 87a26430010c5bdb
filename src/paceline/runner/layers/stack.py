"""All layers of a decoder in torch, one after the other."""

import torch
from torch import Tensor

from paceline.runner.attention.backend import Prepared
from paceline.runner.batch import Batch
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.decoder_layer import DecoderLayer
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.layer_inputs import LayerInputs
from paceline.runner.layers.rotary import Rotation
from paceline.runner.layers.self_attention import LayerContext
from paceline.runner.models.architecture import LayerSpec
from paceline.runner.models.backend_support import BackendSupport, Values
from paceline.runner.models.rope import Rope

# The store has one shape for all layers.
STORED: dict[str, Values] = {
    "number of heads of keys": lambda layer: [layer.attention.kv_heads],
    "size of heads": lambda layer: [layer.attention.head_dim],
}
TORCH = BackendSupport(
    backend="torch",
    features=frozenset(
        {
            "embedding_scale",
            "logit_cap",
            "layers.attention.qkv.biases",
            "layers.attention.head_norms",
            "layers.attention.window",
            "layers.attention.score_cap",
            "layers.attention.output.biases",
            "layers.attention.output_norm",
            "layers.attention.sinks",
            "layers.mlp.activation=gelu_pytorch_tanh",
            "layers.mlp.gate_up.biases",
            "layers.mlp.down.biases",
            "layers.mlp.output_norm",
            "layers.mlp=mixture",
            "layers.mlp.router.biases",
            "layers.mlp.experts.gate_up.biases",
            "layers.mlp.experts.down.biases",
            "layers.mlp.clamp",
            "layers.attention.rope.axes",
            "vision",
            "vision=siglip",
            "vision=qwen",
        }
    ),
    one_value=STORED,
)


class TorchStack:
    """The layers in torch: the reference for every other implementation.

    After the attention of the last layer, positions that are not wanted are left out.
    """

    def __init__(self, factory: LayerFactory, layers: tuple[LayerSpec, ...]) -> None:
        self._dtype = factory.dtype
        self.ropes = {
            rope: torch.tensor((rope.frequencies, rope.amplitudes), device=factory.device)
            for rope in dict.fromkeys(spec.attention.rope for spec in layers)
        }  # [2, head_dim / 2] each
        self._axes = {
            rope: torch.tensor(rope.axes, device=factory.device) for rope in self.ropes if rope.axes
        }  # [head_dim / 2] each
        self.layers = [DecoderLayer(factory, spec, layer) for layer, spec in enumerate(layers)]

    def __call__(
        self,
        hidden: Tensor,
        batch: Batch,
        kv: KVStore,
        attention: Prepared,
        wanted: Tensor | None = None,
        inputs: LayerInputs | None = None,
    ) -> Tensor:
        """The residual stream after all layers. The layers overwrite `hidden`."""
        context = self.context(batch, kv, attention)
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            if inputs is not None:
                inputs.keep(number, hidden)
            hidden = layer(hidden, context, wanted if number == last else None)
        return hidden

    def context(self, batch: Batch, kv: KVStore, attention: Prepared) -> LayerContext:
        """What all layers read in a step."""
        rotations = {
            rope: Rotation.of(self._turned(rope, batch), tensor, self._dtype)
            for rope, tensor in self.ropes.items()
        }
        return LayerContext(rotations, kv, kv.cells(batch.write_cell).unbind(), attention)

    def _turned(self, rope: Rope, batch: Batch) -> Tensor:
        """What pairs turn by: [positions], or [positions, pairs]."""
        if rope not in self._axes or batch.coordinates is None:
            return batch.position
        return batch.coordinates[:, self._axes[rope]]

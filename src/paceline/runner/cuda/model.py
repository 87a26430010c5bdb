"""A decoder of any architecture on a GPU, in few fused kernels."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paceline.runner.adapters.targets import AdapterTargets
from paceline.runner.attention_backend import Prepared
from paceline.runner.batch import Batch
from paceline.runner.cuda.adapters import AdapterRoom, AdapterSizes, Beside, nowhere
from paceline.runner.cuda.coordinates import RotaryTable
from paceline.runner.cuda.gemm.one_row import takes
from paceline.runner.cuda.kernels.layers import (
    HeadRotation,
    cap_logits,
    normalized,
    rotate_and_store,
)
from paceline.runner.cuda.linears import CudaLinear, NormedLinear, residual_linear
from paceline.runner.cuda.moe import CudaMoE
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.decoder_layer import STORED
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.norm import LayerInputs
from paceline.runner.models.architecture import DecoderSpec, LayerSpec, MLPSpec, attentions
from paceline.runner.models.describe import describe
from paceline.runner.models.layer_groups import BackendSupport
from paceline.runner.models.rope import Rope
from paceline.runner.parallel.divide import divide
from paceline.runner.parallel.group import RankGroup, decides
from paceline.runner.vision.image_encoder import image_encoder
from paceline.runner.vision.spec import TOWER_FEATURES
from paceline.runner.weights.checkpoint import Checkpoint, verify

# Attention in a graph has one shape for all layers, and so has the store.
CUDA = BackendSupport(
    backend="CUDA",
    features=frozenset(
        {
            "embedding_scale",
            "logit_scale",
            "logit_cap",
            "layers.attention.qkv.biases",
            "layers.attention.norm=none",
            "layers.attention.rope.axes",
            "layers.attention.head_norms",
            "layers.attention.window",
            "layers.attention.score_cap",
            "layers.attention.output.biases",
            "layers.attention.output_norm",
            "layers.attention.sinks",
            "layers.mlp.norm=none",
            "layers.mlp.activation=gelu_pytorch_tanh",
            "layers.mlp.gate_up.biases",
            "layers.mlp.down.biases",
            "layers.mlp.output_norm",
            "layers.mlp=moe",
            "layers.mlp.router.biases",
            "layers.mlp.experts.gate_up.biases",
            "layers.mlp.experts.down.biases",
            "layers.mlp.clamp",
            "layers.mlp.routing.scores=sigmoid",
            "layers.mlp.routing.groups",
            "layers.mlp.routing.scale",
            "layers.mlp.correction",
            "layers.mlp.shared",
            "layers.mlp.shared.gate",
        }
    )
    | TOWER_FEATURES,
    one_value={**STORED, "number of heads": lambda layer: [one.heads for one in attentions(layer)]},
    instead='use device="cpu"',
)


@dataclass(frozen=True, slots=True, eq=False)
class CudaLayerContext:
    """What all layers read in one step."""

    position: Tensor  # [positions]
    cells: Sequence[Tensor]  # by group: [positions]; index of the first value that is written
    kv: KVStore
    attention: Prepared
    adapters: Tensor | None  # [positions]; index of each adapter; None: no position has one
    rotary: Mapping[RotaryTable, Tensor]  # by table, for coordinates: [positions, 2, head_dim / 2]


class CudaLayer:
    """One layer. Its linears add to the residual stream by themselves."""

    def __init__(
        self,
        factory: LayerFactory[CudaLinear],
        spec: LayerSpec,
        layer: int,
        tables: Mapping[Rope, RotaryTable],
        beside: Beside = nowhere,
    ) -> None:
        attention, mlp = spec.attention, spec.mlp
        assert attention is not None and mlp is not None, "CUDA has no such feature"
        rotary = tables[attention.rope]
        self._attention, self._layer = attention, layer
        self._qkv = NormedLinear(factory.qkv(attention), attention.norm, beside("qkv"))
        output = attention.output, attention.output_norm
        self._out = residual_linear(factory, *output, beside("output"))
        is_plain = isinstance(mlp, MLPSpec)
        self._mlp = CudaMLP(factory, mlp, beside) if is_plain else CudaMoE(factory, mlp)
        self._sinks = None if attention.sinks is None else factory.read(attention.sinks)  # [heads]
        self._rotary, self._rotation = rotary, HeadRotation(rotary.by_position, None, 0.0)
        if attention.head_norms is not None:
            factor = factory.head_factor(attention, attention.head_norms).to(factory.dtype)
            self._rotation = HeadRotation(rotary.by_position, factor, attention.head_norms.floor)

    def kernels(self) -> dict[str, str]:
        """Which kernels compute the linears of the layer, by rows."""
        return {"qkv": str(self._qkv), "output": str(self._out), **self._mlp.kernels()}

    def __call__(
        self, hidden: Tensor, step: CudaLayerContext, wanted: Tensor | None = None
    ) -> Tensor:
        """The residual stream after this layer, of all positions or of the wanted ones."""
        n, attention, spec = len(hidden), step.attention, self._attention
        how = self._layer, spec.window, spec.scale, spec.score_cap, self._sinks
        adapters, is_few = step.adapters, takes(*hidden.shape) and step.adapters is None
        # The kernel that rotates follows a linear that is ordered, as those after norms are.
        rotating = attention if is_few and self._qkv.is_normed and attention.rotates else None
        rotation, by_row = self._rotation, step.rotary.get(self._rotary)
        if by_row is not None:
            rotation = replace(rotation, cos_sin=by_row, is_by_row=True)
        found, late = self._qkv(hidden, adapters)
        qkv = found.view(n, -1, spec.head_dim)
        if rotating is not None:
            seen = rotating.attend_new(qkv, rotation, *how)
        else:
            cells = step.cells[step.kv.groups.group[self._layer]]
            rotate_and_store(qkv, rotation, late, step.position, cells, step.kv, self._layer)
            seen = attention.attend(qkv[:, : spec.heads], *how)
        seen = seen.view(n, -1)
        if wanted is not None:
            hidden, seen = hidden.index_select(0, wanted), seen.index_select(0, wanted)
            if not len(wanted):
                return hidden
            adapters = None if adapters is None else adapters.index_select(0, wanted)
        self._out(hidden, seen, adapters)
        self._mlp.add_to(hidden, adapters)
        return hidden

    def store(self, hidden: Tensor, position: Tensor, cells: Tensor, kv: KVStore) -> None:
        """Write keys and values of positions [n] to cells of the store [n], without attention."""
        found, late = self._qkv(hidden, None)
        qkv = found.view(len(hidden), -1, self._attention.head_dim)
        rotate_and_store(qkv, self._rotation, late, position, cells, kv, self._layer)


class CudaMLP:
    """The gated MLP."""

    def __init__(
        self, factory: LayerFactory[CudaLinear], spec: MLPSpec, beside: Beside = nowhere
    ) -> None:
        gate_up = factory.linear(spec.gate_up, spec.norm)
        self._gate_up = NormedLinear(gate_up, spec.norm, beside("gate_up"), is_gated=True)
        self._down = residual_linear(factory, spec.down, spec.output_norm, beside("down"))
        self._is_silu = spec.activation == "silu"

    def kernels(self) -> dict[str, str]:
        return {"gate_up": str(self._gate_up), "down": str(self._down)}

    def add_to(self, hidden: Tensor, adapters: Tensor | None = None) -> None:
        """Add the MLP of the residual stream to it."""
        self._down(hidden, self._gate_up.gated(hidden, self._is_silu, adapters), adapters)


class CudaModel:
    """Weights on a GPU in their final form. `forward` changes only the KV store.

    In a model that reads images, the table of token embeddings goes on with `image_table`, whose
    rows have ids from `first_image_id` on. `image_tokens` are the tokens that they stand for.
    """

    def __init__(
        self,
        factory: LayerFactory[CudaLinear],
        spec: DecoderSpec,
        max_model_len: int,
        image_rows: int = 0,
        adapters: AdapterSizes | None = None,
    ) -> None:
        config, group = factory.checkpoint.config, factory.group
        self.config = config if group is None else group.shard.config(config)  # of this rank
        self.dtype, self.group = factory.dtype, group
        self.adapters: AdapterRoom | None = None  # None: it has no room for adapters
        if adapters is not None:
            self.adapters = AdapterRoom(AdapterTargets(factory, spec), adapters)
        scale = factory.embedding_scale(spec)
        table = factory.read(spec.embedding).to(factory.dtype).mul_(scale)
        self.images = image_encoder(factory, spec)  # None: the model has no images
        self.first_image_id, ids = self.config.vocab, len(table)
        rows = 0 if self.images is None else image_rows
        self.image_tokens = table.new_zeros(rows, dtype=torch.int32)
        if rows and decides(group):
            table = torch.cat((table, table.new_zeros(rows, table.shape[1])))
        self._embedding, self._embed = table, factory.embedding(table, ids)
        rotary = {
            rope: RotaryTable(rope, max_model_len + 1, factory.device)
            for rope in dict.fromkeys(one.rope for one in attentions(spec.layers))
        }
        self._rotary = tuple(rotary.values())
        self._layers = [
            CudaLayer(factory, one, layer, rotary, self._beside(layer))
            for layer, one in enumerate(spec.layers)
        ]
        self._floor, self._norm = spec.norm.floor, factory.norm(spec.norm)
        self._head = factory.head(spec.head, spec.norm, spec.logit_scale)
        self._logit_cap = spec.logit_cap

    @staticmethod
    def load(
        checkpoint: Checkpoint,
        max_model_len: int,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cuda",
        image_rows: int = 0,
        adapters: AdapterSizes | None = None,
        group: RankGroup | None = None,
    ) -> "CudaModel":
        """Load weights, with room for so many embeddings of images, and for adapters. With a
        group, the weights are the part of one rank."""
        spec = describe(checkpoint.config, max_model_len)
        CUDA.require(spec)
        verify(checkpoint)
        if group is not None:
            spec = divide(spec, group.shard)
        with torch.inference_mode():
            factory = LayerFactory(checkpoint, dtype, device, CudaLinear, group)
            return CudaModel(factory, spec, max_model_len, image_rows, adapters)

    def kernels(self) -> list[str]:
        """Which kernels compute the linears of all layers, by rows."""
        found = Counter(
            f"{linear} {kernels}"
            for layer in self._layers
            for linear, kernels in layer.kernels().items()
        )
        return [f"{count} x {text}" for text, count in found.items()]

    def _beside(self, layer: int) -> Beside:
        return nowhere if self.adapters is None else self.adapters.beside(layer)

    @torch.inference_mode()
    def forward(
        self,
        batch: Batch,
        cells: Tensor,
        kv: KVStore,
        attention: Prepared,
        wanted: Tensor | None = None,
        inputs: LayerInputs | None = None,
    ) -> Tensor:
        """Return hidden states of every position, or of the wanted ones in their order. Keys and
        values of all positions are in the store afterwards, in these cells [groups, positions],
        and what some layers read in `inputs`; the number of layers means the output of the last
        one."""
        hidden = self._embed(batch.tokens)
        rotary = self._rotary_of(batch.coordinates)
        step = CudaLayerContext(
            batch.position, cells.unbind(), kv, attention, batch.adapters, rotary
        )
        last, output = len(self._layers) - 1, len(self._layers)
        is_kept = inputs is not None and output in inputs.layers
        early = None if is_kept else wanted  # wanted after attention of the last layer
        for number, layer in enumerate(self._layers):
            if inputs is not None:
                inputs.keep(number, hidden)
            hidden = layer(hidden, step, early if number == last else None)
        if inputs is None or not is_kept:
            return hidden
        inputs.keep(output, hidden)
        return hidden if wanted is None else hidden.index_select(0, wanted)

    def _rotary_of(self, coordinates: Tensor | None) -> Mapping[RotaryTable, Tensor]:
        """Rotary cos/sin of positions by table, where they depend on coordinates."""
        if coordinates is None:
            return {}
        found = ((table, table.of(coordinates)) for table in self._rotary)
        return {table: cos_sin for table, cos_sin in found if cos_sin is not None}

    def plain_tokens(self, tokens: Tensor) -> Tensor:
        """The tokens of positions [n]; for positions of images, those of the prompt."""
        if not len(self.image_tokens):
            return tokens
        row = (tokens - self.first_image_id).clamp(min=0)
        instead = self.image_tokens.index_select(0, row)
        return torch.where(tokens < self.first_image_id, tokens, instead)

    @property
    def image_table(self) -> Tensor:
        """Room for embeddings of images, [image_rows, width]; rank 0 has it for all ranks."""
        ranks = 1 if self.group is None else self.group.shard.size
        return self._embedding[self.config.vocab // ranks :]

    def plain_embedding(self) -> Tensor:
        """The embedding of every token id of this rank, as the residual stream begins, [vocab,
        width]; then those of images."""
        return self._embedding

    @torch.inference_mode()
    def normed(self, hidden: Tensor) -> Tensor:
        """Return hidden states [n, width] after the last norm: what embeddings are made of."""
        return self._norm(hidden)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [n, vocab] in the type of the model; [n, 0] on ranks that do not sample."""
        logits = self._head(normalized(hidden, self._floor))
        if self._logit_cap is not None and logits.shape[1]:
            cap_logits(logits, self._logit_cap)
        return logits

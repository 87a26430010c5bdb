"""A decoder of any architecture on a GPU, in few fused kernels."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial

import torch
from torch import Tensor

from paceline.runner.adapters.targets import AdapterTargets
from paceline.runner.attention_backend import Prepared
from paceline.runner.batch import Batch
from paceline.runner.chunked_attention import InChunks
from paceline.runner.cuda.adapters import AdapterRoom, AdapterSizes, Beside, nowhere
from paceline.runner.cuda.coordinates import RotaryTable
from paceline.runner.cuda.decoder_layer import CudaLayer
from paceline.runner.cuda.deep_images import DeepImages
from paceline.runner.cuda.kernels.dry_run import present
from paceline.runner.cuda.kernels.layers import cap_logits, normalized
from paceline.runner.cuda.linears import INVARIANT, CudaLinear, kernel_norm
from paceline.runner.cuda.mixers.mixer import CudaLayerContext
from paceline.runner.cuda.states.mixers import FEATURES as STATE_FEATURES
from paceline.runner.cuda.states.rows import CudaStateRows
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.norm import LayerInputs
from paceline.runner.layers.per_layer_input import TokenInputs
from paceline.runner.models.architecture import (
    DecoderSpec,
    LayerSpec,
    PerLayerInputs,
    attentions,
    parts_of,
)
from paceline.runner.models.describe import describe
from paceline.runner.models.layer_groups import BackendSupport
from paceline.runner.models.rope import Rope
from paceline.runner.parallel.divide import divide
from paceline.runner.parallel.group import RankGroup, decides
from paceline.runner.vision.image_encoder import image_encoder, token_reader
from paceline.runner.vision.spec import TOWER_FEATURES
from paceline.runner.weights.checkpoint import Checkpoint, verify
from paceline.runner.weights.renewal import Blueprint, WeightPart

# Attention in a graph has so many heads of queries in all layers.
CUDA = BackendSupport(
    backend="CUDA",
    features=frozenset(
        {
            "embedding_scale",
            "logit_scale",
            "logit_cap",
            "chunk",
            "norm.centred",
            "norm.bias",
            "inputs",
            "layers.parallel",
            "layers.scale",
            "layers.input",
            "layers.input.activation=gelu_pytorch_tanh",
            "layers.attention=none",
            "layers.latent",
            "layers.latent=mla",
            "layers.latent.query_latent",
            "layers.latent.query_latent.linear.biases",
            "layers.latent.latent.biases",
            "layers.latent.output.biases",
            "layers.attention.qkv.biases",
            "layers.attention.norm=none",
            "layers.attention.norm.centred",
            "layers.attention.norm.bias",
            "layers.attention.rope.axes",
            "layers.attention.head_norms",
            "layers.attention.head_norms.whole",
            "layers.attention.head_norms.rotated",
            "layers.attention.value_norm",
            "layers.attention.gated",
            "layers.attention.reads",
            "layers.attention.growth",
            "layers.attention.window",
            "layers.attention.score_cap",
            "layers.attention.output.biases",
            "layers.attention.output_norm",
            "layers.attention.sinks",
            "layers.mlp.norm=none",
            "layers.mlp.norm.centred",
            "layers.mlp.norm.bias",
            "layers.mlp.gated",
            "layers.mlp.xielu",
            "layers.mlp.activation=gelu_pytorch_tanh",
            "layers.mlp.activation=relu2",
            "layers.mlp.activation=xielu",
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
            "layers.mlp.routing.of_inputs",
            "layers.mlp.correction",
            "layers.mlp.shared",
            "layers.mlp.shared.gate",
            "layers.mlp.shared.norm",
            "layers.mlp.shared.output_norm",
            "layers.mlp.router_scale",
            "layers.mlp.expert_scales",
            "layers.mlp.experts_norm",
            "layers.mlp.gated_experts",
            "layers.mlp.latent",
            "vision.deep",
            "vision.reads_itself=always",
            "vision.reads_itself=windowed",
        }
    )
    | TOWER_FEATURES
    | STATE_FEATURES,
    one_value={"number of heads": lambda layer: [one.heads for one in attentions(layer)]},
    instead='use device="cpu"',
)

ALIKE = 2  # layers of a kind that a dry run computes


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
        table = embedding(factory, spec)
        self.images = image_encoder(factory, spec)  # None: the model has no images
        self.first_image_id, ids = self.config.vocab, len(table)
        rows = 0 if self.images is None else image_rows
        self.image_tokens = table.new_zeros(rows, dtype=torch.int32)
        if rows and decides(group):
            table = torch.cat((table, table.new_zeros(rows, table.shape[1])))
        self._embedding, self._embed = table, factory.embedding(table, ids)
        self.deep_images = deep_images(factory, spec, rows)
        self._inputs = None if spec.inputs is None else token_inputs(factory, spec.inputs)
        self._rotary = {
            rope: RotaryTable(rope, max_model_len + 1, factory.device)
            for rope in dict.fromkeys(parts_of(spec.layers, Rope))
        }
        self._layers = [
            CudaLayer(factory, one, layer, self._rotary, self._beside(layer))
            for layer, one in enumerate(spec.layers)
        ]
        self._head = CudaHead(factory, spec)
        self._blueprint = Blueprint(factory, spec)

    @property
    def is_invariant(self) -> bool:
        """Have rows the same bits in any company?"""
        return self._blueprint.factory.is_invariant

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
        factory = LayerFactory(checkpoint, dtype, device, CudaLinear, group)
        return CudaModel.built(factory, max_model_len, image_rows, adapters)

    @staticmethod
    def invariant(
        checkpoint: Checkpoint,
        max_model_len: int,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cuda",
        image_rows: int = 0,
        adapters: AdapterSizes | None = None,
        group: RankGroup | None = None,
    ) -> "CudaModel":
        """The same, with kernels whose rows have the same bits in any company."""
        build = partial(CudaLinear, kinds=INVARIANT)
        factory = LayerFactory(checkpoint, dtype, device, build, group, is_invariant=True)
        return CudaModel.built(factory, max_model_len, image_rows, adapters)

    @staticmethod
    def built(
        factory: LayerFactory[CudaLinear],
        max_model_len: int,
        image_rows: int,
        adapters: AdapterSizes | None,
    ) -> "CudaModel":
        """Load weights with the linears of a factory."""
        spec = describe(factory.checkpoint.config, max_model_len)
        CUDA.require(spec)
        verify(factory.checkpoint)
        if factory.group is not None:
            spec = divide(spec, factory.group.shard)
        with torch.inference_mode():
            return CudaModel(factory, spec, max_model_len, image_rows, adapters)

    @cached_property
    def _various(self) -> list[int]:
        """Numbers of layers that stand for all of them in a dry run."""
        return various(self._blueprint.spec.layers, [one.kernels() for one in self._layers])

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
        attention = attention if self.config.chunk is None else InChunks(attention)
        rotary = self._rotary_of(batch.coordinates)
        own = () if self._inputs is None else self._inputs(batch.tokens, hidden).unbind(1)
        step = CudaLayerContext(
            *(batch.position, cells.unbind(), kv, attention, batch.adapters, rotary, own),
            states=CudaStateRows.of(batch),
        )
        last, output = len(self._layers) - 1, len(self._layers)
        numbers = range(output) if present() is None else self._various
        is_kept = inputs is not None and output in inputs.layers
        early = None if is_kept else wanted  # wanted after attention of the last layer
        for number in numbers:
            if self.deep_images is not None:
                self.deep_images.add_before(number, hidden, batch.tokens)
            if inputs is not None:
                inputs.keep(number, hidden)
            hidden = self._layers[number](hidden, step, early if number == last else None)
        if inputs is None or not is_kept:
            return hidden
        inputs.keep(output, hidden)
        return hidden if wanted is None else hidden.index_select(0, wanted)

    def _rotary_of(self, coordinates: Tensor | None) -> Mapping[RotaryTable, Tensor]:
        """Rotary cos/sin of positions by table, where they depend on coordinates."""
        if coordinates is None:
            return {}
        found = ((table, table.of(coordinates)) for table in self._rotary.values())
        return {table: cos_sin for table, cos_sin in found if cos_sin is not None}

    def weight_parts(self, checkpoint: Checkpoint | None) -> Iterator[WeightPart]:
        """See `Renewable`. The model has no room for adapters."""
        factory, spec = self._blueprint.of(checkpoint), self._blueprint.spec
        tokens = self._embedding[: spec.embedding.shape[0]]
        yield WeightPart("embedding", tokens, lambda: embedding(factory, spec))
        if (inputs := spec.inputs) is not None:
            yield WeightPart("inputs", self._inputs, lambda: token_inputs(factory, inputs))
        for number, (layer, one) in enumerate(zip(self._layers, spec.layers, strict=True)):
            build = partial(CudaLayer, factory, one, number, self._rotary)
            yield WeightPart(f"layers.{number}", layer, build, self._rotary)
        yield WeightPart("head", self._head, lambda: CudaHead(factory, spec))
        yield WeightPart("images", self.images, lambda: image_encoder(factory, spec))

    def renewed(self, checkpoint: Checkpoint) -> None:
        """See `Renewable`."""
        if self.images is not None:
            factory = self._blueprint.of(checkpoint)
            self.images.token = token_reader(factory, self._blueprint.spec)

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
        return self._head.norm(hidden)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [n, vocab] in the type of the model; [n, 0] on ranks that do not sample."""
        return self._head(hidden)


def various(specs: Sequence[LayerSpec], kernels: Sequence[Mapping[str, str]]) -> list[int]:
    """Numbers of layers that launch every kernel that all of them launch: two of those that differ
    in nothing but the names of their tensors, and the last one."""
    seen: Counter[str] = Counter()
    found: list[int] = []
    for number, (spec, names) in enumerate(zip(specs, kernels, strict=True)):
        kind = re.sub(r"\.\d+\.", ".", f"{spec} {names}")
        seen[kind] += 1
        if seen[kind] <= ALIKE or number == len(specs) - 1:
            found.append(number)
    return found


class CudaHead:
    """The last norm, and the logits."""

    def __init__(self, factory: LayerFactory[CudaLinear], spec: DecoderSpec) -> None:
        self.norm, self._before = factory.norm(spec.norm), kernel_norm(factory, spec.norm)
        self._linear = factory.head(spec.head, spec.norm, spec.logit_scale)
        self._cap = spec.logit_cap

    def __call__(self, hidden: Tensor) -> Tensor:
        logits = self._linear(self._before(hidden))
        if self._cap is not None and logits.shape[1]:
            cap_logits(logits, self._cap)
        return logits


def embedding(factory: LayerFactory[CudaLinear], spec: DecoderSpec) -> Tensor:
    """The scaled embeddings of this rank's token ids, [vocab, width]."""
    table = factory.read(spec.embedding).to(factory.dtype)
    return table.mul_(factory.embedding_scale(spec))


def token_inputs(factory: LayerFactory[CudaLinear], spec: PerLayerInputs) -> TokenInputs:
    """What layers read of the tokens."""
    factor = factory.factor(spec.norm)
    return TokenInputs(factory, spec, partial(normalized, floor=spec.norm.floor, factor=factor))


def deep_images(
    factory: LayerFactory[CudaLinear], spec: DecoderSpec, rows: int
) -> DeepImages | None:
    """The table of embeddings for layers after the first; None: they read no images."""
    if spec.vision is None or spec.vision.levels == 1 or not rows:
        return None
    size = rows, spec.vision.levels - 1, spec.width
    table = torch.zeros(size, dtype=factory.dtype, device=factory.device)
    return DeepImages(table, spec.embedding.whole_shape[0], factory.sum_over_ranks())

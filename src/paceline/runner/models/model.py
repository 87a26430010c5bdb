"""A decoder of any architecture: token ids in, hidden states and logits out."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.adapters.adapted_stack import AdaptedStack
from paceline.runner.adapters.targets import AdapterTargets
from paceline.runner.adapters.weights import AdapterWeights
from paceline.runner.attention_backend import Attention
from paceline.runner.batch import Batch
from paceline.runner.chunked_attention import ChunkedStep
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.decoder_layer import TorchStack
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import Linear
from paceline.runner.layers.linear_choice import FLOAT32, LinearBuilder
from paceline.runner.layers.mixers.self_attention import SelfAttention
from paceline.runner.layers.native_linear import NativeLinear
from paceline.runner.layers.native_stack import NATIVE, NativeStack
from paceline.runner.layers.norm import LayerInputs
from paceline.runner.layers.one_by_one import one_by_one
from paceline.runner.layers.packing import PackedStore
from paceline.runner.layers.torch_features import TORCH
from paceline.runner.models.architecture import DecoderSpec
from paceline.runner.models.describe import describe
from paceline.runner.parallel.divide import divide
from paceline.runner.parallel.group import RankGroup
from paceline.runner.vision.image_encoder import image_encoder, token_reader
from paceline.runner.weights.checkpoint import Checkpoint, verify
from paceline.runner.weights.renewal import Blueprint, WeightPart

WHOLE_IMAGES = (
    "batch_invariant computes positions of this model one by one, and positions of its images read "
    "each other; remove batch_invariant"
)


class Model:
    """Weights in their final form. `forward` changes only the KV store.

    Of an invariant model, the results of a position have the same bits alone, beside other rows,
    and in any chunk: if its kernels do not give that, it computes positions one by one.
    """

    def __init__(
        self, factory: LayerFactory[Linear], spec: DecoderSpec, is_invariant: bool = False
    ) -> None:
        config, group = factory.checkpoint.config, factory.group
        self.group = group  # None: there is one rank
        self.config = config if group is None else group.shard.config(config)  # of this rank
        self._embedding = factory.embedding_table(spec.embedding)  # [vocab, width]
        self._embed = factory.embedding(self._embedding)
        self._embedding_scale = factory.embedding_scale(spec)
        stack = TorchStack(factory, spec)
        # The kernel for all layers does not stop for the other ranks.
        is_one_call = has_native_linears(stack) and group is None and NATIVE.supports(spec) is None
        self._layers = NativeStack(stack, spec.layers) if is_one_call else stack
        if is_invariant and self.config.reads_images_whole and not is_one_call:
            raise ConfigError(WHOLE_IMAGES)
        self.adapters: dict[int, AdapterWeights] = {}  # by index
        self._adapted = AdaptedStack(stack, self.adapters)
        self.targets = AdapterTargets(factory, spec)
        self._norm = factory.norm(spec.norm)
        self._head = factory.head(spec.head)
        self._blueprint = Blueprint(factory, spec)
        self.is_invariant = is_invariant
        self.images = image_encoder(factory, spec)  # None: the model has no images
        self._shared = factory.share_among_ranks()

    @staticmethod
    def load(
        checkpoint: Checkpoint,
        dtype: torch.dtype = torch.float32,
        weights: str = FLOAT32,
        max_model_len: int | None = None,
        packed: PackedStore | None = None,
        group: RankGroup | None = None,
        is_invariant: bool = False,
    ) -> "Model":
        """Load weights. The longest sequence is `max_model_len`, or what the model is for.

        `weights` names the kernels of linears. With `packed`, the weights of native ones come from
        a cache if they are there. With a group, the weights are the part of one rank.
        """
        spec = describe(checkpoint.config, max_model_len)
        TORCH.require(spec)
        verify(checkpoint)
        if group is not None:
            spec = divide(spec, group.shard)
        with torch.inference_mode():
            linears = LinearBuilder.of(weights, packed, is_invariant)
            factory = LayerFactory(checkpoint, dtype, "cpu", linears, group)
            model = Model(factory, spec, is_invariant)
        if packed is not None:
            packed.save()
            # The cache of packed weights is of these files.
            again = replace(factory, build=LinearBuilder.of(weights, None, is_invariant))
            model._blueprint = Blueprint(again, spec)
        return model

    @torch.inference_mode()
    def forward(
        self,
        batch: Batch,
        kv: KVStore,
        attention: Attention,
        wanted: Tensor | None = None,
        inputs: LayerInputs | None = None,
    ) -> Tensor:
        """Return hidden states of every position, or of the wanted ones in their order. Keys and
        values of every position are in the store afterwards, and what some layers read in
        `inputs`; the number of layers means the output of the last one."""
        if not self.is_invariant or self._keeps_apart(batch, attention):
            return self._forward(batch, kv, attention, wanted, inputs)

        def alone(one: Batch, at: Tensor | None, kept: LayerInputs | None) -> Tensor:
            return self._forward(one, kv, attention, at, kept)

        return one_by_one(alone, batch, kv.block_size, wanted, inputs)

    def _keeps_apart(self, batch: Batch, attention: Attention) -> bool:
        """Does one call for all positions give each the bits that it has alone?"""
        is_native = isinstance(self._layers, NativeStack) and batch.adapters is None
        return is_native and attention.support.is_invariant

    def _forward(
        self,
        batch: Batch,
        kv: KVStore,
        attention: Attention,
        wanted: Tensor | None,
        inputs: LayerInputs | None,
    ) -> Tensor:
        hidden = self._embed(batch.tokens).to(self.dtype)
        hidden.mul_(self._embedding_scale)
        if batch.images is not None:
            self._shared(batch.images.values)
            batch.images.put_into(hidden)
        layers = self._layers if batch.adapters is None else self._adapted
        if (chunk := self._blueprint.spec.chunk) is None:
            prepared = attention.prepare(batch, kv)
        else:
            prepared = ChunkedStep(attention, batch, kv, chunk)
        if inputs is None or self.config.layers not in inputs.layers:
            return layers(hidden, batch, kv, prepared, wanted, inputs)
        hidden = layers(hidden, batch, kv, prepared, None, inputs)
        inputs.keep(self.config.layers, hidden)
        return hidden if wanted is None else hidden[wanted]

    def weight_parts(self, checkpoint: Checkpoint | None) -> Iterator[WeightPart]:
        """See `Renewable`. Linears are packed again, without a cache."""
        factory, spec = self._blueprint.of(checkpoint), self._blueprint.spec
        yield WeightPart(
            "embedding", self._embedding, lambda: factory.embedding_table(spec.embedding)
        )
        yield from self._adapted.stack.weight_parts(factory, spec)
        yield WeightPart("norm", self._norm, lambda: factory.norm(spec.norm))
        yield WeightPart("head", self._head, lambda: factory.head(spec.head))
        yield WeightPart("images", self.images, lambda: image_encoder(factory, spec))

    def renewed(self, checkpoint: Checkpoint) -> None:
        """See `Renewable`."""
        if self.images is not None:
            factory = self._blueprint.of(checkpoint)
            self.images.token = token_reader(factory, self._blueprint.spec)

    @property
    def dtype(self) -> torch.dtype:
        return self._blueprint.factory.dtype

    def plain_embedding(self) -> Tensor:
        """The embedding of every token id of this rank before it is scaled, [vocab, width]."""
        return self._embedding.to(self.dtype)

    @torch.inference_mode()
    def normed(self, hidden: Tensor) -> Tensor:
        """Return hidden states [n, width] after the last norm: what embeddings are made of."""
        return self._norm(hidden)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [n, vocab] in float32; [n, 0] on ranks that do not sample."""
        logits = self._head(self.normed(hidden)).float()
        scale, cap = self._blueprint.spec.logit_scale, self._blueprint.spec.logit_cap
        if scale != 1.0:
            logits.mul_(scale)
        if cap is not None:
            logits.div_(cap).tanh_().mul_(cap)
        return logits


def has_native_linears(stack: TorchStack) -> bool:
    """In attention of the first layer, and so in all of them."""
    return any(
        isinstance(one, SelfAttention) and isinstance(one.qkv, NativeLinear)
        for one in stack.layers[0].mixers
    )

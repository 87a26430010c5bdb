"""Describes MTP heads: a layer behind the last one of a model, and what is around it."""

from dataclasses import dataclass, replace

from paceline.core.errors import ConfigError
from paceline.runner.models.architecture import DecoderSpec, stored_tensors
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.describe import describe
from paceline.runner.models.linear_spec import LinearSpec, NormSpec
from paceline.runner.models.tensor_spec import GGUFForm, TensorSpec
from paceline.runner.models.traits import DecoderNames, MTPNames


@dataclass(frozen=True, slots=True)
class MTPSpec:
    """norm(layer(fuse(embedding_norm(embedding), hidden_norm(hidden)))), where the embedding is of
    the next token. The hidden state is the model's behind its last norm, or an earlier result.

    decoder          the layer, the norm behind it, and the head of the model
    model_norm       the last norm of the model
    embedding_norm   of embeddings
    hidden_norm      of hidden states
    fuse             from both, side by side, to the residual stream of the layer
    hidden_first     the hidden state is left of the embedding
    """

    decoder: DecoderSpec
    model_norm: NormSpec
    embedding_norm: NormSpec
    hidden_norm: NormSpec
    fuse: LinearSpec
    hidden_first: bool

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """Every tensor once; the embedding is that of the model."""
        norms = self.model_norm, self.embedding_norm, self.hidden_norm
        parts = *norms, self.fuse, self.decoder.layers, self.decoder.norm, self.decoder.head
        return tuple({tensor.name: tensor for tensor in stored_tensors(parts)}.values())


def names_of(model: ModelConfig) -> MTPNames:
    if (names := model.traits.mtp) is None:
        raise ConfigError(
            f"models of {model.architecture!r} have no MTP heads: use another proposer than 'mtp'"
        )
    return names


def stem_of(model: ModelConfig) -> str:
    """What the names of a head's tensors begin with."""
    prefix = model.traits.decoder.prefix
    return names_of(model).stem.format(prefix=prefix, layers=model.layers)


def layer_config(model: ModelConfig) -> ModelConfig:
    """The layer of a head as a decoder: of the same kind as the last layer of the model, with
    attention to all positions."""
    prefix, _, layer = f"{stem_of(model)}{names_of(model).layer}".partition(".")
    experts = model.experts
    return replace(
        model,
        layers=1,
        windows=(None,),
        unrotated=model.unrotated[-1:],
        experts=None if experts is None else replace(experts, layers=experts.layers[-1:]),
        states=None,
        vision=None,
        traits=replace(model.traits, decoder=DecoderNames(prefix, layers=layer)),
    )


def describe_mtp(model: ModelConfig, max_model_len: int | None = None) -> MTPSpec:
    """Name every tensor of the head of a model."""
    names, stem, whole = names_of(model), stem_of(model), describe(model, max_model_len)
    width = model.width

    def norm(name: str) -> NormSpec:
        weight = named(f"{stem}.{name}.weight", width)
        return NormSpec(weight, model.norm_eps, model.traits.norm_offset)

    layer = describe(layer_config(model), max_model_len)
    return MTPSpec(
        decoder=replace(layer, embedding=whole.embedding, norm=norm(names.norm), head=whole.head),
        model_norm=whole.norm,
        embedding_norm=norm(names.embedding_norm),
        hidden_norm=norm(names.hidden_norm),
        fuse=LinearSpec((named(f"{stem}.{names.linear}.weight", width, 2 * width),)),
        hidden_first=names.hidden_first,
    )


def named(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, shape, GGUFForm(name))

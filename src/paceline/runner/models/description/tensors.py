"""Names the tensors of a decoder, in HF's files and in GGUF files."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from paceline.runner.models.config import ModelConfig
from paceline.runner.models.linear_spec import LinearSpec, NormSpec
from paceline.runner.models.tensor_spec import GGUFForm, Shape, TensorSpec


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """Names the tensors of one layer, in HF's files and in GGUF files."""

    config: ModelConfig
    layer: int

    def norm(self, name: str, gguf: str, width: int) -> NormSpec:
        return decoder_norm(self.config, *self._names(name, gguf), width)

    def residual_norm(self, name: str, gguf: str) -> NormSpec:
        """A norm of the residual stream."""
        return residual_norm(self.config, *self._names(name, gguf))

    def input_norm(self, name: str, gguf: str) -> NormSpec | None:
        """The same if it has a name."""
        return self.residual_norm(name, gguf) if name else None

    def output_norm(self, name: str, gguf: str) -> NormSpec | None:
        """A norm of what is added to the residual stream, if it has a name."""
        return self.norm(name, gguf, self.config.width) if name else None

    def linear(
        self,
        name: str,
        gguf: str,
        shape: tuple[int, int],
        has_bias: bool = False,
        paired_heads: int = 0,
        part: int | None = None,
    ) -> LinearSpec:
        multiplier = dict(self.config.multipliers.linears).get(name)
        name, gguf = self._names(name, gguf)

        def one(kind: str, its: Shape) -> TensorSpec:
            whole, *aliases = tensor_names(self.config, f"{name}.{kind}")
            form = GGUFForm(f"{gguf}.{kind}", 0.0, paired_heads, part)
            return TensorSpec(whole, its, form, aliases=tuple(aliases))

        bias = (one("bias", shape[:1]),) if has_bias else ()
        weight = one("weight", shape)
        format = self.config.quantization.format_of(weight.name.removesuffix(".weight"))
        folded = () if multiplier is None else (multiplier,)
        return LinearSpec((weight,), bias, () if format is None else (format,), folded)

    def tensor(self, name: str, gguf: str, *shape: int, is_decay: bool = False) -> TensorSpec:
        """A tensor whose whole name this is."""
        name, gguf = self._names(name, gguf)
        whole, *aliases = tensor_names(self.config, name)
        form = GGUFForm(gguf, any_shape=True, is_decay=is_decay)
        return TensorSpec(whole, shape, form, aliases=tuple(aliases))

    def kv_scale(self, kind: str) -> TensorSpec:
        """The scale of keys or values in an fp8 KV cache, under one of the names in use."""
        stems = ("self_attn", f"self_attn.{kind}_proj", "self_attn.attn")
        named = [f"{stem}.{kind}_scale" for stem in stems]
        named.append(f"self_attn.{kind}_proj.output_scale")
        inside = [self._names(name, "")[0] for name in named]
        found = [whole for name in inside for whole in tensor_names(self.config, name)]
        return TensorSpec(found[0], (), GGUFForm(found[0]), aliases=tuple(found[1:]))

    def stem(self, name: str) -> str:
        """The whole name of a part of the layer in HF's files."""
        return tensor_names(self.config, self._names(name, "")[0])[0]

    def _names(self, name: str, gguf: str) -> tuple[str, str]:
        name = self.config.traits.name(name)
        layer = self.config.traits.decoder.layers.format(self.layer)
        return f"{layer}.{name}", f"blk.{self.layer}.{gguf}"


def tensor_names(config: ModelConfig, name: str) -> tuple[str, str]:
    """The name of a tensor of the decoder in HF's files, and an alias: that of older files, or of
    those of sentence-transformers, which begin with nothing."""
    decoder = config.traits.decoder
    older = f"{decoder.older}.{name}" if decoder.older else name
    return f"{decoder.prefix}.{name}", older


def decoder_linear(
    config: ModelConfig, name: str, gguf: str, shape: tuple[int, int], part: int | None = None
) -> LinearSpec:
    """A linear outside of layers."""
    whole, *aliases = tensor_names(config, f"{name}.weight")
    weight = TensorSpec(whole, shape, GGUFForm(f"{gguf}.weight", part=part), aliases=tuple(aliases))
    format = config.quantization.format_of(whole.removesuffix(".weight"))
    return LinearSpec((weight,), (), () if format is None else (format,))


def decoder_norm(config: ModelConfig, name: str, gguf: str, width: int) -> NormSpec:
    traits = config.traits

    def one(kind: str, offset: float) -> TensorSpec:
        whole, *aliases = tensor_names(config, f"{name}.{kind}")
        form = GGUFForm(f"{gguf}.{kind}", offset)
        return TensorSpec(whole, (width,), form, aliases=tuple(aliases))

    # A GGUF file holds what the norm multiplies by.
    weight = one("weight", traits.norm_offset)
    bias = one("bias", 0.0) if traits.norm_bias else None
    return NormSpec(weight, config.norm_eps, traits.norm_offset, traits.layer_norm, bias)


def residual_norm(config: ModelConfig, name: str, gguf: str) -> NormSpec:
    """A norm of the residual stream, which is kept divided by the multiplier of what layers add."""
    norm = decoder_norm(config, name, gguf, config.width)
    return replace(norm, eps=norm.eps / config.multipliers.residual**2)


def joined(given: Iterable[LinearSpec]) -> LinearSpec:
    """Linears of the same input as one."""
    linears = list(given)
    formats = tuple(format for linear in linears for format in linear.formats)
    scales = tuple(scale for linear in linears for scale in linear.scales)
    return LinearSpec(
        tuple(weight for linear in linears for weight in linear.weights),
        tuple(bias for linear in linears for bias in linear.biases),
        formats if any(linear.quantized for linear in linears) else (),
        scales if any(linear.folded for linear in linears) else (),
    )

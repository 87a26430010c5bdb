"""The vision tower of Gemma 4: images of any size, whose squares of patches become their means."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from paceline.core.errors import ConfigError
from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.rope import Rope, frequencies
from paceline.runner.vision.spec import (
    COLUMNS,
    ROWS,
    Channels,
    MeanSpec,
    PatchSpec,
    PixelScale,
    PositionSpec,
    ProjectorSpec,
    TowerSpec,
    VisionActivation,
    VisionBlockSpec,
    VisionHeadNorms,
    VisionLinear,
    VisionNorm,
    VisionTensors,
    vision_entries,
)

TENSORS = VisionTensors("model.vision_tower")
EMBEDDER = VisionTensors("model.embed_vision")
AUDIO = ("model.audio_tower.", "model.embed_audio.")
THETA, LIMITS = 100.0, ("input_min", "input_max", "output_min", "output_max")


@dataclass(frozen=True, slots=True)
class Gemma4Sizes:
    """What the blocks have. The defaults of a file are those of transformers.

    width        of the residual stream
    inner        inside the MLP
    heads        of attention
    head_dim     of each head
    eps          of norms
    is_clipped   inputs and outputs of linears have limits
    """

    width: int
    inner: int
    heads: int
    head_dim: int
    eps: float
    is_clipped: bool

    @staticmethod
    def of(read: ConfigEntries) -> "Gemma4Sizes":
        heads = read.number("num_attention_heads", 12)
        if read.number("num_key_value_heads", heads) != heads:
            raise ConfigError(
                f"{read.where}: num_key_value_heads is {read.get('num_key_value_heads')}; it must "
                f"be num_attention_heads ({heads})"
            )
        head_dim = read.number("head_dim", 64)
        if head_dim % 4:
            raise ConfigError(f"{read.where}: head_dim is {head_dim}; it must be a multiple of 4")
        return Gemma4Sizes(
            width=read.number("hidden_size", 768),
            inner=read.number("intermediate_size", 3072),
            heads=heads,
            head_dim=head_dim,
            eps=float(read.get("rms_norm_eps", 1e-6)),
            is_clipped=bool(read.get("use_clipped_linears")),
        )

    def norm(self, name: str, width: int) -> VisionNorm:
        return TENSORS.norm(name, width, self.eps, bias=False)

    def bare_norm(self) -> VisionNorm:
        return VisionNorm(None, None, self.eps, offset=0.0)

    def linear(self, names: tuple[str, ...], shape: tuple[int, int]) -> VisionLinear:
        found = TENSORS.linear(tuple(f"{name}.linear" for name in names), shape, bias=False)
        if not self.is_clipped:
            return found
        limits = (tuple(TENSORS.tensor(f"{name}.{one}") for one in LIMITS) for name in names)
        return replace(found, limits=tuple(limits))

    def block(self, layer: int, activation: VisionActivation) -> VisionBlockSpec:
        name, width, heads = f"encoder.layers.{layer}", self.width, self.heads * self.head_dim
        qkv = tuple(f"{name}.self_attn.{one}_proj" for one in "qkv")
        up = tuple(f"{name}.mlp.{one}_proj" for one in ("gate", "up"))
        query, key = (self.norm(f"{name}.self_attn.{one}_norm", self.head_dim) for one in "qk")
        return VisionBlockSpec(
            norm=self.norm(f"{name}.input_layernorm", width),
            qkv=self.linear(qkv, (heads, width)),
            output=self.linear((f"{name}.self_attn.o_proj",), (width, heads)),
            mlp_norm=self.norm(f"{name}.pre_feedforward_layernorm", width),
            up=self.linear(up, (self.inner, width)),
            down=self.linear((f"{name}.mlp.down_proj",), (width, self.inner)),
            heads=self.heads,
            activation=activation,
            gated=True,
            windowed=False,
            head_norms=VisionHeadNorms(query, key, self.bare_norm(), whole=False),
            pairs="quarters",
            scale=1.0,
            output_norm=self.norm(f"{name}.post_attention_layernorm", width),
            mlp_output_norm=self.norm(f"{name}.post_feedforward_layernorm", width),
        )

    def rope(self, read: ConfigEntries) -> Rope:
        """Half of the pairs of a head rotate by column, the others by row."""
        given = read.get("rope_parameters", {})
        if (kind := given.get("rope_type", "axial")) != "axial":
            raise ConfigError(f"{read.where}: rope_type {kind!r} is not supported; use 'axial'")
        each = frequencies(float(given.get("rope_theta", THETA)), self.head_dim // 2)
        axes = (COLUMNS,) * len(each) + (ROWS,) * len(each)
        return Rope(each * 2, (1.0,) * len(axes), axes)


def gemma4(whole: ConfigEntries, output: int, settings: Mapping[str, Any]) -> TowerSpec:
    """Positions of an image read each other in layers with a window, if the file says so."""
    read = vision_entries(whole)
    sizes, patch = Gemma4Sizes.of(read), read.number("patch_size", 16)
    width, positions = sizes.width, read.number("position_embedding_size", 10_240)
    if (kind := read.get("hidden_activation", "gelu_pytorch_tanh")) != "gelu_pytorch_tanh":
        raise ConfigError(f"{read.where}: hidden_activation = {kind!r} is not supported")
    pixels = TENSORS.linear(("patch_embedder.input_proj",), (width, 3 * patch**2), bias=False)
    table = TENSORS.tensor("patch_embedder.position_embedding_table", 2, positions, width)
    text = ConfigEntries(whole.get("text_config", {}), whole.where)
    is_whole = text.get("use_bidirectional_attention") == "vision"
    return TowerSpec(
        pixels=pixel_scale(settings),
        patch=PatchSpec(pixels, patch, channels_last=True),
        side=None,
        positions=PositionSpec(table, positions, "sum"),
        class_token=None,
        first_norm=None,
        blocks=tuple(
            sizes.block(layer, "gelu_pytorch_tanh")
            for layer in range(read.number("num_hidden_layers", 16))
        ),
        rope=sizes.rope(read),
        window=None,
        merge=read.number("pooling_kernel_size", 3),
        projector=projector(sizes, output, bool(read.get("standardize"))),
        unread=AUDIO,
        reads_itself="windowed" if is_whole else "never",
    )


def pixel_scale(settings: Mapping[str, Any]) -> PixelScale:
    """The tower maps what the image processor returns from 0 to 1 to -1 to 1."""
    zero, one = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    found = PixelScale.of_hf({"do_normalize": False, **settings}, zero, one)
    return PixelScale(found.factor, middle(found), half(found.std))


def half(numbers: Channels) -> Channels:
    red, green, blue = numbers
    return red / 2, green / 2, blue / 2


def middle(scale: PixelScale) -> Channels:
    red, green, blue = (mean + std / 2 for mean, std in zip(scale.mean, scale.std, strict=True))
    return red, green, blue


def projector(sizes: Gemma4Sizes, output: int, is_standardized: bool) -> ProjectorSpec:
    """One linear of the mean of the patches of a square, behind a norm without weights."""
    offset, scale = (
        TENSORS.tensor(f"std_{one}", sizes.width) if is_standardized else None
        for one in ("bias", "scale")
    )
    return ProjectorSpec(
        norm=None,
        mean=MeanSpec(sizes.width**0.5, offset, scale),
        merger=None,
        merged_norm=sizes.bare_norm(),
        linears=(EMBEDDER.linear(("embedding_projection",), (output, sizes.width), bias=False),),
    )

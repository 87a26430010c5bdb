"""Vision towers for square images of one size: SigLIP, CLIP and InternViT."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any

from paceline.core.errors import ConfigError
from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.vision.spec import (
    CLIP_MEAN,
    CLIP_STD,
    HALF,
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
    vision_activation,
    vision_entries,
)

IDEFICS3 = VisionTensors("model.vision_model")
CONNECTOR = VisionTensors("model.connector")
TOWER = VisionTensors(
    "model.vision_tower",
    older=("vision_tower", "vision_tower.vision_model", "model.vision_tower.vision_model"),
)  # of Llava and of models that are built like it
PROJECTOR = VisionTensors("model.multi_modal_projector", older=("multi_modal_projector",))


@dataclass(frozen=True, slots=True)
class SquareSizes:
    """What towers for square images have.

    read      vision_config
    tensors   their names
    width     of the residual stream
    inner     inside the MLP
    heads     of attention
    side      patches of an image along each side. Pixels behind the last whole one are not read
    patch     pixels of a patch along each side
    eps       of norms
    """

    read: ConfigEntries
    tensors: VisionTensors
    width: int
    inner: int
    heads: int
    side: int
    patch: int
    eps: float

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ConfigError(f"{self.heads} heads do not divide the vision width {self.width}")

    @staticmethod
    def of(
        read: ConfigEntries, tensors: VisionTensors, defaults: Mapping[str, Any]
    ) -> "SquareSizes":
        """`defaults` are those of transformers for the sizes that a file may leave out."""
        filled = ConfigEntries({**defaults, **present(read)}, read.where)
        patch = side_of(filled, "patch_size")
        return SquareSizes(
            read=filled,
            tensors=tensors,
            width=filled.number("hidden_size"),
            inner=filled.number("intermediate_size"),
            heads=filled.number("num_attention_heads"),
            side=side_of(filled, "image_size") // patch,
            patch=patch,
            eps=float(filled.need("layer_norm_eps")),
        )

    def patches(self, name: str, bias: bool = True) -> PatchSpec:
        kernel = (self.width, 3, self.patch, self.patch)
        return PatchSpec(self.tensors.linear((name,), kernel, bias), self.patch)

    def blocks(
        self, activation: VisionActivation, layers: int | None = None
    ) -> tuple[VisionBlockSpec, ...]:
        """The first blocks of SigLIP and CLIP, or all of them."""
        count = self.read.number("num_hidden_layers") if layers is None else layers
        return tuple(self._block(f"encoder.layers.{layer}", activation) for layer in range(count))

    def _block(self, name: str, activation: VisionActivation) -> VisionBlockSpec:
        width, inner, tensors = self.width, self.inner, self.tensors
        qkv = tuple(f"{name}.self_attn.{one}_proj" for one in "qkv")
        return VisionBlockSpec(
            norm=tensors.norm(f"{name}.layer_norm1", width, self.eps),
            qkv=tensors.linear(qkv, (width, width)),
            output=tensors.linear((f"{name}.self_attn.out_proj",), (width, width)),
            mlp_norm=tensors.norm(f"{name}.layer_norm2", width, self.eps),
            up=tensors.linear((f"{name}.mlp.fc1",), (inner, width)),
            down=tensors.linear((f"{name}.mlp.fc2",), (width, inner)),
            heads=self.heads,
            activation=activation,
            gated=False,
            windowed=False,
        )


def present(read: ConfigEntries) -> dict[str, Any]:
    """The entries of a file that are not null."""
    return {key: value for key, value in read.raw.items() if value is not None}


def side_of(read: ConfigEntries, key: str) -> int:
    """A length that a file may give for both sides."""
    value = read.need(key)
    if isinstance(value, list | tuple):
        sides: list[Any] = [*value]
        if len(set(sides)) != 1:
            raise ConfigError(f"{read.where}: {key} is {sides}; only squares are supported")
        value = sides[0]
    return ConfigEntries({key: value}, read.where).number(key)


SIGLIP_SIZES: dict[str, Any] = {
    "num_hidden_layers": 12,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 16,
    "layer_norm_eps": 1e-6,
}
IDEFICS3_SIZES = {
    **SIGLIP_SIZES,
    "hidden_size": 1152,
    "num_attention_heads": 16,
    "patch_size": 32,
}
CLIP_SIZES: dict[str, Any] = {
    "num_hidden_layers": 24,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
    "layer_norm_eps": 1e-5,
}
INTERN_SIZES: dict[str, Any] = {
    "num_hidden_layers": 24,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "image_size": 448,
    "patch_size": 14,
    "layer_norm_eps": 1e-6,
}


def idefics3(whole: ConfigEntries, output: int, settings: Mapping[str, Any]) -> TowerSpec:
    """The SigLIP of Idefics3 and SmolVLM, whose positions are fractions of a side."""
    sizes = SquareSizes.of(vision_entries(whole), IDEFICS3, IDEFICS3_SIZES)
    side, width, merge = sizes.side, sizes.width, whole.number("scale_factor", 2)
    table = IDEFICS3.tensor("embeddings.position_embedding.weight", side * side, width)
    projection = CONNECTOR.linear(
        ("modality_projection.proj",), (output, width * merge**2), bias=False
    )
    projector = ProjectorSpec(
        norm=IDEFICS3.norm("post_layernorm", width, sizes.eps),
        mean=None,
        merger=None,
        merged_norm=None,
        linears=(projection,),
    )
    return siglip(sizes, settings, PositionSpec(table, side, "fraction"), merge, projector)


def siglip(
    sizes: SquareSizes,
    settings: Mapping[str, Any],
    positions: PositionSpec,
    merge: int,
    projector: ProjectorSpec,
) -> TowerSpec:
    """All blocks of SigLIP, and a projector."""
    return TowerSpec(
        pixels=PixelScale.of_hf(settings, HALF, HALF),
        patch=sizes.patches("embeddings.patch_embedding"),
        side=sizes.side,
        positions=positions,
        class_token=None,
        first_norm=None,
        blocks=sizes.blocks(vision_activation(sizes.read, "gelu_pytorch_tanh")),
        rope=None,
        window=None,
        merge=merge,
        projector=projector,
        unread=(),
    )


@dataclass(frozen=True, slots=True)
class LlavaTower:
    """What the towers of Llava differ in: a class token, and defaults of a file."""

    has_class: bool
    sizes: Mapping[str, Any]
    activation: VisionActivation
    mean: Channels
    std: Channels


LLAVA_TOWERS = {
    "clip_vision_model": LlavaTower(True, CLIP_SIZES, "quick_gelu", CLIP_MEAN, CLIP_STD),
    "siglip_vision_model": LlavaTower(False, SIGLIP_SIZES, "gelu_pytorch_tanh", HALF, HALF),
}


def llava(whole: ConfigEntries, output: int, settings: Mapping[str, Any]) -> TowerSpec:
    """Llava: what one of the last blocks of CLIP or SigLIP returns, through two linears."""
    read = vision_entries(whole)
    name = read.get("model_type", "clip_vision_model")
    if (kind := LLAVA_TOWERS.get(name)) is None:
        raise ConfigError(
            f"{read.where}: model_type {name!r} is not supported; supported are "
            f"{', '.join(LLAVA_TOWERS)}"
        )
    sizes = SquareSizes.of(read, TOWER, kind.sizes)
    side, width, has_class = sizes.side, sizes.width, kind.has_class
    expect(whole, "vision_feature_select_strategy", "default", "default" if has_class else "full")
    positions = side * side + int(has_class)
    table = TOWER.tensor("embeddings.position_embedding.weight", positions, width)
    layers, last = sizes.read.number("num_hidden_layers"), whole.get("vision_feature_layer", -2)
    if type(last) is not int or not -layers <= last <= layers:
        raise ConfigError(f"{whole.where}: vision_feature_layer = {last!r} is not supported")
    activation = vision_activation(sizes.read, kind.activation)
    count = last if last >= 0 else layers + 1 + last
    rest = ("post_layernorm.", "head.", *(f"encoder.layers.{one}." for one in range(count, layers)))
    return TowerSpec(
        pixels=PixelScale.of_hf(settings, kind.mean, kind.std),
        patch=sizes.patches("embeddings.patch_embedding", bias=not has_class),
        side=side,
        positions=PositionSpec(table, side, "index"),
        class_token=TOWER.tensor("embeddings.class_embedding", width) if has_class else None,
        first_norm=TOWER.norm("pre_layrnorm", width, sizes.eps) if has_class else None,
        blocks=sizes.blocks(activation, count),
        rope=None,
        window=None,
        merge=1,
        projector=two_linears(whole, width, output),
        unread=tuple(name for part in rest for name in TOWER.names(part)),
    )


def two_linears(whole: ConfigEntries, width: int, output: int, bias: bool = True) -> ProjectorSpec:
    """The projector of Llava; those of InternVL and Mistral have more. `bias` is the default of
    the file."""
    expect(whole, "projector_hidden_act", "gelu", "gelu")
    bias = bool(whole.get("multimodal_projector_bias", bias))
    return ProjectorSpec(
        norm=None,
        mean=None,
        merger=None,
        merged_norm=None,
        linears=(
            PROJECTOR.linear(("linear_1",), (output, width), bias),
            PROJECTOR.linear(("linear_2",), (output, output), bias),
        ),
    )


def expect(read: ConfigEntries, key: str, default: str, only: str) -> None:
    """ConfigError if an entry is not the only one that is supported."""
    if (found := read.get(key, default)) != only:
        raise ConfigError(f"{read.where}: {key} is {found!r}; only {only!r} is supported")


def gemma3(whole: ConfigEntries, output: int, settings: Mapping[str, Any]) -> TowerSpec:
    """Gemma 3: the means of squares of SigLIP's patches. Positions of an image read each other."""
    sizes = SquareSizes.of(vision_entries(whole), TOWER, SIGLIP_SIZES)
    side, width, eps = sizes.side, sizes.width, sizes.eps
    few = isqrt(whole.number("mm_tokens_per_image", 256))
    if side % few:
        raise ConfigError(
            f"{whole.where}: an image has {side} patches along each side, which must be a multiple "
            f"of the {few} embeddings there (mm_tokens_per_image)"
        )
    table = TOWER.tensor("embeddings.position_embedding.weight", side * side, width)
    weight = PROJECTOR.tensor("mm_input_projection_weight", width, output)
    scale = PROJECTOR.tensor("mm_soft_emb_norm.weight", width)
    projector = ProjectorSpec(
        norm=TOWER.norm("post_layernorm", width, eps),
        mean=MeanSpec(1.0, None, None),
        merger=None,
        merged_norm=VisionNorm(scale, None, eps, offset=1.0),
        linears=(VisionLinear((weight,), (), None, is_transposed=True),),
    )
    positions = PositionSpec(table, side, "index")
    tower = siglip(sizes, settings, positions, side // few, projector)
    return replace(tower, unread=TOWER.names("head."), reads_itself="always")


def internvl(whole: ConfigEntries, output: int, settings: Mapping[str, Any]) -> TowerSpec:
    """InternViT, whose blocks scale what they add."""
    sizes = SquareSizes.of(vision_entries(whole), TOWER, INTERN_SIZES)
    read, side, width, eps = sizes.read, sizes.side, sizes.width, sizes.eps
    expect(whole, "vision_feature_select_strategy", "default", "default")
    if whole.get("vision_feature_layer", -1) != -1:
        raise ConfigError(f"{whole.where}: vision_feature_layer must be -1")
    if not read.get("use_absolute_position_embeddings", True):
        raise ConfigError(f"{read.where}: positions must be learned")
    merge = round(1 / float(whole.get("downsample_ratio", 0.5)))
    merged = width * merge**2
    has_norm = not read.get("use_mean_pooling", True)
    return TowerSpec(
        pixels=PixelScale.of_hf(settings, CLIP_MEAN, CLIP_STD),
        patch=sizes.patches("embeddings.patch_embeddings.projection"),
        side=side,
        positions=PositionSpec(
            TOWER.tensor("embeddings.position_embeddings", 1, side * side + 1, width),
            side,
            "index",
        ),
        class_token=TOWER.tensor("embeddings.cls_token", 1, 1, width),
        first_norm=None,
        blocks=tuple(
            intern_block(sizes, f"encoder.layer.{layer}")
            for layer in range(read.number("num_hidden_layers"))
        ),
        rope=None,
        window=None,
        merge=merge,
        projector=replace(
            two_linears(whole, merged, output),
            merged_norm=PROJECTOR.norm("layer_norm", merged, 1e-5),
            norm=TOWER.norm("layernorm", width, eps) if has_norm else None,
        ),
        unread=TOWER.names("embeddings.mask_token"),
    )


def intern_block(sizes: SquareSizes, name: str) -> VisionBlockSpec:
    read, width, inner, eps = sizes.read, sizes.width, sizes.inner, sizes.eps
    kind = read.get("norm_type", "layer_norm")
    if kind not in ("layer_norm", "rms_norm"):
        raise ConfigError(f"{read.where}: norm_type {kind!r} is not supported")
    has_bias, has_norms = bool(read.get("attention_bias")), bool(read.get("use_qk_norm"))
    qkv = tuple(f"{name}.attention.{one}_proj" for one in "qkv")
    query, key = (
        TOWER.norm(f"{name}.attention.{one}_norm", width, 1e-6, bias=False) for one in "qk"
    )

    def linear(part: str, shape: tuple[int, int], factor: str = "") -> VisionLinear:
        factor = f"{name}.{factor}" if factor else ""
        return TOWER.linear((f"{name}.{part}",), shape, factor=factor)

    return VisionBlockSpec(
        norm=TOWER.norm(f"{name}.layernorm_before", width, eps, kind == "layer_norm"),
        qkv=TOWER.linear(qkv, (width, width), has_bias),
        output=linear("attention.projection_layer", (width, width), "lambda_1"),
        mlp_norm=TOWER.norm(f"{name}.layernorm_after", width, eps, kind == "layer_norm"),
        up=linear("mlp.fc1", (inner, width)),
        down=linear("mlp.fc2", (width, inner), "lambda_2"),
        heads=sizes.heads,
        activation=vision_activation(read, "gelu"),
        gated=False,
        windowed=False,
        head_norms=VisionHeadNorms(query, key, None, whole=True) if has_norms else None,
    )

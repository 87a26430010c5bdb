"""The vision towers of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: images of any size."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt
from typing import Any

from paceline.core.errors import ConfigError
from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.rope import Rope, frequencies
from paceline.runner.vision.spec import (
    CLIP_MEAN,
    CLIP_STD,
    COLUMNS,
    HALF,
    ROWS,
    DeepSpec,
    PatchSpec,
    PixelScale,
    PositionSpec,
    ProjectorSpec,
    TowerSpec,
    VisionActivation,
    VisionBlockSpec,
    VisionNorm,
    VisionTensors,
    vision_activation,
    vision_entries,
)

EPS, THETA = 1e-6, 10_000.0
TENSORS = VisionTensors("model.visual", older=("visual",))


@dataclass(frozen=True, slots=True)
class QwenSizes:
    """What all towers of Qwen have. The defaults of a file are those of transformers.

    read     vision_config
    width    of the residual stream
    inner    inside the MLP
    heads    of attention
    patch    pixels of a patch along each side
    frames   equal frames of which a patch consists
    merge    patches along each side of a square that becomes one embedding
    output   width of the decoder
    """

    read: ConfigEntries
    width: int
    inner: int
    heads: int
    patch: int
    frames: int
    merge: int
    output: int

    def __post_init__(self) -> None:
        if self.width % (4 * self.heads):
            raise ConfigError(
                f"the vision width {self.width} must be a multiple of four times the number of "
                f"heads ({self.heads})"
            )

    @staticmethod
    def of(read: ConfigEntries, output: int, width: int, inner: int, patch: int) -> "QwenSizes":
        return QwenSizes(
            read=read,
            width=width,
            inner=inner,
            heads=read.number("num_heads", 16),
            patch=read.number("patch_size", patch),
            frames=read.number("temporal_patch_size", 2),
            merge=read.number("spatial_merge_size", 2),
            output=output,
        )

    @property
    def merged(self) -> int:
        """Width of the patches of a square, side by side."""
        return self.width * self.merge**2

    @property
    def rope(self) -> Rope:
        """Half of the pairs of a head rotate by row, the others by column."""
        each = frequencies(THETA, self.width // self.heads // 2)
        axes = (ROWS,) * len(each) + (COLUMNS,) * len(each)
        return Rope(each * 2, (1.0,) * len(axes), axes)

    def patches(self, bias: bool) -> PatchSpec:
        kernel = (self.width, 3, self.frames, self.patch, self.patch)
        return PatchSpec(TENSORS.linear(("patch_embed.proj",), kernel, bias), self.patch)

    def block(
        self,
        layer: int,
        up: tuple[str, ...],
        down: str,
        activation: VisionActivation,
        is_layer_norm: bool = True,
        windowed: bool = False,
    ) -> VisionBlockSpec:
        """`up` has two names if the MLP is gated."""
        name, width, inner = f"blocks.{layer}", self.width, self.inner
        return VisionBlockSpec(
            norm=TENSORS.norm(f"{name}.norm1", width, EPS, is_layer_norm),
            qkv=TENSORS.linear((f"{name}.attn.qkv",), (3 * width, width)),
            output=TENSORS.linear((f"{name}.attn.proj",), (width, width)),
            mlp_norm=TENSORS.norm(f"{name}.norm2", width, EPS, is_layer_norm),
            up=TENSORS.linear(tuple(f"{name}.mlp.{one}" for one in up), (inner, width)),
            down=TENSORS.linear((f"{name}.mlp.{down}",), (width, inner)),
            heads=self.heads,
            activation=activation,
            gated=len(up) > 1,
            windowed=windowed,
        )

    def projector(
        self,
        first: str,
        second: str,
        norm: VisionNorm | None = None,
        merged_norm: VisionNorm | None = None,
    ) -> ProjectorSpec:
        merged = self.merged
        return ProjectorSpec(
            norm=norm,
            mean=None,
            merger=None,
            merged_norm=merged_norm,
            linears=(
                TENSORS.linear((first,), (merged, merged)),
                TENSORS.linear((second,), (self.output, merged)),
            ),
        )

    def merger(self, is_layer_norm: bool) -> ProjectorSpec:
        """The projector of Qwen2-VL and Qwen2.5-VL."""
        norm = TENSORS.norm("merger.ln_q", self.width, EPS, is_layer_norm)
        return self.projector("merger.mlp.0", "merger.mlp.2", norm)

    def tower(
        self,
        pixels: PixelScale,
        patch: PatchSpec,
        blocks: tuple[VisionBlockSpec, ...],
        projector: ProjectorSpec,
        window: int | None = None,
        positions: PositionSpec | None = None,
        deep: tuple[DeepSpec, ...] = (),
    ) -> TowerSpec:
        return TowerSpec(
            pixels=pixels,
            patch=patch,
            side=None,
            positions=positions,
            class_token=None,
            first_norm=None,
            blocks=blocks,
            rope=self.rope,
            window=window,
            merge=self.merge,
            projector=projector,
            unread=(),
            deep=deep,
        )


def check_output(read: ConfigEntries, key: str, output: int) -> None:
    if read.number(key, 3584) != output:
        raise ConfigError(
            f"{read.where}: {key} is {read.get(key)}, but the decoder has the width {output}"
        )


def layers_of(read: ConfigEntries, default: int) -> range:
    return range(read.number("depth", default))


def qwen2(whole: ConfigEntries, output: int, settings: Mapping[str, Any]) -> TowerSpec:
    """Qwen2-VL: all patches of an image attend to each other."""
    read = vision_entries(whole)
    check_output(read, "hidden_size", output)
    width = read.number("embed_dim", 1280)
    inner = int(width * read.get("mlp_ratio", 4))
    sizes = QwenSizes.of(read, output, width, inner, patch=14)
    act = vision_activation(read, "quick_gelu")
    return sizes.tower(
        PixelScale.of_hf(settings, CLIP_MEAN, CLIP_STD),
        sizes.patches(bias=False),
        tuple(sizes.block(layer, ("fc1",), "fc2", act) for layer in layers_of(read, 32)),
        sizes.merger(is_layer_norm=True),
    )


def qwen2_5(whole: ConfigEntries, output: int, settings: Mapping[str, Any]) -> TowerSpec:
    """Qwen2.5-VL: most blocks attend within windows."""
    read = vision_entries(whole)
    check_output(read, "out_hidden_size", output)
    width, inner = read.number("hidden_size", 3584), read.number("intermediate_size", 3420)
    sizes = QwenSizes.of(read, output, width, inner, patch=14)
    window, square = read.number("window_size", 112), sizes.patch * sizes.merge
    if window < square:
        raise ConfigError(
            f"a window of {window} pixels has no room for {sizes.merge} patches of "
            f"{sizes.patch} pixels"
        )
    whole_at = read.get("fullatt_block_indexes", (7, 15, 23, 31))
    act, up = vision_activation(read, "silu"), ("gate_proj", "up_proj")
    return sizes.tower(
        PixelScale.of_hf(settings, CLIP_MEAN, CLIP_STD),
        sizes.patches(bias=False),
        tuple(
            sizes.block(layer, up, "down_proj", act, False, layer not in whole_at)
            for layer in layers_of(read, 32)
        ),
        sizes.merger(is_layer_norm=False),
        window // square,
    )


def qwen3(whole: ConfigEntries, output: int, settings: Mapping[str, Any]) -> TowerSpec:
    """Qwen3-VL: learned positions too, and embeddings for the inputs of several layers."""
    read = vision_entries(whole)
    usual = {"deepstack_visual_indexes": (8, 16, 24)}
    return _qwen3(ConfigEntries({**usual, **read.raw}, read.where), whole, output, settings)


def qwen3_5(whole: ConfigEntries, output: int, settings: Mapping[str, Any]) -> TowerSpec:
    """Qwen3.5: the tower of Qwen3-VL, for the input of the first layer alone."""
    return _qwen3(vision_entries(whole), whole, output, settings)


def _qwen3(
    read: ConfigEntries, whole: ConfigEntries, output: int, settings: Mapping[str, Any]
) -> TowerSpec:
    check_output(read, "out_hidden_size", output)
    width, inner = read.number("hidden_size", 1152), read.number("intermediate_size", 4304)
    sizes = QwenSizes.of(read, output, width, inner, patch=16)
    act, count = vision_activation(read, "gelu_pytorch_tanh"), read.number("depth", 27)
    deep_at = tuple(read.get("deepstack_visual_indexes", ()))
    layers = ConfigEntries(whole.get("text_config", {}), whole.where).number("num_hidden_layers")
    if len(deep_at) >= layers or not all(block in range(count) for block in deep_at):
        raise ConfigError(
            f"{read.where}: deepstack_visual_indexes is {list(deep_at)}; it must have fewer than "
            f"{layers} entries, one for each layer of the decoder but the last, and name blocks "
            f"of {count}"
        )
    learned = read.number("num_position_embeddings", 2304)
    table = TENSORS.tensor("pos_embed.weight", learned, width)
    return sizes.tower(
        PixelScale.of_hf(settings, HALF, HALF),
        sizes.patches(bias=True),
        tuple(sizes.block(layer, ("linear_fc1",), "linear_fc2", act) for layer in range(count)),
        sizes.projector(
            "merger.linear_fc1",
            "merger.linear_fc2",
            norm=TENSORS.norm("merger.norm", width, EPS),
        ),
        positions=PositionSpec(table, isqrt(learned), "interpolated"),
        deep=tuple(_deep(sizes, index, block) for index, block in enumerate(deep_at)),
    )


def _deep(sizes: QwenSizes, index: int, block: int) -> DeepSpec:
    name = f"deepstack_merger_list.{index}"
    norm = TENSORS.norm(f"{name}.norm", sizes.merged, EPS)
    return DeepSpec(
        block, sizes.projector(f"{name}.linear_fc1", f"{name}.linear_fc2", merged_norm=norm)
    )

"""The vision tower of Qwen2.5-VL: its sizes, and its tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.core.errors import ConfigError
from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.tensor_spec import (
    PixelScale,
    QwenVisionSpec,
    VisionBlockSpec,
    VisionTensors,
)

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
EPS, THETA = 1e-6, 10_000.0
TENSORS = VisionTensors("model.visual", older="visual")


@dataclass(frozen=True, slots=True)
class QwenVisionConfig:
    """Sizes of a tower.

    layers      blocks of attention and MLP
    width       of the residual stream
    mlp_width   inside the MLP
    heads       of attention
    patch       pixels of a patch along each side
    frames      equal frames of which a patch consists
    merge       patches along each side of a square that becomes one embedding
    window      pixels of a window along each side
    whole       blocks that attend to the whole image
    output      width of the decoder
    pixels      how they are scaled
    """

    layers: int
    width: int
    mlp_width: int
    heads: int
    patch: int
    frames: int
    merge: int
    window: int
    whole: tuple[int, ...]
    output: int
    pixels: PixelScale

    def __post_init__(self) -> None:
        if self.width % (4 * self.heads):
            raise ConfigError(
                f"the vision width {self.width} must be a multiple of four times the number of "
                f"heads ({self.heads})"
            )
        if self.window < self.patch * self.merge:
            raise ConfigError(
                f"a window of {self.window} pixels has no room for {self.merge} patches of "
                f"{self.patch} pixels"
            )

    @classmethod
    def of_hf(
        cls, whole: ConfigEntries, output: int, settings: Mapping[str, Any]
    ) -> "QwenVisionConfig":
        """Read `vision_config` of a config.json. The defaults are those of transformers."""
        read = ConfigEntries(whole.get("vision_config", {}), f"{whole.where}, vision_config")
        if read.get("hidden_act", "silu") != "silu":
            raise ConfigError(
                f"{read.where}: hidden_act = {read.get('hidden_act')!r} is not supported"
            )
        if read.number("out_hidden_size", 3584) != output:
            raise ConfigError(
                f"{read.where}: out_hidden_size is {read.get('out_hidden_size')}, but the decoder "
                f"has the width {output}"
            )
        return cls(
            layers=read.number("depth", 32),
            width=read.number("hidden_size", 3584),
            mlp_width=read.number("intermediate_size", 3420),
            heads=read.number("num_heads", 16),
            patch=read.number("patch_size", 14),
            frames=read.number("temporal_patch_size", 2),
            merge=read.number("spatial_merge_size", 2),
            window=read.number("window_size", 112),
            whole=tuple(read.get("fullatt_block_indexes", (7, 15, 23, 31))),
            output=output,
            pixels=PixelScale.of_hf(settings, MEAN, STD),
        )

    def describe(self) -> QwenVisionSpec:
        merged = self.width * self.merge**2
        kernel = (self.width, 3, self.frames, self.patch, self.patch)
        return QwenVisionSpec(
            pixels=self.pixels,
            patch=TENSORS.linear(("patch_embed.proj",), kernel, bias=False),
            blocks=tuple(map(self._block, range(self.layers))),
            theta=THETA,
            window=self.window // (self.patch * self.merge),
            norm=TENSORS.norm("merger.ln_q", self.width, EPS, bias=False),
            merger=(
                TENSORS.linear(("merger.mlp.0",), (merged, merged), bias=True),
                TENSORS.linear(("merger.mlp.2",), (self.output, merged), bias=True),
            ),
            merge=self.merge,
        )

    def _block(self, layer: int) -> VisionBlockSpec:
        name, width, inner = f"blocks.{layer}", self.width, self.mlp_width
        gate_up = tuple(f"{name}.mlp.{one}_proj" for one in ("gate", "up"))
        return VisionBlockSpec(
            norm=TENSORS.norm(f"{name}.norm1", width, EPS, bias=False),
            qkv=TENSORS.linear((f"{name}.attn.qkv",), (3 * width, width), bias=True),
            output=TENSORS.linear((f"{name}.attn.proj",), (width, width), bias=True),
            mlp_norm=TENSORS.norm(f"{name}.norm2", width, EPS, bias=False),
            up=TENSORS.linear(gate_up, (inner, width), bias=True),
            down=TENSORS.linear((f"{name}.mlp.down_proj",), (width, inner), bias=True),
            heads=self.heads,
            activation="silu",
            gated=True,
            windowed=layer not in self.whole,
        )

"""The vision tower of Idefics3 and SmolVLM: its sizes, and its tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.core.errors import ConfigError
from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.tensor_spec import (
    PixelScale,
    SigLIPSpec,
    VisionBlockSpec,
    VisionTensors,
)

HALF = (0.5, 0.5, 0.5)
TENSORS = VisionTensors("model.vision_model")
CONNECTOR = VisionTensors("model.connector")


@dataclass(frozen=True, slots=True)
class SigLIPConfig:
    """Sizes of a tower.

    layers      blocks of attention and MLP
    width       of the residual stream
    mlp_width   inside the MLP
    heads       of attention
    side        pixels of an image along each side
    patch       pixels of a patch along each side
    merge       patches along each side of a square that becomes one embedding
    eps         of norms
    output      width of the decoder
    pixels      how they are scaled
    """

    layers: int
    width: int
    mlp_width: int
    heads: int
    side: int
    patch: int
    merge: int
    eps: float
    output: int
    pixels: PixelScale

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ConfigError(f"{self.heads} heads do not divide the vision width {self.width}")
        if self.patches < 1 or self.patches % self.merge:
            raise ConfigError(
                f"an image of {self.side} pixels has {self.patches} patches of {self.patch} pixels "
                f"along each side; their number must be a multiple of scale_factor ({self.merge})"
            )

    @property
    def patches(self) -> int:
        """Along each side. Pixels behind the last whole patch are not read."""
        return self.side // self.patch

    @classmethod
    def of_hf(
        cls, whole: ConfigEntries, output: int, settings: Mapping[str, Any]
    ) -> "SigLIPConfig":
        """Read `vision_config` of a config.json. The defaults are those of transformers."""
        read = ConfigEntries(whole.get("vision_config", {}), f"{whole.where}, vision_config")
        decoder = whole.get("text_config", {}).get("model_type", "llama")
        if decoder != "llama":
            raise ConfigError(f"{whole.where}: a decoder of the type {decoder!r} is not supported")
        activation = read.get("hidden_act", "gelu_pytorch_tanh")
        if activation != "gelu_pytorch_tanh":
            raise ConfigError(f"{read.where}: hidden_act = {activation!r} is not supported")
        return cls(
            layers=read.number("num_hidden_layers", 12),
            width=read.number("hidden_size", 1152),
            mlp_width=read.number("intermediate_size", 3072),
            heads=read.number("num_attention_heads", 16),
            side=read.number("image_size", 224),
            patch=read.number("patch_size", 32),
            merge=whole.number("scale_factor", 2),
            eps=float(read.get("layer_norm_eps", 1e-6)),
            output=output,
            pixels=PixelScale.of_hf(settings, HALF, HALF),
        )

    def describe(self) -> SigLIPSpec:
        side = self.patches
        kernel = (self.width, 3, self.patch, self.patch)
        return SigLIPSpec(
            pixels=self.pixels,
            patch=TENSORS.linear(("embeddings.patch_embedding",), kernel, bias=True),
            positions=TENSORS.tensor(
                "embeddings.position_embedding.weight", side * side, self.width
            ),
            side=side,
            blocks=tuple(self._block(f"encoder.layers.{layer}") for layer in range(self.layers)),
            norm=TENSORS.norm("post_layernorm", self.width, self.eps, bias=True),
            projection=CONNECTOR.linear(
                ("modality_projection.proj",),
                (self.output, self.width * self.merge**2),
                bias=False,
            ),
            merge=self.merge,
        )

    def _block(self, name: str) -> VisionBlockSpec:
        width, inner = self.width, self.mlp_width
        qkv = tuple(f"{name}.self_attn.{one}_proj" for one in "qkv")
        return VisionBlockSpec(
            norm=TENSORS.norm(f"{name}.layer_norm1", width, self.eps, bias=True),
            qkv=TENSORS.linear(qkv, (width, width), bias=True),
            output=TENSORS.linear((f"{name}.self_attn.out_proj",), (width, width), bias=True),
            mlp_norm=TENSORS.norm(f"{name}.layer_norm2", width, self.eps, bias=True),
            up=TENSORS.linear((f"{name}.mlp.fc1",), (inner, width), bias=True),
            down=TENSORS.linear((f"{name}.mlp.fc2",), (width, inner), bias=True),
            heads=self.heads,
            activation="gelu_pytorch_tanh",
            gated=False,
            windowed=False,
        )

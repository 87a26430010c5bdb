"""Builds the vision tower that a description names."""

from collections.abc import Callable, Sequence

from torch import Tensor

from paceline.runner.layers.factory import LayerFactory
from paceline.runner.models.vision_spec import SigLIPSpec, VisionSpec
from paceline.runner.vision.qwen import QwenTower
from paceline.runner.vision.siglip import SigLIPTower

# Images [height, width, channels] in bytes to embeddings [n, width of the decoder] each.
Tower = Callable[[Sequence[Tensor]], list[Tensor]]


def tower(factory: LayerFactory, spec: VisionSpec) -> Tower:
    return SigLIPTower(factory, spec) if isinstance(spec, SigLIPSpec) else QwenTower(factory, spec)

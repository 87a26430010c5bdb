"""The description of a vision tower, tensor by tensor."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from paceline.runner.models.pixel_scale import PixelScale
from paceline.runner.models.tensor_spec import GGUFForm, TensorSpec

VisionActivation = Literal["silu", "gelu", "gelu_pytorch_tanh"]


@dataclass(frozen=True, slots=True)
class VisionNorm:
    """A layer norm; without a bias, a root-mean-square norm."""

    weight: TensorSpec  # [width]
    bias: TensorSpec | None  # [width]
    eps: float


@dataclass(frozen=True, slots=True)
class VisionProduct:
    """One product. Its outputs are those of several tensors, side by side."""

    weights: tuple[TensorSpec, ...]  # [outputs, inputs] each; a convolution has more dimensions
    biases: tuple[TensorSpec, ...]  # [outputs] each: one for every weight, or none


@dataclass(frozen=True, slots=True)
class VisionBlockSpec:
    """x + output(attend(qkv(norm(x)))), then x + down(activation(up(mlp_norm(x)))).

    gated      `up` is a gate beside the rest: down(activation(gate) * up)
    windowed   a patch attends to those of its window, not to all of the image
    """

    norm: VisionNorm
    qkv: VisionProduct
    output: VisionProduct
    mlp_norm: VisionNorm
    up: VisionProduct
    down: VisionProduct
    heads: int
    activation: VisionActivation
    gated: bool
    windowed: bool


@dataclass(frozen=True, slots=True)
class SigLIPSpec:
    """Learned positions; squares of `merge` x `merge` patches become one embedding.

    patch        a convolution with the stride of a patch
    positions    [patches of an image, width]
    side         patches of an image along each side
    norm         after the blocks
    projection   from merged patches to the width of the decoder
    """

    FEATURE: ClassVar[str] = "siglip"

    pixels: PixelScale
    patch: VisionProduct
    positions: TensorSpec
    side: int
    blocks: tuple[VisionBlockSpec, ...]
    norm: VisionNorm
    projection: VisionProduct
    merge: int


@dataclass(frozen=True, slots=True)
class QwenVisionSpec:
    """Positions by rotation, in rows and columns; most blocks attend within windows.

    patch        a convolution over `frames` equal frames, with the stride of a patch
    theta        base of the rotation
    window       squares of merged patches along each side of a window
    norm         before patches are merged
    merger       two products with a GELU between, from merged patches to the width of the decoder
    """

    FEATURE: ClassVar[str] = "qwen"

    pixels: PixelScale
    patch: VisionProduct
    blocks: tuple[VisionBlockSpec, ...]
    theta: float
    window: int
    norm: VisionNorm
    merger: tuple[VisionProduct, VisionProduct]
    merge: int


VisionSpec = SigLIPSpec | QwenVisionSpec


@dataclass(frozen=True, slots=True)
class VisionTensors:
    """Names the tensors of a tower: `prefix` in HF's files, `older` in files of older versions."""

    prefix: str
    older: str = ""

    def tensor(self, name: str, *shape: int) -> TensorSpec:
        older = f"{self.older}.{name}" if self.older else ""
        whole = f"{self.prefix}.{name}"
        return TensorSpec(whole, shape, GGUFForm(whole), older=older)

    def product(self, names: tuple[str, ...], shape: tuple[int, ...], bias: bool) -> VisionProduct:
        """Tensors of one shape, side by side."""
        weights = tuple(self.tensor(f"{name}.weight", *shape) for name in names)
        biases = tuple(self.tensor(f"{name}.bias", shape[0]) for name in names)
        return VisionProduct(weights, biases if bias else ())

    def norm(self, name: str, width: int, eps: float, bias: bool) -> VisionNorm:
        found = self.tensor(f"{name}.bias", width) if bias else None
        return VisionNorm(self.tensor(f"{name}.weight", width), found, eps)

"""The shape and names of a tensor, and the description of a vision tower."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol

from paceline.core.errors import ConfigError

Shape = tuple[int, ...]
Run = tuple[int, int]  # from the first to the one behind the last


@dataclass(frozen=True, slots=True)
class GGUFForm:
    """How a GGUF file stores a tensor.

    name          of the tensor in the file
    offset        the file holds the tensor plus this number
    paired_heads  the rows of each of so many heads are stored pair by pair, x0 y0 x1 y1 …,
                  instead of x0 x1 … y0 y1 …; 0 if they are stored as they are
    part          index into the tensor of the file, which holds several; None: it holds this one
    """

    name: str
    offset: float = 0.0
    paired_heads: int = 0
    part: int | None = None


@dataclass(frozen=True, slots=True)
class StackedForm:
    """How HF's files store a tensor of an expert in one tensor of all experts.

        weights   [experts, inputs, outputs of several tensors]
        packed    [experts, outputs of several tensors, …]
        biases    [experts, outputs of several tensors]

    name      of the tensor in the file
    part      index of the expert
    first     output that is the first of this tensor
    every     how far its outputs are apart: those of other tensors lie between
    end       output that is the first behind it; None: it has all the rest
    outputs   dimension of the outputs; -1: the last
    """

    name: str
    part: int
    first: int = 0
    every: int = 1
    end: int | None = None
    outputs: int = -1


@dataclass(frozen=True, slots=True)
class Cut:
    """The part of a tensor that a rank holds: runs along one dimension, one behind the other."""

    dim: int
    runs: tuple[Run, ...]
    whole: int  # the size of the whole tensor along the dimension

    @property
    def size(self) -> int:
        """Along the dimension."""
        return sum(end - first for first, end in self.runs)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a checkpoint, in the layout of HF.

    name     of the tensor in HF's files
    gguf     its form in a GGUF file
    copies   further names under which HF's files may repeat it
    aliases  other names that it may have, such as in files of older versions of transformers
    stack    where HF's files have it, if that is in a tensor of all experts
    cut      the part that is read, which has this shape; None: the whole tensor
    types    what it is stored as, in the names of safetensors; empty: any floating-point type
    """

    name: str
    shape: Shape
    gguf: GGUFForm
    copies: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    stack: StackedForm | None = None
    cut: Cut | None = None
    types: tuple[str, ...] = ()

    def part(self, dim: int, *runs: Run) -> "TensorSpec":
        """The same tensor cut to runs along a dimension."""
        cut = Cut(dim, runs, self.shape[dim])
        return replace(self, shape=resized(self.shape, dim, cut.size), cut=cut)

    @property
    def whole_shape(self) -> Shape:
        """The shape in the checkpoint."""
        return self.shape if self.cut is None else resized(self.shape, self.cut.dim, self.cut.whole)


def resized(shape: Shape, dim: int, size: int) -> Shape:
    """A shape with another size along a dimension."""
    return (*shape[:dim], size, *shape[dim + 1 :])


Channels = tuple[float, float, float]
BYTE = 1 / 255


@dataclass(frozen=True, slots=True)
class PixelScale:
    """A pixel x of a channel becomes (x * factor - mean) / std."""

    factor: float
    mean: Channels
    std: Channels

    @staticmethod
    def of_hf(settings: Mapping[str, Any], mean: Channels, std: Channels) -> "PixelScale":
        """Read the settings of an image processor; `mean` and `std` are its defaults."""
        factor = settings.get("rescale_factor", BYTE) if settings.get("do_rescale", True) else 1.0
        if not settings.get("do_normalize", True):
            return PixelScale(float(factor), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
        return PixelScale(
            float(factor),
            channels(settings, "image_mean", mean),
            channels(settings, "image_std", std),
        )


def channels(settings: Mapping[str, Any], key: str, default: Channels) -> Channels:
    given = settings.get(key) or default
    if len(given) != len(default):
        raise ConfigError(f"the image processor has {key} = {given!r}; it must be three numbers")
    red, green, blue = map(float, given)
    return red, green, blue


VisionActivation = Literal["silu", "gelu", "gelu_pytorch_tanh"]


@dataclass(frozen=True, slots=True)
class VisionNorm:
    """A layer norm; without a bias, a root-mean-square norm."""

    weight: TensorSpec  # [width]
    bias: TensorSpec | None  # [width]
    eps: float


@dataclass(frozen=True, slots=True)
class VisionLinear:
    """One linear. Its outputs are those of several tensors, side by side."""

    weights: tuple[TensorSpec, ...]  # [outputs, inputs] each; a convolution has more dimensions
    biases: tuple[TensorSpec, ...]  # [outputs] each: one for every weight, or none


@dataclass(frozen=True, slots=True)
class VisionBlockSpec:
    """x + output(attend(qkv(norm(x)))), then x + down(activation(up(mlp_norm(x)))).

    gated      `up` is a gate beside the rest: down(activation(gate) * up)
    windowed   a patch attends to those of its window, not to all of the image
    """

    norm: VisionNorm
    qkv: VisionLinear
    output: VisionLinear
    mlp_norm: VisionNorm
    up: VisionLinear
    down: VisionLinear
    heads: int
    activation: VisionActivation
    gated: bool
    windowed: bool


@dataclass(frozen=True, slots=True)
class Tile:
    """Pixels along each side of an image, and the embeddings that it becomes."""

    side: int
    embeddings: int


class VisionSpec(Protocol):
    """The description of a tower.

    FEATURE   name of the tower, or the dotted path of its class
    patch     a convolution with the stride of a patch
    merge     patches along each side of a square that becomes one embedding
    tile      images have this size; None: any size
    """

    FEATURE: ClassVar[str]

    @property
    def patch(self) -> VisionLinear: ...

    @property
    def merge(self) -> int: ...

    @property
    def tile(self) -> Tile | None: ...


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
    patch: VisionLinear
    positions: TensorSpec
    side: int
    blocks: tuple[VisionBlockSpec, ...]
    norm: VisionNorm
    projection: VisionLinear
    merge: int

    @property
    def tile(self) -> Tile:
        side = self.side * self.patch.weights[0].shape[-1]
        return Tile(side, (self.side // self.merge) ** 2)


@dataclass(frozen=True, slots=True)
class QwenVisionSpec:
    """Positions by rotation, in rows and columns; most blocks attend within windows.

    patch        a convolution over `frames` equal frames, with the stride of a patch
    theta        base of the rotation
    window       squares of merged patches along each side of a window
    norm         before patches are merged
    merger       two linears with a GELU between, from merged patches to the width of the decoder
    """

    FEATURE: ClassVar[str] = "qwen"

    pixels: PixelScale
    patch: VisionLinear
    blocks: tuple[VisionBlockSpec, ...]
    theta: float
    window: int
    norm: VisionNorm
    merger: tuple[VisionLinear, VisionLinear]
    merge: int

    @property
    def tile(self) -> None:
        """Images have any size."""


@dataclass(frozen=True, slots=True)
class VisionTensors:
    """Names the tensors of a tower: `prefix` in HF's files, `older` in files of older versions."""

    prefix: str
    older: str = ""

    def tensor(self, name: str, *shape: int) -> TensorSpec:
        aliases = (f"{self.older}.{name}",) if self.older else ()
        whole = f"{self.prefix}.{name}"
        return TensorSpec(whole, shape, GGUFForm(whole), aliases=aliases)

    def linear(self, names: tuple[str, ...], shape: tuple[int, ...], bias: bool) -> VisionLinear:
        """Tensors of one shape, side by side."""
        weights = tuple(self.tensor(f"{name}.weight", *shape) for name in names)
        biases = tuple(self.tensor(f"{name}.bias", shape[0]) for name in names)
        return VisionLinear(weights, biases if bias else ())

    def norm(self, name: str, width: int, eps: float, bias: bool) -> VisionNorm:
        found = self.tensor(f"{name}.bias", width) if bias else None
        return VisionNorm(self.tensor(f"{name}.weight", width), found, eps)

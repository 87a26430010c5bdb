"""The description of a vision tower, from which it is built, and what its tensors are named."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, get_args

from paceline.core.errors import ConfigError
from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.linear_spec import EVERY_BACKEND
from paceline.runner.models.rope import Rope
from paceline.runner.models.tensor_spec import GGUFForm, TensorSpec

Channels = tuple[float, float, float]
BYTE = 1 / 255
CLIP_MEAN: Channels = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD: Channels = (0.26862954, 0.26130258, 0.27577711)
HALF: Channels = (0.5, 0.5, 0.5)
ROWS, COLUMNS = 0, 1  # axes of positions
# Layers of a decoder in which positions of an image read each other: those with a window, or all.
ReadsItself = Literal["never", "windowed", "always"]


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


def vision_entries(whole: ConfigEntries) -> ConfigEntries:
    """The entries of the tower in a config.json."""
    return ConfigEntries(whole.get("vision_config", {}), f"{whole.where}, vision_config")


VisionActivation = Literal["silu", "gelu", "gelu_pytorch_tanh", "quick_gelu"]


def vision_activation(read: ConfigEntries, default: VisionActivation) -> VisionActivation:
    """The activation of the MLPs of a tower."""
    found = read.get("hidden_act", default)
    if found not in get_args(VisionActivation):
        known = ", ".join(get_args(VisionActivation))
        raise ConfigError(
            f"{read.where}: hidden_act = {found!r} is not supported; supported are {known}"
        )
    return found


DETAIL = {EVERY_BACKEND: True}  # towers run in torch on any device
# Every backend computes all fields below, but the last two of `TowerSpec` are features of decoders.


@dataclass(frozen=True, slots=True)
class VisionNorm:
    """A layer norm; without a bias, a root-mean-square norm.

    weight   None: all weights are 1
    offset   the norm multiplies by its weight plus this
    """

    weight: TensorSpec | None  # [width]
    bias: TensorSpec | None  # [width]
    eps: float
    offset: float


@dataclass(frozen=True, slots=True)
class VisionLinear:
    """One linear. Its outputs are those of several tensors, side by side.

    weights         [outputs, inputs] each; a convolution has more dimensions
    biases          [outputs] each: one for every weight, or none
    factor          [outputs]; outputs are multiplied by it
    is_transposed   weights are [inputs, outputs]
    limits          for every weight, or none: least and largest input, least and largest output
    """

    weights: tuple[TensorSpec, ...]
    biases: tuple[TensorSpec, ...]
    factor: TensorSpec | None
    is_transposed: bool
    limits: tuple[tuple[TensorSpec, ...], ...] = field(default=(), metadata=DETAIL)


@dataclass(frozen=True, slots=True)
class PatchSpec:
    """Makes a vector of each patch of `size` by `size` pixels.

    linear          a convolution with the stride of a patch, which may cover several equal frames;
                    or [width, all pixels of a patch]
    channels_last   the channels of a pixel are adjacent among these pixels
    """

    linear: VisionLinear
    size: int
    channels_last: bool = field(default=False, metadata=DETAIL)


@dataclass(frozen=True, slots=True)
class VisionHeadNorms:
    """Norms of queries, keys and values.

    whole   of all heads together; otherwise of each head
    """

    query: VisionNorm
    key: VisionNorm
    value: VisionNorm | None
    whole: bool


# Which two dimensions of a head rotate together: i and i + half; 2 i and 2 i + 1; or i and
# i + quarter in each half.
Pairs = Literal["halves", "adjacent", "quarters"]


@dataclass(frozen=True, slots=True)
class VisionBlockSpec:
    """x + output(attend(qkv(norm(x)))), then x + down(activation(up(mlp_norm(x)))).

    gated        `up` is a gate beside the rest: down(activation(gate) * up)
    windowed     a patch attends to those of its window, not to all of the image
    scale        factor of the scores before the softmax; None: one over the root of a head's size
    output_norm, mlp_output_norm   of what is added to x
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
    head_norms: VisionHeadNorms | None = field(default=None, metadata=DETAIL)
    pairs: Pairs = field(default="halves", metadata=DETAIL)
    scale: float | None = field(default=None, metadata=DETAIL)
    output_norm: VisionNorm | None = field(default=None, metadata=DETAIL)
    mlp_output_norm: VisionNorm | None = field(default=None, metadata=DETAIL)


@dataclass(frozen=True, slots=True)
class PositionSpec:
    """Learned positions of patches.

    table   [positions, width]; the first or the last is that of the class token, if there is one
    side    rows and columns of the table
    place   which position a patch has: by its row and column; by the fraction of the side at which
            it begins, rounded as in training; in images of any size, interpolated between four; or
            the sum of one for its column and one for its row
    class_last   the position of the class token is the last
    """

    table: TensorSpec
    side: int
    place: Literal["index", "fraction", "interpolated", "sum"]
    class_last: bool = field(default=False, metadata=DETAIL)


@dataclass(frozen=True, slots=True)
class MeanSpec:
    """(mean of the patches of a square * factor - offset) * scale"""

    factor: float
    offset: TensorSpec | None  # [width]
    scale: TensorSpec | None  # [width]


@dataclass(frozen=True, slots=True)
class ProjectorSpec:
    """From squares of patches to embeddings, with a GELU between linears.

    norm          of each patch
    mean          a square is the mean of its patches; None: they are side by side
    merger        a linear without a GELU behind it, to the width of a patch. It reads all patches
                  channel by channel; None: there is none
    merged_norm   of each square
    linears       the last one has the outputs of the decoder's width
    """

    norm: VisionNorm | None
    mean: MeanSpec | None
    merger: VisionLinear | None
    merged_norm: VisionNorm | None
    linears: tuple[VisionLinear, ...]


@dataclass(frozen=True, slots=True)
class DeepSpec:
    """A further embedding of each square, from the patches after a block."""

    block: int
    projector: ProjectorSpec


@dataclass(frozen=True, slots=True)
class Tile:
    """Pixels along each side of an image, and the embeddings that it becomes."""

    side: int
    embeddings: int


class VisionSpec(Protocol):
    """The description of a tower of any class.

    FEATURE   name of the tower, or the dotted path of its class
    square    pixels along each side of what becomes one embedding
    tile      images have this size; None: any size
    levels    inputs of layers that an embedding is for, one behind the other
    unread    what the names of tensors begin with that the tower does not read
    reads_itself   in which layers of the decoder all positions of an image read each other
    """

    FEATURE: ClassVar[str]

    @property
    def square(self) -> int: ...

    @property
    def tile(self) -> Tile | None: ...

    @property
    def levels(self) -> int: ...

    @property
    def unread(self) -> tuple[str, ...]: ...

    @property
    def reads_itself(self) -> ReadsItself: ...


@dataclass(frozen=True, slots=True)
class TowerSpec:
    """Patches of images, blocks of attention and MLP among them, and a projector.

    side          patches along each side of an image; None: images have any size
    positions     of patches; None: blocks rotate by position
    class_token   stands in front of the patches, and is neither rotated nor projected
    first_norm    before the blocks
    rope          of queries and keys, by row and column (axes 0 and 1)
    window        squares along each side of a window; None: no block has windows
    merge         patches along each side of a square that becomes one embedding
    unread        what the names of tensors begin with that are not read
    deep          what is added to the inputs of the decoder's layers from the second on
    reads_itself  in which layers of the decoder all positions of an image read each other
    """

    FEATURE: ClassVar[str] = "patches"

    pixels: PixelScale
    patch: PatchSpec
    side: int | None
    positions: PositionSpec | None
    class_token: TensorSpec | None
    first_norm: VisionNorm | None
    blocks: tuple[VisionBlockSpec, ...]
    rope: Rope | None
    window: int | None
    merge: int
    projector: ProjectorSpec
    unread: tuple[str, ...]
    deep: tuple[DeepSpec, ...] = ()
    reads_itself: ReadsItself = "never"

    def __post_init__(self) -> None:
        if self.side is not None and (self.side < 1 or self.side % self.merge):
            raise ConfigError(
                f"an image has {self.side} patches of {self.patch_size} pixels along each side; "
                f"their number must be a multiple of {self.merge}, since squares of as many "
                "become one embedding"
            )

    @property
    def patch_size(self) -> int:
        """Pixels along each side."""
        return self.patch.size

    @property
    def square(self) -> int:
        return self.patch_size * self.merge

    @property
    def tile(self) -> Tile | None:
        if self.side is None:
            return None
        return Tile(self.side * self.patch_size, (self.side // self.merge) ** 2)

    @property
    def levels(self) -> int:
        return 1 + len(self.deep)


# Features of towers that need nothing of the backend.
TOWER_FEATURES = frozenset({"vision", f"vision={TowerSpec.FEATURE}", "vision.rope.axes"})


@dataclass(frozen=True, slots=True)
class VisionTensors:
    """Names the tensors of a tower: `prefix` in HF's files, `older` in files of older versions."""

    prefix: str
    older: tuple[str, ...] = ()

    def names(self, name: str) -> tuple[str, ...]:
        """All names of a part."""
        return tuple(f"{prefix}.{name}" for prefix in (self.prefix, *self.older))

    def tensor(self, name: str, *shape: int) -> TensorSpec:
        whole, *aliases = self.names(name)
        return TensorSpec(whole, shape, GGUFForm(whole), aliases=tuple(aliases))

    def linear(
        self,
        names: tuple[str, ...],
        shape: tuple[int, ...],
        bias: bool = True,
        factor: str = "",
    ) -> VisionLinear:
        """Tensors of one shape, side by side."""
        weights = tuple(self.tensor(f"{name}.weight", *shape) for name in names)
        biases = tuple(self.tensor(f"{name}.bias", shape[0]) for name in names)
        scale = self.tensor(factor, shape[0]) if factor else None
        return VisionLinear(weights, biases if bias else (), scale, is_transposed=False)

    def norm(self, name: str, width: int, eps: float, bias: bool = True) -> VisionNorm:
        found = self.tensor(f"{name}.bias", width) if bias else None
        return VisionNorm(self.tensor(f"{name}.weight", width), found, eps, offset=0.0)

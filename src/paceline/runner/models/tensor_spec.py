"""The shape of a tensor, and its names in files."""

from dataclasses import dataclass, replace

Shape = tuple[int, ...]
Run = tuple[int, int]  # from the first to the one behind the last


@dataclass(frozen=True, slots=True)
class GGUFForm:
    """How a GGUF file stores a tensor.

    name          of the tensor in the file
    offset        the file holds the tensor plus this number
    paired_heads  the rows of each of so many heads are stored pair by pair, x0 y0 x1 y1 …,
                  instead of x0 x1 … y0 y1 …; 0 if they are stored as they are
    apart         two tensors that newer files have instead: keys [heads, inputs, outputs of a head]
                  and values [heads, outputs of a head, inputs]; the rows of each head follow
    part          index into the tensor of the file, which holds several; None: it holds this one
    any_shape     the file may have the same numbers in another shape
    is_decay      the file holds minus the exponential of the tensor
    rows          runs of rows of the tensor of the file, in the order of this one; empty: all rows
    columns       runs of its columns, in the order of this one; empty: all columns
    instead       another form, of files that have no tensor of this name
    """

    name: str
    offset: float = 0.0
    paired_heads: int = 0
    part: int | None = None
    apart: tuple[str, ...] = ()
    any_shape: bool = False
    is_decay: bool = False
    rows: tuple[Run, ...] = ()
    columns: tuple[Run, ...] = ()
    instead: "GGUFForm | None" = None


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

"""Integer codes of weights, as integer kernels need them."""

from dataclasses import dataclass

from torch import Tensor

INT4_MOST = 15


@dataclass(frozen=True, slots=True, eq=False)
class RowCodes:
    """Weights as code * scale.

    code    [outputs, inputs]; int8
    scale   [outputs] in float32
    """

    code: Tensor
    scale: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class GroupCodes:
    """Weights as code * step + least, with a step and a least weight per group of inputs.

    code    [outputs, inputs], from 0 to 15; uint8
    step    [outputs, groups] in float32
    least   [outputs, groups] in float32
    table   the 16 values of codes; empty: the codes themselves
    order   [inputs]; the input of each code; None: in order
    """

    code: Tensor
    step: Tensor
    least: Tensor
    table: tuple[int, ...] = ()
    order: Tensor | None = None

    @property
    def most(self) -> int:
        """The largest value of a code."""
        return max(self.table, default=INT4_MOST)


Codes = RowCodes | GroupCodes

"""Weights as whole numbers of few bits, in the forms that kernels for integers read."""

from dataclasses import dataclass

from torch import Tensor

INT4_MOST = 15


@dataclass(frozen=True, slots=True, eq=False)
class RowCodes:
    """A weight is code * scale.

    code    [outputs, inputs]; int8
    scale   [outputs] in float32
    """

    code: Tensor
    scale: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class GroupCodes:
    """A weight is code * step + least, with a step and a least weight for each group of inputs.

    code    [outputs, inputs], from 0 to 15; uint8
    step    [outputs, groups] in float32
    least   [outputs, groups] in float32
    table   the 16 numbers that codes stand for; empty: themselves
    order   [inputs]; the input that each code is for; None: inputs are in their order
    """

    code: Tensor
    step: Tensor
    least: Tensor
    table: tuple[int, ...] = ()
    order: Tensor | None = None

    @property
    def most(self) -> int:
        """The largest number that a code stands for."""
        return max(self.table, default=INT4_MOST)


Codes = RowCodes | GroupCodes

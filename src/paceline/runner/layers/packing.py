"""Pack weights in the layout of the native kernels."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.runner.native.library import library
from paceline.runner.weights.codes import GroupCodes, RowCodes
from paceline.runner.weights.matrix import Matrix

LOST = 1 / 64  # of a step: largest error of 4 bits that counts as exact
SAMPLE = 64  # rows to check first
PIECE = 4096  # rows to round at a time, so that heads need no copies in 32 bits


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeights:
    """A matrix [outputs, inputs] of `bits` bits; bytes.c, int4.c and float32.c show the layout.

    width   inputs, padded with zeros
    table   [16]; values of 4-bit codes; uint8
    order   [inputs]; input of each 4-bit code; int32
    """

    bits: int
    content: Tensor
    scale: Tensor | None  # None: of 32 bits
    outputs: int
    inputs: int
    width: int
    table: Tensor | None = None
    order: Tensor | None = None

    @staticmethod
    def of(matrix: Matrix) -> "PackedWeights":
        """Pack weights. Codes of 4 bits, and of 8 with a scale per output, are kept. Others are
        rounded to 8 bits, or to 4 if these are exact."""
        codes, group = matrix.codes(), library().int4_group()
        if isinstance(codes, RowCodes):
            return packed_int8(codes.code, codes.scale)
        if codes is not None:
            steps = FourBitWeights.of_codes(codes, group)
            if steps is not None and steps.holds_all:
                return replace(packed_int4(steps, codes.code.shape[1]), **extras(codes))
        weight = matrix.dense()
        if FourBitWeights.of(weight[:SAMPLE], group).holds_all:
            steps = FourBitWeights.of(weight, group)
            if steps.holds_all:
                return packed_int4(steps, weight.shape[1])
        return packed_int8(*quantised(weight))


@dataclass(frozen=True, slots=True, eq=False)
class FourBitWeights:
    """Weights as least + step * (0 … 15), with `step` and `least` for every group of inputs."""

    whole: Tensor  # [outputs, groups, group], uint8
    step: Tensor  # [outputs, groups], float16
    least: Tensor  # [outputs, groups], float16
    holds_all: bool

    @staticmethod
    def of(weight: Tensor, group: int) -> "FourBitWeights":
        inputs = weight.shape[1]
        groups = F.pad(weight, (0, -inputs % group)).view(len(weight), -1, group)
        if inputs % group:  # padding must not extend the range of the last group
            groups[:, -1, inputs % group :] = groups[:, -1, :1]
        low, high = groups.aminmax(dim=-1)  # [outputs, groups] each
        least, step = low.half(), ((high - low) / 15).half()
        wide = torch.where(step > 0, step, 1).float().unsqueeze(-1)
        whole = (groups - least.float().unsqueeze(-1)).div_(wide).round_().clamp_(0, 15)
        found = whole * step.float().unsqueeze(-1) + least.float().unsqueeze(-1)
        missed = (found - groups).abs_().amax(dim=-1)
        holds_all = bool((missed <= LOST * step.float()).all())
        return FourBitWeights(whole.to(torch.uint8), step, least, holds_all)

    @staticmethod
    def of_codes(codes: GroupCodes, group: int) -> "FourBitWeights | None":
        """Codes in the kernel's groups; None if theirs cannot be divided into these. Float16 may
        lose `LOST` of the largest step of an output."""
        (outputs, inputs), groups = codes.code.shape, codes.step.shape[1]
        if groups > 1 and inputs % (groups * group):
            return None
        whole = F.pad(codes.code, (0, -inputs % group)).view(outputs, -1, group)
        least, step = codes.least.half(), codes.step.half()
        missed = (step.float() - codes.step).abs() * codes.most
        missed += (least.float() - codes.least).abs()
        holds_all = bool((missed <= LOST * codes.step.amax(dim=1, keepdim=True)).all())
        times = whole.shape[1] // groups
        step, least = (one.repeat_interleave(times, dim=1) for one in (step, least))
        return FourBitWeights(whole, step, least, holds_all)


def extras(codes: GroupCodes) -> dict[str, Tensor]:
    """The table and the order of codes, if present."""
    found: dict[str, Tensor] = {}
    if codes.table:
        assert max(codes.table) <= library().int4_table_most()
        found["table"] = torch.tensor(codes.table, dtype=torch.uint8)
    if codes.order is not None:
        found["order"] = codes.order.int()
    return found


def packed_int4(steps: FourBitWeights, inputs: int) -> PackedWeights:
    lanes = library().int4_lanes()
    outputs, groups, group = steps.whole.shape
    panel = 2 * lanes
    missing = -outputs % panel
    whole = F.pad(steps.whole, (0, 0, 0, 0, 0, missing))
    # [panels, groups, group / 4, lanes, 4] each
    parts = whole.view(-1, 2, lanes, groups, group // 4, 4).permute(0, 3, 4, 2, 5, 1)
    low, high = parts.unbind(dim=-1)
    scale = F.pad(torch.stack((steps.step, steps.least)), (0, 0, 0, missing))
    scale = scale.view(2, -1, panel, groups).permute(1, 3, 0, 2)  # [panels, groups, 2, panel]
    content = (low | (high << 4)).contiguous()
    return PackedWeights(4, content, scale.contiguous(), outputs, inputs, groups * group)


def packed_int8(whole: Tensor, scale: Tensor) -> PackedWeights:
    panel, depth = library().bytes_panel(), library().bytes_depth()
    outputs, inputs = whole.shape
    padded = F.pad(whole, (0, -inputs % depth, 0, -outputs % panel))
    width = padded.shape[1]
    # [panels, width / depth, panel, depth]
    content = padded.view(-1, panel, width // depth, depth).transpose(1, 2).contiguous()
    return PackedWeights(8, content, scale, outputs, inputs, width)


def packed_float32(weight: Tensor) -> PackedWeights:
    panel = library().float_panel()
    outputs, inputs = weight.shape
    padded = F.pad(weight.float(), (0, 0, 0, -outputs % panel))
    content = padded.view(-1, panel, inputs).transpose(1, 2).contiguous()  # [panels, inputs, panel]
    return PackedWeights(32, content, None, outputs, inputs, inputs)


def quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """8-bit integers, [outputs, inputs], and their scales, [outputs]."""
    low, high = weight.aminmax(dim=1)
    scale = torch.maximum(-low, high).clamp_(min=1e-30).div_(127)
    whole = torch.empty_like(weight, dtype=torch.int8)
    for first in range(0, len(weight), PIECE):
        rows = slice(first, first + PIECE)
        whole[rows] = (weight[rows] / scale[rows].unsqueeze(1)).round_()
    return whole, scale


class PackedStore(Protocol):
    """A store of the packed weights of a model's linears."""

    def packed(self, name: str, weight: Callable[[], Matrix]) -> PackedWeights:
        """The packed weights of a linear; `weight` reads the originals if they are not stored."""
        ...

    def save(self) -> None:
        """Store newly packed weights."""
        ...

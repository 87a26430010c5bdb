"""Weights as integers, in the layout that the kernels read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.runner.native.library import library

LOST = 1 / 64  # of a step: the largest error at which 4 bits count as exact
SAMPLE = 64  # rows that are checked first


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeights:
    """A matrix [outputs, inputs] of `bits` bits; bytes.c and int4.c show the layout."""

    bits: int
    content: Tensor
    scale: Tensor
    outputs: int
    inputs: int
    width: int  # inputs, padded with zeros

    @staticmethod
    def of(weight: Tensor) -> "PackedWeights":
        """Use 4 bits if they are exact, as for weights that were stored in 4 bits; otherwise 8."""
        group = library().int4_group()
        if FourBitWeights.of(weight[:SAMPLE], group).holds_all:
            steps = FourBitWeights.of(weight, group)
            if steps.holds_all:
                return nibbles(steps, weight.shape[1])
        return octets(weight)


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
        if inputs % group:  # padding must not widen the range of the last group
            groups[:, -1, inputs % group :] = groups[:, -1, :1]
        low, high = groups.aminmax(dim=-1)  # [outputs, groups] each
        least, step = low.half(), ((high - low) / 15).half()
        wide = torch.where(step > 0, step, 1).float().unsqueeze(-1)
        whole = (groups - least.float().unsqueeze(-1)).div_(wide).round_().clamp_(0, 15)
        found = whole * step.float().unsqueeze(-1) + least.float().unsqueeze(-1)
        missed = (found - groups).abs_().amax(dim=-1)
        holds_all = bool((missed <= LOST * step.float()).all())
        return FourBitWeights(whole.to(torch.uint8), step, least, holds_all)


def nibbles(steps: FourBitWeights, inputs: int) -> PackedWeights:
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


def octets(weight: Tensor) -> PackedWeights:
    panel, depth = library().bytes_panel(), library().bytes_depth()
    whole, scale = quantised(weight)
    outputs, inputs = weight.shape
    padded = F.pad(whole, (0, -inputs % depth, 0, -outputs % panel))
    width = padded.shape[1]
    # [panels, width / depth, panel, depth]
    content = padded.view(-1, panel, width // depth, depth).transpose(1, 2).contiguous()
    return PackedWeights(8, content, scale, outputs, inputs, width)


def quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Integers of 8 bits, [outputs, inputs], and their scales, [outputs]."""
    scale = weight.abs().amax(dim=1).clamp_(min=1e-30).div_(127)
    return (weight / scale.unsqueeze(1)).round_().to(torch.int8), scale


class PackedStore(Protocol):
    """Where a model finds the packed weights of its linears."""

    def packed(self, name: str, weight: Callable[[], Tensor]) -> PackedWeights:
        """The weights of a linear; `weight` reads them if they are not stored."""
        ...

    def save(self) -> None:
        """Store what was packed."""
        ...

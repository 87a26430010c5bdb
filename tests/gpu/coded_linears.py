"""Matrices of codes in groups of inputs."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from paceline.runner.weights.fp4 import NVFP4_GROUP, SIZES, Nvfp4Matrix
from paceline.runner.weights.matrix import Matrix
from paceline.runner.weights.quantized_matrix import FP8, CodedMatrix, groups_of_int4, rows_of_int8


def coded_matrix(weight: Tensor, bits: int, group: int, has_offset: bool) -> CodedMatrix:
    """Weights [outputs, inputs] as integers in groups. Some steps are 0, and some weights tiny."""
    weight = weight.clone()
    weight[:, :group] = 0
    weight[1] *= 1e-6
    groups, most = weight.view(len(weight), -1, group), (1 << bits) - 1
    if has_offset:
        low, high = groups.aminmax(dim=-1)
        step, offset = (high - low) / most, low
    else:
        step = groups.abs().amax(dim=-1) / (most // 2)
        offset = -8 * step if bits == 4 else torch.zeros_like(step)
    wide = step.clamp(min=1e-30).unsqueeze(-1)
    codes = ((groups - offset.unsqueeze(-1)) / wide).round().flatten(1)
    if bits == 4:
        return CodedMatrix(codes.clamp(0, 15).to(torch.uint8), step, offset)
    if has_offset:
        return CodedMatrix((codes - 128).clamp(-128, 127).to(torch.int8), step, offset + 128 * step)
    return CodedMatrix(codes.clamp(-127, 127).to(torch.int8), step)


def nvfp4_matrix(weight: Tensor) -> Nvfp4Matrix:
    """The tensors of two linears, with a scale each."""
    outputs = len(weight)
    whole = torch.full((outputs,), 0.01, device=weight.device)
    whole[outputs // 2 :] = 0.003
    groups = weight.view(outputs, -1, NVFP4_GROUP)
    scale = (groups.abs().amax(dim=-1) / 6 / whole.unsqueeze(1)).clamp(min=0.01).to(FP8)
    step = scale.float() * whole.unsqueeze(1)
    sizes, scaled = torch.tensor(SIZES, device=weight.device), groups / step.unsqueeze(-1)
    codes = torch.bucketize(scaled.abs(), (sizes[1:] + sizes[:-1]) / 2) + 8 * (scaled < 0)
    codes = codes.flatten(1).to(torch.uint8)
    return Nvfp4Matrix(codes[:, ::2] | codes[:, 1::2] << 4, scale, whole)


MATRICES: dict[str, Callable[[Tensor], Matrix]] = {
    "Q4_0": partial(coded_matrix, bits=4, group=32, has_offset=False),
    "Q4_K": partial(coded_matrix, bits=4, group=32, has_offset=True),
    "Q2_K": partial(coded_matrix, bits=4, group=16, has_offset=True),
    "int4 by groups of 128": partial(coded_matrix, bits=4, group=128, has_offset=True),
    "int4 with zeros": partial(groups_of_int4, group=32),
    "Q5_K": partial(coded_matrix, bits=8, group=32, has_offset=True),
    "Q6_K": partial(coded_matrix, bits=8, group=16, has_offset=False),
    "Q8_0": partial(coded_matrix, bits=8, group=32, has_offset=False),
    "int8 by groups of 64": partial(coded_matrix, bits=8, group=64, has_offset=True),
    "int8 by groups of 256": partial(coded_matrix, bits=8, group=256, has_offset=False),
    "int8 by rows": rows_of_int8,
    "nvfp4": nvfp4_matrix,
}

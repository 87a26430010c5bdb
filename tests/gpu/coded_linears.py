"""Matrices of codes in groups of inputs."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from benchmarks.coded_formats import codes_in_groups
from paceline.runner.weights.fp4 import Mxfp4Matrix, Nvfp4Matrix
from paceline.runner.weights.matrix import Matrix
from paceline.runner.weights.quantized_matrix import CodedMatrix, groups_of_int4, rows_of_int8


def coded(weight: Tensor, bits: int, group: int, has_offset: bool) -> CodedMatrix:
    """Some steps are 0, and some weights tiny."""
    weight = weight.clone()
    weight[:, :group] = 0
    weight[1] *= 1e-6
    return codes_in_groups(weight, bits, group, has_offset)


MATRICES: dict[str, Callable[[Tensor], Matrix]] = {
    "Q4_0": partial(coded, bits=4, group=32, has_offset=False),
    "Q4_K": partial(coded, bits=4, group=32, has_offset=True),
    "Q2_K": partial(coded, bits=4, group=16, has_offset=True),
    "int4 by groups of 128": partial(coded, bits=4, group=128, has_offset=True),
    "int4 with zeros": partial(groups_of_int4, group=32),
    "Q5_K": partial(coded, bits=8, group=32, has_offset=True),
    "Q6_K": partial(coded, bits=8, group=16, has_offset=False),
    "Q8_0": partial(coded, bits=8, group=32, has_offset=False),
    "int8 by groups of 64": partial(coded, bits=8, group=64, has_offset=True),
    "int8 by groups of 256": partial(coded, bits=8, group=256, has_offset=False),
    "int8 by rows": rows_of_int8,
    "nvfp4": Nvfp4Matrix.of,
    "mxfp4": Mxfp4Matrix.of,
}

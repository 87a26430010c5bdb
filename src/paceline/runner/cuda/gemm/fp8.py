"""Linears of fp8 weights on the tensor cores for fp8: rows are quantized too."""

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.functional import ScalingType, scaled_mm

from paceline.runner.cuda.gemm.fp8_codes import quantized_rows
from paceline.runner.cuda.gemm.library import QuantizedInputs
from paceline.runner.cuda.gemm.linear_kernel import LinearKernel, LinearWeights, Use
from paceline.runner.cuda.gemm.streamed_gemm import BLOCK, TILE, Outcome, Scales, Wave, kernel_for
from paceline.runner.cuda.kernels.layers import DeferredNorm
from paceline.runner.cuda.kernels.nvrtc import TensorMap, can_compile
from paceline.runner.tensors import processors_of
from paceline.runner.weights.quantized_matrix import FP8, ScaledMatrix

STREAMED_BYTES = 16 << 20  # of weights
# Up to so many rows, this is faster than the library.
STREAMED_ROWS: Mapping[Scales, Mapping[Use, int]] = {
    "rows": {Use.NORMED: 192, Use.ADDED: 256, Use.GATED: 256},
    "blocks": {Use.NORMED: 64, Use.ADDED: 128, Use.GATED: 128},
}
ALIGNED = 16  # what the library multiplies must be a multiple
SCALES = 4  # the library takes a multiple of so many scales of blocks of an output


ROWS_TIMES_ROWS = ScalingType.RowWise, ScalingType.RowWise
GROUPS_TIMES_BLOCKS = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128


def fp8_of(weights: LinearWeights) -> ScaledMatrix | None:
    """The weights, if they are fp8 with scales of rows or of blocks of 128 x 128."""
    matrix = weights.matrix
    if not isinstance(matrix, ScaledMatrix) or matrix.weight.dtype != FP8:
        return None
    return matrix if matrix.is_by_row or matrix.block == (BLOCK, BLOCK) else None


class Fp8Streamed(LinearKernel):
    """Some rows, each of which is quantized, as fast as the weights can be read: see
    `streamed_gemm.cu`."""

    name = "fp8_streamed"
    scales: ClassVar[Scales] = "rows"

    def __init__(
        self, weights: LinearWeights, matrix: ScaledMatrix, waves: Mapping[int, Wave]
    ) -> None:
        """`waves`: by the most rows that they take."""
        self._weights, self._matrix = weights, matrix
        self.most_rows = max(waves)
        maps = (TensorMap(matrix.weight, (wave.lines, BLOCK)) for wave in waves.values())
        self._waves = [(*each, box) for each, box in zip(waves.items(), maps, strict=True)]

    @classmethod
    def of(cls, weights: LinearWeights, use: Use) -> "Fp8Streamed | None":
        matrix = fp8_of(weights)
        is_plain = weights.bias is None and weights.dtype == torch.bfloat16
        most = STREAMED_ROWS[cls.scales].get(use)
        if matrix is None or not is_plain or most is None:
            return None
        if matrix.is_by_row != (cls.scales == "rows"):
            return None
        device = matrix.weight.device
        if matrix.weight.numel() < STREAMED_BYTES or not can_compile(device):
            return None
        outputs, inputs = matrix.shape
        if not matrix.is_by_row and (outputs % (2 * BLOCK) or inputs % BLOCK):
            return None
        sizes = inputs // 2, outputs, processors_of(device)  # two inputs are one of bf16
        waves = Wave.of(*sizes), Wave.of(*sizes, most=1, rounds=2) if use is Use.GATED else None
        found = {one.most_rows(most, cls.scales): one for one in waves if one is not None}
        return cls(weights, matrix, dict(sorted(found.items()))) if waves[0] is not None else None

    def plain(self, x: Tensor) -> Tensor:
        out = x.new_empty((len(x), self._matrix.shape[0]))
        self._run("PUT", x, out, None)
        return out

    def normed(self, hidden: Tensor, floor: float) -> tuple[Tensor, DeferredNorm]:
        out = hidden.new_empty((len(hidden), self._matrix.shape[0]))
        self._run("PUT", hidden, out, floor)
        return out, DeferredNorm(hidden, 0.0, 0)

    def gated(self, hidden: Tensor, floor: float, is_silu: bool) -> Tensor:
        out = hidden.new_empty((len(hidden), self._matrix.shape[0] // 2))
        self._run("SILU" if is_silu else "GELU", hidden, out, floor)
        return out

    def add_to(self, total: Tensor, x: Tensor) -> None:
        self._run("ADD", x, total, None)

    def _run(self, outcome: Outcome, x: Tensor, out: Tensor, floor: float | None) -> None:
        group = 0 if self._matrix.is_by_row else BLOCK
        codes, scale = quantized_rows(x, self._weights.factor, floor, group)
        rows, inputs = x.shape
        wave, lines = next((wave, box) for most, wave, box in self._waves if rows <= most)
        kernel = kernel_for(wave, -(-rows // TILE), outcome, scales=self.scales)
        given = TensorMap(codes, (rows, BLOCK))
        shape = rows, inputs, out.shape[1], 0.0
        kernel.launch(wave.programs, (lines, given, out, *shape, scale, self._matrix.scale))


class Fp8Blocks(Fp8Streamed):
    """The same, with scales of blocks. Few rows are faster without quantizing them."""

    name = "fp8_blocks"
    scales = "blocks"


class Fp8Library(QuantizedInputs):
    """Many rows, each of which is quantized too, by torch's library."""

    name = "fp8_library"

    def __init__(self, weights: LinearWeights, matrix: ScaledMatrix) -> None:
        self._weights, self._matrix = weights, matrix
        blocks = matrix.scale.shape[1]
        missing = 0 if matrix.is_by_row else -blocks % SCALES
        self._scale = F.pad(matrix.scale, (0, missing)).t()

    @classmethod
    def of(cls, weights: LinearWeights, use: Use) -> "Fp8Library | None":
        matrix = fp8_of(weights)
        if matrix is None or weights.dtype != torch.bfloat16:
            return None
        unit = ALIGNED if matrix.is_by_row else BLOCK
        is_aligned = not any(size % unit for size in matrix.shape)
        return cls(weights, matrix) if is_aligned and can_multiply(matrix.weight) else None

    def multiplied(self, x: Tensor, floor: float | None) -> Tensor:
        matrix, bias = self._matrix, self._weights.bias
        group = 0 if matrix.is_by_row else BLOCK
        codes, scale = quantized_rows(x, self._weights.factor, floor, group)
        ways = ROWS_TIMES_ROWS if matrix.is_by_row else GROUPS_TIMES_BLOCKS
        found = scaled_mm(
            codes,
            matrix.weight.t(),
            scale,
            ways[0],
            self._scale,
            ways[1],
            output_dtype=x.dtype,
        )[: len(x)]
        return found if bias is None else found.add_(bias)


def can_convert(device: torch.device) -> bool:
    """Whether Triton's kernels have fp8 on this device: on GPUs since Ada."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 9)


def can_multiply(weight: Tensor) -> bool:
    """Whether the library multiplies fp8 with scales of rows on this device: Hopper and later."""
    device = weight.device
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)

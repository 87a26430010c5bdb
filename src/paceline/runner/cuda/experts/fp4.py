"""Experts in MXFP4 by grouped GEMMs in CUDA C++.

The kernel is `fp4_experts.cu`. This module chooses its shape and launches it.
"""

from dataclasses import dataclass, replace
from functools import cache

import torch
import triton
from torch import Tensor

from paceline.runner.cuda.experts.choice import ALONE
from paceline.runner.cuda.experts.grouped import add_pairs
from paceline.runner.cuda.experts.sort import inputs_of_pairs
from paceline.runner.cuda.gemm.coded_matrix import CodeKind, KernelMatrix
from paceline.runner.cuda.gemm.linear_kernel import (
    ExpertChoice,
    ExpertGate,
    ExpertKernel,
    ExpertWeights,
)
from paceline.runner.cuda.kernels.nvrtc import (
    ALIGNED,
    SHARED_BYTES,
    Kernel,
    TensorMap,
    can_compile,
    expect,
    multiply,
    source_of,
)
from paceline.runner.tensors import processors_of
from paceline.runner.weights.fp4 import GROUP

# As in the kernel.
WARPGROUPS, LINES, DEPTH, MOST_EXPERTS = 4, 128, 128, 1024
# Of a tile. With more, sums and weights of a thread exceed its registers.
PAIRS = 16, 32, 48, 64, 112
MOST_STAGES = 12


class Fp4Experts(ExpertKernel):
    """Inputs stay as they are, in bfloat16. Those of all pairs are copied in the order of their
    experts, and in the order in which threads decode weights."""

    name = "fp4"
    least_rows = ALONE + 1

    def __init__(self, weights: ExpertWeights, gate_up: KernelMatrix, down: KernelMatrix) -> None:
        self.weights = replace(weights, gate_up=gate_up, down=down)
        self._gate_up = _Grouped.of(gate_up, weights.gate_up_bias, weights.gate)
        self._down = _Grouped.of(down, weights.down_bias, None)

    @classmethod
    def of(cls, weights: ExpertWeights) -> "Fp4Experts | None":
        gate_up, down = (KernelMatrix.of(one) for one in (weights.gate_up, weights.down))
        if gate_up is None or down is None or weights.dtype != torch.bfloat16:
            return None
        is_known = all(
            _is_mxfp4(one) and len(one.weight) <= MOST_EXPERTS for one in (gate_up, down)
        )
        return cls(weights, gate_up, down) if is_known and can_compile(down.weight.device) else None

    def add_to(self, total: Tensor, x: Tensor, choice: ExpertChoice) -> None:
        given = inputs_of_pairs(x, self.weights.factor, choice, DEPTH)
        parts = self._down(self._gate_up(given, choice), choice)
        add_pairs(total, parts, choice, is_sorted=True)


def _is_mxfp4(matrix: KernelMatrix) -> bool:
    is_fp4 = matrix.kind is CodeKind.FP4 and matrix.step.dtype == torch.bfloat16
    return is_fp4 and matrix.group == GROUP == matrix.half


@dataclass(frozen=True, slots=True, eq=False)
class _Grouped:
    """One of the two products of all experts.

    inputs, outputs   of the product
    width             of a row of the result; if it is gated, zeros follow the outputs
    """

    weight: TensorMap
    step: TensorMap
    scale: Tensor
    bias: Tensor | None
    gate: ExpertGate | None
    inputs: int
    outputs: int
    width: int

    @staticmethod
    def of(matrix: KernelMatrix, bias: Tensor | None, gate: ExpertGate | None) -> "_Grouped":
        lines, inputs = matrix.shape
        weight = TensorMap(matrix.weight, (1, LINES, DEPTH // 2), is_swizzled=False)
        step = TensorMap(matrix.step, (1, DEPTH // GROUP, LINES), is_swizzled=False)
        outputs = lines if gate is None else lines // 2
        width = outputs if gate is None else triton.cdiv(outputs, DEPTH) * DEPTH
        return _Grouped(weight, step, matrix.scale, bias, gate, inputs, outputs, width)

    def __call__(self, x: Tensor, choice: ExpertChoice) -> Tensor:
        """The product of inputs [pairs, width], both in the order of the experts."""
        assert choice.ends is not None
        pairs = tile_pairs(len(x), choice.experts)
        expect(kernel_for(most, self.gate) for most in PAIRS)
        out = x.new_empty((len(x), self.width))
        given = TensorMap(x, (pairs, DEPTH // 2))
        bias = self.scale if self.bias is None else self.bias
        numbers = self.scale, bias, choice.ends, out, choice.experts, self.inputs, self.outputs
        arguments = (self.weight, self.step, given, *numbers, self.width, int(bias is self.bias))
        kernel_for(pairs, self.gate).launch(processors_of(x.device), arguments)
        return out


def tile_pairs(pairs: int, experts: int) -> int:
    """Half more than an expert has on average, so that most have one tile."""
    return next((most for most in PAIRS if 2 * most * experts >= 3 * pairs), PAIRS[-1])


@cache
def kernel_for(pairs: int, gate: ExpertGate | None) -> Kernel:
    shared = ALIGNED + stages_of(pairs) * stage_bytes(pairs)
    return Kernel(source_for(pairs, gate), "fp4_experts", WARPGROUPS * 128 + 128, shared)


def source_for(pairs: int, gate: ExpertGate | None) -> str:
    clamp = None if gate is None else gate.clamp
    sizes: dict[str, int | str] = {
        "PAIRS": pairs,
        "STAGES": stages_of(pairs),
        "GATED": int(gate is not None),
        "SILU": int(gate is not None and gate.is_silu),
        "CLAMPED": int(clamp is not None),
        "ALPHA": f"{0.0 if clamp is None else clamp.alpha:e}f",
        "LIMIT": f"{0.0 if clamp is None else clamp.limit:e}f",
    }
    return source_of("fp4_experts", sizes, multiply("multiply", pairs, is_held=True), "tiles")


def stage_bytes(pairs: int) -> int:
    """Inputs of pairs; codes of both boxes, and their steps."""
    return DEPTH * (2 * pairs + LINES + 2 * 2 * LINES // GROUP)


def stages_of(pairs: int) -> int:
    return min((SHARED_BYTES - ALIGNED) // stage_bytes(pairs), MOST_STAGES)

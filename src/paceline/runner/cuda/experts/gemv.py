"""Experts of few rows, as fast as their weights can be read, in CUDA C++.

The kernels are in `experts.cu`. This module chooses their shapes and launches them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from paceline.runner.cuda.experts.grouped import fp8_of
from paceline.runner.cuda.gemm.gemv import FEW_WARPS, PAD_BYTES, SHARED_BYTES
from paceline.runner.cuda.gemm.linear_kernel import (
    ExpertChoice,
    ExpertKernel,
    ExpertWeights,
    RouterOutputs,
    SharedWeights,
)
from paceline.runner.cuda.kernels.nvrtc import Kernel, can_compile, source_of
from paceline.runner.models.experts import Routing
from paceline.runner.tensors import processors_of
from paceline.runner.weights.matrix import Matrix, PlainMatrix

LINES = 16  # outputs of a tile
UNITS = {"BF16": 64, "FP8": 128}  # inputs that a warp reads at a time
AHEAD = 2, 5  # units in registers, of gate_up and of down
FEW = 1  # rows; more have not been timed
MOST_PAIRS = 32  # of a row: a thread of a warp finds each


@dataclass(frozen=True, slots=True, eq=False)
class GemvOperand:
    """Weights as the kernel reads them. Plain ones have no scale: it is not read."""

    form: str
    shape: tuple[int, int]
    weight: Tensor
    scale: Tensor
    is_blocked: bool = False

    @staticmethod
    def of(matrix: Matrix) -> "GemvOperand | None":
        """None: the kernel cannot read these weights."""
        outputs, inputs = matrix.shape
        if isinstance(matrix, PlainMatrix) and matrix.weight.dtype == torch.bfloat16:
            found = GemvOperand("BF16", matrix.shape, matrix.weight, matrix.weight)
        elif (fp8 := fp8_of(matrix)) is not None:
            found = GemvOperand("FP8", fp8.shape, fp8.weight, fp8.scale, not fp8.is_by_row)
        else:
            return None
        return None if outputs % LINES or inputs % UNITS[found.form] else found

    def is_like(self, other: "GemvOperand | None") -> bool:
        """Whether one kernel reads both."""
        if other is None:
            return False
        mine = self.form, self.shape, self.is_blocked
        return mine == (other.form, other.shape, other.is_blocked)


Numbers = Mapping[str, int | str]
NOT_SCORED: Numbers = dict.fromkeys(
    ("SCORED", "SIGMOID", "CORRECTED", "SUMS_TO_ONE", "SCALE", "SHARED", "GATE"), 0
)


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One of the two kernels, for the experts of a layer.

    constants   those of `experts.cu` that the choice of experts does not give
    """

    operand: GemvOperand
    bias: Tensor | None
    factor: Tensor | None
    processors: int
    constants: Numbers

    @staticmethod
    def of(weights: ExpertWeights, operand: GemvOperand, is_gate: bool) -> "Step":
        gate = weights.gate
        bias = weights.gate_up_bias if is_gate else weights.down_bias
        factor = weights.factor if is_gate else None
        alpha, limit = (gate.clamp.alpha, gate.clamp.limit) if gate.clamp else (0.0, 0.0)
        constants = {
            "FORM": operand.form,
            "BLOCKED": int(operand.is_blocked),
            "AHEAD": AHEAD[0 if is_gate else 1],
            "GATED": int(is_gate),
            "OUTPUTS": operand.shape[0],
            "INPUTS": operand.shape[1],
            "FACTORED": int(factor is not None),
            "BIASED": int(bias is not None),
            "SILU": int(gate.is_silu),
            "ALPHA": f"{float(alpha)!r}f",
            "LIMIT": f"{float(limit)!r}f",
        }
        processors = processors_of(operand.weight.device)
        return Step(operand, bias, factor, processors, constants)

    def run(
        self,
        choice: "Chosen",
        shared: GemvOperand | None,
        x: Tensor,
        out: Tensor,
        floor: float | None = None,
    ) -> None:
        """For rows of x, which may be some pairs each."""
        operand, rows, beside = self.operand, choice.rows, shared or self.operand
        pairs = int(choice.constants["CHOSEN"]) + int(choice.constants["SHARED"])
        outputs, inputs = operand.shape
        is_gate = bool(self.constants["GATED"])
        tiles, width = pairs * (outputs // 2), inputs
        if not is_gate:
            tiles, width = outputs, pairs * inputs
        constants = dict(
            self.constants,
            WARPS=min(width // UNITS[operand.form], FEW_WARPS),
            NORMED=int(floor is not None),
            **choice.constants,
        )
        kernel_for(tuple(constants.items())).launch(
            min(rows * tiles // LINES, self.processors),
            (
                *(operand.weight, operand.scale, beside.weight, beside.scale),
                *(x if self.bias is None else self.bias, choice.first, choice.second),
                *(x, x if self.factor is None else self.factor, out, rows, floor or 0.0),
            ),
            rows * (2 * width + PAD_BYTES),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """Where kernels find the experts of some rows: in tiles and shares, or in scores and a
    correction."""

    first: Tensor
    second: Tensor
    rows: int
    constants: Numbers

    @staticmethod
    def of(choice: ExpertChoice) -> "Chosen":
        sizes = {"COUNT": choice.experts, "CHOSEN": choice.chosen, **NOT_SCORED}
        return Chosen(choice.tiles, choice.share, len(choice.share), sizes)

    @staticmethod
    def by(scores: RouterOutputs) -> "Chosen":
        routing, outputs, correction = scores.routing, scores.outputs, scores.correction
        sizes = {
            "COUNT": scores.experts,
            "CHOSEN": routing.chosen,
            "SCORED": 1,
            "SIGMOID": int(routing.scores == "sigmoid"),
            "CORRECTED": int(correction is not None),
            "SUMS_TO_ONE": int(routing.shares_sum_to_one),
            "SCALE": f"{float(routing.scale)!r}f",
            "SHARED": int(scores.shared is not None),
            "GATE": outputs.shape[1] - scores.experts,
        }
        second = outputs if correction is None else correction
        return Chosen(outputs, second, len(outputs), sizes)


class GemvExperts(ExpertKernel):
    """Each pair is computed by itself. Inputs stay as they are, in bf16."""

    name = "gemv"
    most_rows = most_scored = FEW

    def __init__(self, weights: ExpertWeights, gate_up: GemvOperand, down: GemvOperand) -> None:
        self.weights, self._operands = weights, (gate_up, down)
        self._gate_up, self._down = Step.of(weights, gate_up, True), Step.of(weights, down, False)

    @classmethod
    def of(cls, weights: ExpertWeights) -> "GemvExperts | None":
        if weights.dtype != torch.bfloat16 or not weights.gate.is_gated:
            return None
        gate_up, down = GemvOperand.of(weights.gate_up), GemvOperand.of(weights.down)
        if gate_up is None or down is None or gate_up.shape[0] % (2 * LINES):
            return None
        return cls(weights, gate_up, down) if can_compile(gate_up.weight.device) else None

    def add_to(self, total: Tensor, x: Tensor, choice: ExpertChoice) -> None:
        between = x.new_empty((len(choice.pairs), self._down.operand.shape[1]))
        chosen = Chosen.of(choice)
        self._gate_up.run(chosen, None, x, between)
        self._down.run(chosen, None, between, total)

    def takes_scores(self, routing: Routing, shared: SharedWeights | None) -> bool:
        count = routing.chosen + (shared is not None)
        used = FEW * (2 * count * self._down.operand.shape[1] + PAD_BYTES)
        if count > MOST_PAIRS or used > SHARED_BYTES:
            return False
        if routing.of_inputs or (routing.groups is not None and routing.groups.count > 1):
            return False
        if shared is None:
            return True
        weights = self.weights
        is_plain = weights.gate.clamp is None and weights.gate_up_bias is weights.down_bias is None
        if not is_plain or (shared.factor is None) is not (weights.factor is None):
            return False
        pairs = zip(self._operands, (shared.gate_up, shared.down), strict=True)
        return all(mine.is_like(GemvOperand.of(other)) for mine, other in pairs)

    def add_scored(self, total: Tensor, hidden: Tensor, scores: RouterOutputs) -> None:
        shared, chosen = scores.shared, Chosen.by(scores)
        pairs = scores.routing.chosen + (shared is not None)
        between = hidden.new_empty((len(hidden) * pairs, self._down.operand.shape[1]))
        first, second = None, None
        if shared is not None:
            first, second = GemvOperand.of(shared.gate_up), GemvOperand.of(shared.down)
        self._gate_up.run(chosen, first, hidden, between, scores.floor)
        self._down.run(chosen, second, between, total)


@cache
def kernel_for(constants: tuple[tuple[str, int | str], ...]) -> Kernel:
    sizes = dict(constants)
    threads = int(sizes["WARPS"]) * 32 + 32
    return Kernel(source_of("experts", sizes, "", "units"), "experts", threads, SHARED_BYTES)

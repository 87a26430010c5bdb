"""Linears of codes in groups of inputs, against float32."""

import pytest
import torch
import torch.nn.functional as F

from paceline.runner.cuda.gemm.coded import CodedDecoded, CodedFew
from paceline.runner.cuda.gemm.coded_matrix import KernelMatrix
from paceline.runner.cuda.gemm.linear_kernel import LinearKernel, LinearWeights, Use
from paceline.runner.cuda.linears import CudaLinear
from paceline.runner.layers.linear import LinearParts
from paceline.runner.weights.quantized_matrix import CodedMatrix
from tests.gpu.coded_linears import MATRICES
from tests.gpu.quantized_linears import EPSILON, check_sums, close, expected, normed, quantized

NARROW = ("Q4_K", "Q2_K", "Q6_K", "int8 by rows", "nvfp4")
SHAPES = [*((name, 512) for name in MATRICES), *((name, 320) for name in NARROW)]


@pytest.mark.parametrize(("name", "inputs"), SHAPES)
def test_weights_stay_the_same_when_their_codes_are_reordered(name: str, inputs: int) -> None:
    matrix = MATRICES[name](torch.randn(64, inputs))
    kept = KernelMatrix.of(matrix)
    assert kept is not None
    assert kept.shape == matrix.shape
    due = matrix.dense()
    most = due.abs().amax(dim=1, keepdim=True)
    assert ((kept.dense() - due).abs() <= 2**-10 * most).all()


@pytest.mark.parametrize(
    ("outputs", "inputs", "group"), [(65, 256, 32), (64, 96, 32), (64, 128, 8)]
)
def test_other_sizes_are_decoded(outputs: int, inputs: int, group: int) -> None:
    codes = torch.ones(outputs, inputs, dtype=torch.int8)
    matrix = CodedMatrix(codes, torch.ones(outputs, inputs // group))
    linear = CudaLinear(LinearParts("linear", lambda: matrix, None, None, torch.float16))
    form = f"int8 by groups of {group}"
    what = f"{outputs} x {inputs} in float16, decoded from {form}: library"
    assert str(linear.choice(Use.PLAIN)) == what


CASES = [(CodedFew, name, 256) for name in MATRICES]
CASES += [(CodedDecoded, name, 256) for name in ("Q4_K", "Q6_K", "nvfp4")]
CASES += [(kind, name, 192) for kind in (CodedFew, CodedDecoded) for name in ("Q4_K", "Q6_K")]


@pytest.mark.parametrize(("kind", "name", "inputs"), CASES)
def test_linears(kind: type[LinearKernel], name: str, inputs: int) -> None:
    weights = quantized(name, (64, inputs), True, "cpu", torch.float16)
    x = torch.randn(3, inputs).half()
    due = expected(weights, x)
    kernel = kind.of(weights, Use.ADDED)
    assert kernel is not None
    assert isinstance(weights.matrix, KernelMatrix)
    check_sums(kernel, x, due, 4e-3)


@pytest.mark.parametrize("rows", [2, 17])
def test_norms_and_gates(rows: int) -> None:
    matrix = MATRICES["Q4_K"](torch.randn(64, 256) * 256**-0.5)
    factor = torch.rand(256) + 0.5
    weights = LinearWeights("linear", matrix, None, factor, torch.float16)
    x = torch.randn(rows, 256).half()
    due = expected(weights, normed(x))
    kernel = CodedFew.of(weights, Use.GATED)
    assert kernel is not None
    found, late = kernel.normed(x, EPSILON)
    assert late.width == 0  # rows are divided before the linear, whose range float16 exceeds
    close(found, due, 4e-3)
    gate, up = due.chunk(2, dim=1)
    close(kernel.gated(x, EPSILON, True), F.silu(gate) * up, 1e-2)

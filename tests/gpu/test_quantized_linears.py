"""Linears of quantized weights on a GPU, against float32."""

from copy import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from paceline.runner.cuda.gemm.coded import CodedDecoded, CodedFew
from paceline.runner.cuda.gemm.fp8 import Fp8Blocks, Fp8Library, Fp8Streamed
from paceline.runner.cuda.gemm.gemv import Fp8Gemv, Int4Gemv
from paceline.runner.cuda.gemm.humming import Humming
from paceline.runner.cuda.gemm.int4_panels import Int4Panels, PanelsDecoded
from paceline.runner.cuda.gemm.linear_kernel import LinearKernel, Use
from paceline.runner.cuda.gemm.scaled import Int8Library, ScaledDecoded, ScaledFew
from paceline.runner.weights.quantized_matrix import ScaledMatrix
from tests.gpu.quantized_linears import (
    CODED,
    EPSILON,
    FP8_SCALED,
    INT4,
    MATRICES,
    SCALED,
    Quantized,
    check_sums,
    close,
    expected,
    normed,
    quantized,
)
from tests.gpu.support import ON_GPU, on_hopper, replayed, with_humming

pytestmark = ON_GPU

Kind = type[LinearKernel]
Bounds = tuple[float, float]  # how far a linear, and a gate of two, may be from float32
CODES, SCALES = (6e-3, 2e-2), (6e-3, 1.2e-2)  # a decoded weight is rounded to 16 bits once more
ROUNDED = (5e-2, 1e-1)  # inputs are rounded to 8 bits
ARRANGED = (1.2e-2, 3e-2)  # scales and zeros have 16 bits too
BY_HUMMING = {
    name: MATRICES[name]
    for name in ("int4 with zeros by groups of 128", "Q4_K", "Q2_K", "Q6_K", "nvfp4", "mxfp4")
}
KINDS: dict[Kind, tuple[dict[str, Quantized], Bounds]] = {
    CodedFew: (CODED, CODES),
    CodedDecoded: (CODED, CODES),
    Int4Gemv: (INT4, CODES),
    Int4Panels: (INT4, CODES),
    PanelsDecoded: (INT4, CODES),
    ScaledFew: (SCALED, SCALES),
    ScaledDecoded: (SCALED, SCALES),
    Fp8Gemv: (FP8_SCALED, CODES),
    Fp8Library: (FP8_SCALED, ROUNDED),
    Fp8Streamed: (FP8_SCALED, ROUNDED),
    Fp8Blocks: (FP8_SCALED, ROUNDED),
    Humming: (BY_HUMMING, ARRANGED),
}
CASES = [
    pytest.param(
        *(kind, name, bounds),
        id=f"{kind.name}: {name}",
        marks=[with_humming] if kind is Humming else [],
    )
    for kind, (matrices, bounds) in KINDS.items()
    for name in matrices
]
ROWS = (1, 2, 5, 8, 16, 17, 64, 100, 128, 192, 256, 300)
WIDE = (5120, 17408)


@on_hopper
@pytest.mark.parametrize(("kind", "name", "bounds"), CASES)
@pytest.mark.parametrize("is_full", [False, True], ids=["least", "most"])
@pytest.mark.parametrize("shape", [(1024, 1024), WIDE, (34816, 5120)])
def test_every_use(
    kind: Kind, name: str, bounds: Bounds, is_full: bool, shape: tuple[int, int]
) -> None:
    (outputs, inputs), (bound, gate_bound) = shape, bounds
    weights = quantized(name, shape, is_full)
    read = copy(weights)  # kernels change the form of weights
    kernel = kind.of(weights, Use.ADDED)
    if kernel is None:
        is_left = kind is ScaledFew and name == "fp8 by blocks"  # to the library
        scales = {Fp8Streamed: "fp8 by rows", Fp8Blocks: "fp8 by blocks"}
        is_streamed = name == scales.get(kind) and not is_full and outputs * inputs >= 16 << 20
        assert is_left or (kind in scales and not is_streamed)
        return
    gated = kind.of(weights, Use.GATED)
    assert gated is not None
    for rows in (rows for rows in ROWS if rows <= kernel.most_rows):
        x = torch.randn(rows, inputs, device="cuda").bfloat16()
        due = expected(read, x)
        check_sums(kernel, x, due, bound)
        assert torch.equal(kernel.plain(x), kernel.plain(x))  # in the same order every time
        if rows <= gated.most_rows:
            gate, up = expected(read, normed(x)).chunk(2, dim=1)
            close(gated.gated(x, EPSILON, True), F.silu(gate) * up, gate_bound)
            due = F.gelu(gate, approximate="tanh") * up
            close(gated.gated(x, EPSILON, False), due, gate_bound)


@on_hopper
@pytest.mark.parametrize(("kind", "name", "bounds"), CASES)
def test_in_a_graph(kind: Kind, name: str, bounds: Bounds) -> None:
    weights = quantized(name, WIDE, is_full=False)
    read = copy(weights)
    kernel = kind.of(weights, Use.ADDED)
    if kernel is None:
        assert (name == "fp8 by blocks") == (kind in {Fp8Streamed, ScaledFew})
        return
    x = torch.randn(min(33, kernel.most_rows), WIDE[1], device="cuda").bfloat16()
    close(replayed(lambda: kernel.plain(x), times=20), expected(read, x), bounds[0])


@on_hopper
@pytest.mark.parametrize("kind", [CodedFew, CodedDecoded])
@pytest.mark.parametrize("name", ["Q4_K", "Q2_K", "Q6_K", "int8 by rows", "nvfp4"])
def test_inputs_that_are_a_multiple_of_64(kind: Kind, name: str) -> None:
    weights = quantized(name, (960, 2880), is_full=True)
    x = torch.randn(7, 2880, device="cuda").bfloat16()
    due, kernel = expected(weights, x), kind.of(weights, Use.PLAIN)
    assert kernel is not None
    close(kernel.plain(x), due, 6e-3)


@on_hopper
@pytest.mark.parametrize("kind", [CodedFew, CodedDecoded])
@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "nvfp4"])
def test_models_in_float16(kind: Kind, name: str) -> None:
    weights = quantized(name, (1024, 1024), is_full=True, dtype=torch.float16)
    x = torch.randn(9, 1024, device="cuda").half()
    due, kernel = expected(weights, x), kind.of(weights, Use.PLAIN)
    assert kernel is not None
    close(kernel.plain(x), due, 4e-3)


@on_hopper
@pytest.mark.parametrize("rows", [65, 300, 2048])
@pytest.mark.parametrize("is_full", [False, True], ids=["least", "most"])
def test_inputs_are_quantized_too_if_the_weights_were_made_for_that(
    rows: int, is_full: bool
) -> None:
    weights = quantized("int8 by rows", WIDE, is_full)
    assert isinstance(weights.matrix, ScaledMatrix)
    weights.matrix = replace(weights.matrix, input_bits=8)
    kernel = Int8Library.of(weights, Use.ADDED)
    assert kernel is not None
    x = torch.randn(rows, WIDE[1], device="cuda").bfloat16()
    due = expected(weights, x)
    close(replayed(lambda: kernel.plain(x), times=20), due, 2e-2)
    check_sums(kernel, x, due, 2e-2)
    gate, up = expected(weights, normed(x)).chunk(2, dim=1)
    close(kernel.gated(x, EPSILON, True), F.silu(gate) * up, 6e-2)

"""Linears of fp8 weights, against float32."""

import pytest
import torch

from paceline.runner.cuda.gemm.fixed_tiles import FixedFp8, Tiles, multiply_codes
from paceline.runner.cuda.gemm.fp8_codes import quantized_rows
from paceline.runner.cuda.gemm.linear_kernel import LinearKernel, Use
from paceline.runner.cuda.gemm.scaled import ScaledDecoded, ScaledFew
from paceline.runner.weights.quantized_matrix import ScaledMatrix
from tests.gpu.quantized_linears import FP8_SCALED, check_sums, expected, quantized


@pytest.mark.parametrize("kind", [ScaledFew, ScaledDecoded])
@pytest.mark.parametrize("is_full", [False, True], ids=["least", "most"])
@pytest.mark.parametrize("name", FP8_SCALED)
def test_few_rows(kind: type[LinearKernel], is_full: bool, name: str) -> None:
    weights = quantized(name, (160, 512), is_full, "cpu", torch.float16)
    kernel = kind.of(weights, Use.ADDED)
    assert kernel is not None
    x = torch.randn(5, 512).half()
    due = expected(weights, x)
    check_sums(kernel, x, due, 8e-3)


@pytest.mark.parametrize("rows", [3, 150])
@pytest.mark.parametrize("name", FP8_SCALED)
def test_codes_with_fixed_tiles(rows: int, name: str) -> None:
    """Of several tiles, and of other sizes."""
    weights = quantized(name, (160, 384), rows == 3, "cpu")
    kernel, x = FixedFp8.of(weights, Use.ADDED), torch.randn(rows, 384).bfloat16()
    assert kernel is not None
    check_sums(kernel, x, expected(weights, x), 0.06)
    matrix = weights.matrix
    assert isinstance(matrix, ScaledMatrix)
    codes, scale = quantized_rows(x, None, None, 0 if matrix.is_by_row else 128)
    first, second = x.new_empty(rows, 160), x.new_empty(rows, 160)
    multiply_codes(codes, scale, matrix, first)
    multiply_codes(codes, scale, matrix, second, tiles=Tiles(16, 64, 128, 4, 2))
    torch.testing.assert_close(first, second)


def test_quantized_rows() -> None:
    x, factor = torch.randn(3, 200), torch.rand(200) + 0.5
    x[1] = 0.0
    codes, scale = quantized_rows(x.half(), factor, 2.0)
    length = x.half().float().square().sum(dim=1, keepdim=True).add(4.0).sqrt()
    due = x.half().float() / length * factor
    found = codes.float() * scale
    assert not found[1].any()
    assert ((found - due).abs() <= due.abs() / 14 + scale / 512).all()
    torch.testing.assert_close(codes.float().abs().amax(dim=1)[[0, 2]], torch.full((2,), 448.0))

"""Linears of fp8 weights, against float32."""

import pytest
import torch

from paceline.runner.cuda.gemm.fp8_codes import quantized_rows
from paceline.runner.cuda.gemm.linear_kernel import LinearKernel, Use
from paceline.runner.cuda.gemm.scaled import ScaledDecoded, ScaledFew
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

"""Linears of fp8 weights, against float32."""

import pytest
import torch

from paceline.runner.cuda.gemm.fp8_codes import quantized_rows
from paceline.runner.cuda.gemm.linear_kernel import LinearKernel, Use
from paceline.runner.cuda.gemm.scaled import ScaledDecoded, ScaledFew
from tests.gpu.fp8_linears import close, expected, fp8_weights


@pytest.mark.parametrize("kind", [ScaledFew, ScaledDecoded])
@pytest.mark.parametrize("is_full", [False, True], ids=["least", "most"])
@pytest.mark.parametrize("is_by_row", [True, False], ids=["rows", "blocks"])
def test_few_rows(kind: type[LinearKernel], is_full: bool, is_by_row: bool) -> None:
    weights = fp8_weights(160, 512, "cpu", is_by_row, is_full, torch.float16)
    kernel = kind.of(weights, Use.ADDED)
    assert kernel is not None
    x = torch.randn(5, 512).half()
    due = expected(weights, x)
    close(kernel.plain(x), due, 8e-3)
    total = torch.randn(5, 160).half()
    before = total.float()
    kernel.add_to(total, x)
    close(total, before + due, 8e-3)


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

"""Linears of 4-bit and 8-bit integers, against float32."""

from dataclasses import replace

import pytest
import torch

from paceline.runner.cuda.gemm.int4_panels import PanelMatrix, PanelsDecoded
from paceline.runner.cuda.gemm.linear_kernel import LinearKernel, Use
from paceline.runner.cuda.gemm.scaled import Int8Library, ScaledDecoded, ScaledFew
from paceline.runner.cuda.linears import Ordered
from paceline.runner.weights.quantized_matrix import (
    GroupedMatrix,
    OrderedMatrix,
    ScaledMatrix,
    groups_of_int4,
)
from tests.gpu.quantized_linears import (
    EPSILON,
    INT4,
    check_sums,
    close,
    expected,
    normed,
    quantized,
)

GROUPS_OF_32, _, GROUPS_OF_128 = INT4


@pytest.mark.parametrize("group", [32, 64, 128])
def test_weights_stay_the_same_when_their_codes_are_reordered(group: int) -> None:
    matrix = groups_of_int4(torch.randn(128, 256), group)
    # Panels have zeros in the lowest bits of scales.
    torch.testing.assert_close(PanelMatrix.of(matrix).dense(), matrix.dense(), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (ScaledFew, "int8 by rows"),
        (ScaledDecoded, "int8 by rows"),
    ],
)
@pytest.mark.parametrize("is_full", [False, True], ids=["least", "most"])
def test_linears(kind: type[LinearKernel], name: str, is_full: bool) -> None:
    weights = quantized(name, (64, 256), is_full, "cpu", torch.float16)
    kernel = kind.of(weights, Use.ADDED)
    assert kernel is not None
    x = torch.randn(5, 256).half()
    due = expected(weights, x)
    check_sums(kernel, x, due, 8e-3)


@pytest.mark.parametrize("is_full", [False, True], ids=["least", "most"])
def test_inputs_are_quantized_too_if_the_weights_were_made_for_that(is_full: bool) -> None:
    weights = quantized("int8 by rows", (64, 256), is_full, "cpu", torch.float16)
    assert isinstance(weights.matrix, ScaledMatrix)
    assert Int8Library.of(weights, Use.ADDED) is None
    weights.matrix = replace(weights.matrix, input_bits=8)
    x = torch.randn(18, 256).half()
    due, kernel = expected(weights, x), Int8Library.of(weights, Use.ADDED)
    assert kernel is not None
    check_sums(kernel, x, due, 2e-2)
    found, _ = kernel.normed(x, EPSILON)
    close(found, expected(weights, normed(x)), 2e-2)


@pytest.mark.parametrize("is_full", [False, True], ids=["least", "most"])
def test_inputs_are_put_into_the_order_of_the_weights(is_full: bool) -> None:
    """Those of a group are anywhere, as GPTQ with act order has them."""
    weights = quantized(GROUPS_OF_32, (64, 256), is_full, "cpu", torch.float16)
    weights.matrix = OrderedMatrix(weights.matrix, torch.randperm(256))
    x = torch.randn(5, 256).half()
    due, total = expected(weights, x), torch.randn(5, 64).half()
    before, kernel = total.float(), Ordered.of(weights, Use.ADDED)
    assert kernel is not None
    assert "int4" in weights.matrix.form
    kernel.add_to(total, x)
    close(total, before + due, 8e-3)
    again = Ordered.of(weights, Use.PLAIN)
    assert again is not None
    close(again.plain(x), due, 8e-3)


@pytest.mark.parametrize("name", [GROUPS_OF_32, GROUPS_OF_128])
def test_decoded_panels(name: str) -> None:
    weights = quantized(name, (256, 384), True, "cpu", torch.float16)
    assert isinstance(weights.matrix, GroupedMatrix)
    x = torch.randn(5, 384).half()
    due = expected(weights, x)
    close(PanelsDecoded(weights, PanelMatrix.of(weights.matrix)).plain(x), due, 8e-3)

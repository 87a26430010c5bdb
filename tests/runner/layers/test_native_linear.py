"""Products by compiled kernels: close to those of float32, and of no row's neighbours."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.layers.linear import DenseLinear, LinearParts
from paceline.runner.layers.native_linear import NativeLinear
from paceline.runner.layers.packing import PackedWeights
from paceline.runner.native.library import is_available
from paceline.runner.weights.fp4 import Mxfp4Matrix
from paceline.runner.weights.matrix import PlainMatrix
from paceline.runner.weights.quantized_matrix import OrderedMatrix, groups_of_int4
from tests.runner.support import stepped

if not is_available():
    pytest.skip("needs a C compiler", allow_module_level=True)

SHAPES = [(5, 7), (64, 96), (33, 130), (1, 1), (48, 300)]  # around panels, depths and groups


FORMS = pytest.mark.parametrize("form", [lambda weight: weight, stepped], ids=["8", "4"])
Form = Callable[[Tensor], Tensor]


def close(got: Tensor, expected: Tensor) -> bool:
    return bool((got - expected).norm() <= 0.02 * expected.norm())


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 21])
@pytest.mark.parametrize("has_more", [False, True])
@FORMS
def test_close_to_float32(outputs: int, inputs: int, rows: int, has_more: bool, form: Form) -> None:
    generator = torch.Generator().manual_seed(outputs + rows)
    weight = form(torch.randn(outputs, inputs, generator=generator))
    x = torch.randn(rows, inputs, generator=generator)
    bias = torch.randn(outputs, generator=generator) if has_more else None
    factor = torch.rand(inputs, generator=generator) + 0.5 if has_more else None
    product = NativeLinear(weight, bias, torch.float32, factor)
    expected = torch.nn.functional.linear(x if factor is None else x * factor, weight, bias)
    assert close(product(x), expected)
    total = torch.randn(rows, outputs, generator=generator)
    sum_expected = total + product(x)
    product.add_to(total, x)
    torch.testing.assert_close(total, sum_expected, rtol=1e-6, atol=1e-6)


def test_weights_that_4_bits_hold_become_such() -> None:
    weight = torch.randn(70, 96)
    assert NativeLinear(weight, None, torch.float32).matrix.bits == 8
    assert NativeLinear(stepped(weight), None, torch.float32).matrix.bits == 4
    late = stepped(weight)
    late[69] = weight[69]  # beyond the rows that are looked at first
    assert NativeLinear(late, None, torch.float32).matrix.bits == 8


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_sums_of_4_bits_are_exact(sign: float) -> None:
    weight = torch.full((40, 96), 15.0)
    weight[:, ::32] = 0.0
    product, x = NativeLinear(weight, None, torch.float32), torch.full((9, 96), sign * 127)
    assert product.matrix.bits == 4
    assert torch.equal(product(x), torch.full((9, 40), sign * 127 * 15 * 93))


def random_mxfp4(outputs: int, inputs: int) -> Mxfp4Matrix:
    codes = torch.randint(256, (outputs, inputs // 2), dtype=torch.uint8)
    return Mxfp4Matrix(codes, torch.randint(115, 125, (outputs, inputs // 32), dtype=torch.uint8))


@pytest.mark.parametrize("rows", [1, 2, 4, 9])
def test_numbers_of_mxfp4_are_exact(rows: int) -> None:
    """Those of unit vectors are the weights themselves."""
    matrix = random_mxfp4(70, 96)
    linear = NativeLinear(PackedWeights.of(matrix), None, torch.float32)
    assert linear.matrix.bits == 4
    found = torch.cat([linear(part) for part in torch.eye(96).split(rows)])
    torch.testing.assert_close(found.t(), matrix.dense(), rtol=1e-6, atol=1e-7)
    x = torch.randn(rows, 96)
    assert close(linear(x), x @ matrix.dense().t())


@pytest.mark.parametrize("code", [0x77, 0xFF])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_sums_of_mxfp4_are_right(code: int, sign: float) -> None:
    codes = torch.full((40, 48), code, dtype=torch.uint8)
    matrix = Mxfp4Matrix(codes, torch.full((40, 3), 127, dtype=torch.uint8))
    linear = NativeLinear(PackedWeights.of(matrix), None, torch.float32)
    x = torch.full((9, 96), sign)
    torch.testing.assert_close(linear(x), x @ matrix.dense().t(), rtol=1e-6, atol=0)


def test_exponents_that_halves_do_not_hold_take_8_bits() -> None:
    matrix = random_mxfp4(8, 64)
    matrix.exponent[3] = 60
    assert PackedWeights.of(matrix).bits == 8


@pytest.mark.parametrize("rows", [1, 3, 20])
def test_inputs_are_put_in_the_order_of_the_weights(rows: int) -> None:
    """With padding, and with factors of a norm, which are in the order of the inputs."""
    order, factor = torch.randperm(70), torch.rand(70) + 0.5
    plain = groups_of_int4(torch.randn(33, 70), 70)
    ordered = OrderedMatrix(plain, order)
    x = torch.randn(rows, 70)
    found = NativeLinear(PackedWeights.of(ordered), None, torch.float32, factor)
    due = NativeLinear(PackedWeights.of(plain), None, torch.float32)
    assert found.matrix.bits == 4
    assert torch.equal(found(x), due((x * factor)[:, order]))
    torch.testing.assert_close(x[:, order] @ plain.dense().t(), x @ ordered.dense().t())


def test_whole_weights_and_inputs_are_multiplied_exactly() -> None:
    """The largest weights and inputs in every place: sums are the largest there can be."""
    product = NativeLinear(torch.full((40, 1536), 127.0), None, torch.float32)
    for sign in (1.0, -1.0):
        got = product(torch.full((9, 1536), sign))
        torch.testing.assert_close(got, torch.full((9, 40), sign * 127 * 1536), rtol=1e-6, atol=0)


@FORMS
def test_a_row_is_the_same_bits_beside_any_others(form: Form) -> None:
    product, x = NativeLinear(form(torch.randn(70, 200)), None, torch.float32), torch.randn(70, 200)
    x[3] *= 1e4
    alone = torch.cat([product(row.unsqueeze(0)) for row in x])
    for rows in (2, 3, 8, 13, 32, 70):
        assert torch.equal(product(x[:rows]), alone[:rows])


@FORMS
def test_threads_share_the_work_and_change_nothing(form: Form) -> None:
    product, x = NativeLinear(form(torch.randn(170, 200)), None, torch.float32), torch.randn(9, 200)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(product(x))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@FORMS
def test_rows_may_be_a_part_of_wider_ones(form: Form) -> None:
    product, wide = NativeLinear(form(torch.randn(9, 24)), None, torch.float32), torch.randn(5, 40)
    assert torch.equal(product(wide[:, 8:32]), product(wide[:, 8:32].contiguous()))


@pytest.mark.parametrize("scale", [0.0, 1e-38, 1e-20, 1e30])
def test_rows_of_any_size_give_numbers(scale: float) -> None:
    product = NativeLinear(torch.eye(8), None, torch.float32)
    x = torch.arange(-4.0, 4.0).unsqueeze(0) * scale
    torch.testing.assert_close(product(x), x, rtol=0.02, atol=1e-36)


@FORMS
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_not_hidden(form: Form, bad: float) -> None:
    weight = form(torch.randn(70, 576, generator=torch.Generator().manual_seed(1)))
    product = NativeLinear(weight, None, torch.float32)
    rows = torch.randn(3, 576, generator=torch.Generator().manual_seed(2))
    good = product(rows)
    rows[1, 300] = bad
    found = product(rows)
    assert not torch.isfinite(found[1]).any()
    assert torch.equal(found[[0, 2]], good[[0, 2]])


def test_only_float32() -> None:
    with pytest.raises(ConfigError, match="bfloat16"):
        NativeLinear(torch.zeros(2, 2), None, torch.bfloat16)


@pytest.mark.parametrize(("outputs", "inputs"), [*SHAPES, (130, 1000)])
def test_floats_are_exact_and_rows_keep_their_bits(outputs: int, inputs: int) -> None:
    generator = torch.Generator().manual_seed(outputs)
    weight, bias = torch.randn(outputs, inputs, generator=generator), torch.randn(outputs)
    factor, x = torch.rand(inputs) + 0.5, torch.randn(200, inputs, generator=generator)
    parts = LinearParts("one", lambda: PlainMatrix(weight), bias, factor, torch.float32)
    linear = NativeLinear.in_float32(parts)
    whole, expected = linear(x), DenseLinear.of(parts)(x)
    torch.testing.assert_close(whole, expected, rtol=1e-5, atol=1e-4)
    for count in (1, 2, 3, 5, 6, 7, 48, 49, 97):  # around tiles of rows
        for first in (0, 3, 100):
            assert torch.equal(linear(x[first : first + count]), whole[first : first + count])
    total = torch.ones(200, outputs)
    linear.add_to(total, x)
    torch.testing.assert_close(total, whole + 1)

import pytest
import torch

from paceline.runner.layers.linear import DenseLinear


@pytest.mark.parametrize("has_bias", [False, True])
def test_dense(has_bias: bool) -> None:
    weight, x = torch.randn(5, 7), torch.randn(3, 7)
    bias = torch.randn(5) if has_bias else None
    product = DenseLinear(weight, bias, torch.float32)
    expected = torch.nn.functional.linear(x, weight, bias)
    torch.testing.assert_close(product(x), expected)
    total = torch.randn(3, 5)
    before = total.clone()
    product.add_to(total, x)
    torch.testing.assert_close(total, before + expected)


def test_the_type_is_that_of_the_activations() -> None:
    product = DenseLinear(torch.randn(5, 7), torch.randn(5), torch.bfloat16)
    assert product(torch.randn(3, 7).bfloat16()).dtype == torch.bfloat16


def test_a_factor_of_the_inputs() -> None:
    weight, x, factor = torch.randn(5, 7), torch.randn(3, 7), torch.rand(7)
    product = DenseLinear(weight, None, torch.float32, factor)
    torch.testing.assert_close(product(x), torch.nn.functional.linear(x * factor, weight))

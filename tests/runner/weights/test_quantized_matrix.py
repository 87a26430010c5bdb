import pytest
import torch
from torch import Tensor

from paceline.runner.weights.integer_format import Grouping
from paceline.runner.weights.matrix import Matrix, joined, stacked
from paceline.runner.weights.quantized_matrix import CodedMatrix, OrderedMatrix


def drawn(bits: int, groups: int, has_offset: bool) -> CodedMatrix:
    """Weights of 64 inputs."""
    low, high = (0, 16) if bits == 4 else (-128, 128)
    codes = torch.randint(low, high, (6, 64)).to(torch.uint8 if bits == 4 else torch.int8)
    offset = torch.randn(6, groups) if has_offset else None
    return CodedMatrix(codes, torch.rand(6, groups), offset)


def rows(matrices: list[CodedMatrix]) -> Tensor:
    return torch.cat([one.dense() for one in matrices])


@pytest.mark.parametrize(
    ("second", "form"),
    [
        ((4, 2, True), "int4 by groups of 32 with offsets"),
        ((4, 4, False), "int4 by groups of 16 with offsets"),
        ((8, 2, False), "int8 by groups of 32 with offsets"),
        ((8, 4, True), "int8 by groups of 16 with offsets"),
    ],
)
def test_linears_of_other_bits_and_groups_are_joined_in_the_finer_format(
    second: tuple[int, int, bool], form: str
) -> None:
    """As in a GGUF file whose queries have fewer bits than its values."""
    matrices = [drawn(4, 2, True), drawn(4, 2, True), drawn(*second)]
    for order in (matrices, matrices[::-1]):
        found = joined(order)
        assert found.form == form
        assert torch.equal(found.dense(), rows(order))


def test_groups_that_do_not_divide_each_other_are_decoded() -> None:
    six = CodedMatrix(torch.ones(2, 48, dtype=torch.int8), torch.rand(2, 3))
    four = CodedMatrix(torch.ones(2, 48, dtype=torch.int8), torch.rand(2, 2))
    found = joined([six, four])
    assert found.form == "float32"
    assert torch.equal(found.dense(), rows([six, four]))


@pytest.mark.parametrize("has_offset", [False, True])
def test_codes_are_selected_scaled_and_stacked(has_offset: bool) -> None:
    matrix = drawn(8, 2, has_offset)
    due, order = matrix.dense(), torch.randperm(6)
    assert torch.equal(matrix.select(order).dense(), due[order])
    torch.testing.assert_close(matrix.scaled(0.5).dense(), due / 2)
    both: list[Matrix] = [matrix, matrix.scaled(2.0)]
    found = stacked(2, iter(both))
    assert found.shape == (6, 64)
    assert torch.equal(found.dense(), torch.stack([one.dense() for one in both]))


@pytest.mark.parametrize("bits", [4, 8])
def test_codes_with_act_order_are_kept(bits: int) -> None:
    codes, scale = torch.randint(0, 1 << bits, (6, 64)), torch.rand(6, 2)
    zero = torch.randint(0, 1 << bits, (6, 2))
    group = torch.arange(64) % 2
    found = Grouping(bits, 32, has_zero=True).ordered(codes, scale, zero, group)
    assert isinstance(found, OrderedMatrix)
    due = (codes - zero[:, group]) * scale[:, group]
    torch.testing.assert_close(found.dense(), due, rtol=1e-5, atol=1e-4)

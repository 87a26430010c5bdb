import torch

from paceline.runner.weights.fp4 import GROUP, SIZES, Mxfp4Matrix
from paceline.runner.weights.matrix import joined
from tests.gpu.coded_linears import nvfp4_matrix


def test_halves_of_bytes_are_numbers_and_groups_have_exponents() -> None:
    blocks = torch.zeros(1, GROUP, dtype=torch.uint8)
    blocks[0, :8] = torch.arange(16, dtype=torch.uint8).view(8, 2) @ torch.tensor(
        [1, 16], dtype=torch.uint8
    )
    blocks[0, -1] = 0xF0
    found = Mxfp4Matrix(blocks, torch.tensor([[127, 129]], dtype=torch.uint8)).dense()
    assert found.shape == (1, 2 * GROUP)
    assert found[0, :16].tolist() == [*SIZES, *(-size for size in SIZES)]
    assert found[0, -2:].tolist() == [0.0, -24.0]


def test_outputs_of_nvfp4_keep_the_scale_of_their_tensor() -> None:
    parts = [nvfp4_matrix(torch.randn(8, 32)) for _ in range(2)]
    whole = joined(parts)
    assert whole.form == "nvfp4"
    due = torch.cat([one.dense() for one in parts])
    assert torch.equal(whole.dense(), due)
    order = torch.randperm(16)
    assert torch.equal(whole.select(order).dense(), due[order])
    assert torch.equal(whole.scaled(0.5).dense(), due / 2)

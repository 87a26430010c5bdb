import torch

from paceline.runner.weights.mxfp4 import GROUP, SIZES, Mxfp4Matrix


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

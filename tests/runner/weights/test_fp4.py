import torch

from paceline.runner.weights.fp4 import GROUP, NVFP4_GROUP, SIZES, Mxfp4Matrix, Nvfp4Matrix
from paceline.runner.weights.matrix import joined


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
    parts = [Nvfp4Matrix.of(size * torch.randn(8, 32)) for size in (1.0, 3.0)]
    whole = joined(parts)
    assert whole.form == "nvfp4"
    due = torch.cat([one.dense() for one in parts])
    assert torch.equal(whole.dense(), due)
    order = torch.randperm(16)
    assert torch.equal(whole.select(order).dense(), due[order])
    assert torch.equal(whole.scaled(0.5).dense(), due / 2)


def test_weights_are_rounded_to_nvfp4() -> None:
    """By at most half a distance between numbers, and what fp8 loses of a scale."""
    weight = torch.randn(32, 64) * torch.logspace(-2, 0, 32).unsqueeze(1)
    found = Nvfp4Matrix.of(weight).dense()
    largest = weight.view(32, -1, NVFP4_GROUP).abs().amax(dim=-1, keepdim=True)
    lost = (found - weight).abs().view(32, -1, NVFP4_GROUP)
    assert (lost <= largest * (1 / 6 + 1 / 16)).all()
    assert torch.isfinite(Nvfp4Matrix.of(torch.zeros(2, 32)).dense()).all()

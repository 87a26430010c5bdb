import torch

from paceline.runner.layers.norm import Rotation


def test_pairs_turn_as_complex_numbers_do() -> None:
    position, frequencies = torch.tensor([0, 1, 7, 500]), torch.tensor([1.0, 0.1, 0.013])
    x = torch.randn(4, 2, 6)
    pairs = torch.complex(x[..., :3], x[..., 3:])
    amplitudes = torch.tensor([1.5, 1.0, 0.5])
    rotated = pairs * torch.polar(amplitudes.expand(4, 3), position[:, None] * frequencies)[:, None]
    Rotation.of(position, torch.stack((frequencies, amplitudes)), torch.float32).rotate(x)
    torch.testing.assert_close(x, torch.cat((rotated.real, rotated.imag), dim=-1))


def test_a_view_is_rotated_in_place_and_its_surroundings_are_not() -> None:
    heads = torch.randn(2, 5, 4)
    before = heads.clone()
    rope = torch.tensor([[1.0, 0.5], [1.0, 1.0]])
    Rotation.of(torch.tensor([3, 4]), rope, torch.float32).rotate(heads[:, :3])
    assert not torch.equal(heads[:, :3], before[:, :3])
    assert torch.equal(heads[:, 3:], before[:, 3:])

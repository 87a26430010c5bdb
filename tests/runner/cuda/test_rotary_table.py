"""Rotations of positions with several coordinates."""

import torch

from paceline.runner.cuda.coordinates import RotaryTable
from paceline.runner.layers.norm import Rotation
from paceline.runner.models.rope import Rope


def test_each_pair_rotates_by_its_own_coordinate() -> None:
    rope = Rope((1.0, 0.5, 0.25, 0.125), (1.0, 1.0, 2.0, 2.0), (0, 1, 2, 2))
    coordinates = torch.tensor([[3, 4, 5], [0, 7, 1], [9, 9, 9]], dtype=torch.int32)
    found = RotaryTable(rope, 10, "cpu").of(coordinates)
    given = torch.tensor((rope.frequencies, rope.amplitudes))
    due = Rotation.of(coordinates[:, torch.tensor(rope.axes)].float(), given, torch.float32)
    assert found is not None
    torch.testing.assert_close(found[:, 0], due.cos[:, 0, 4:])
    torch.testing.assert_close(found[:, 1], due.sin[:, 0, 4:])


def test_a_position_may_be_one_number() -> None:
    table = RotaryTable(Rope.plain((1.0, 0.5)), 10, "cpu")
    assert table.by_position.shape == (10, 2, 2)
    assert table.of(torch.zeros(2, 3, dtype=torch.int32)) is None

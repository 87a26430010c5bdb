"""Coordinates on a GPU are those that the CPU has, and so are their rotations."""

import pytest
import torch

from paceline import Request, Scheduler
from paceline.runner.batch import Coordinates
from paceline.runner.cuda.coordinates import CudaCoordinates, RotaryTable
from paceline.runner.layers.norm import Rotation
from paceline.runner.models.rope import Rope
from tests.interpreted.host_device import use_host
from tests.runner.test_coordinates import request_with_image

LENGTH, SQUARE = 32, 8


def test_they_follow_the_requests_in_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    use_host(monkeypatch)
    sizes = {"max_num_seqs": 1, "max_num_batched_tokens": 16, "max_model_len": LENGTH}
    scheduler = Scheduler.create(**sizes, num_blocks=16, block_size=4)
    found = CudaCoordinates(1, LENGTH, SQUARE, torch.device("cpu"))
    every = torch.arange(LENGTH)
    row_start = torch.tensor([0, LENGTH])
    for request in (request_with_image(), Request("b", [1, 2], 1), request_with_image()):
        scheduler.submit(request, now=0.0)
        plan = scheduler.plan(now=0.0)
        (new,) = plan.admitted
        found.apply(plan)
        slot = torch.tensor([new.slot])
        expected = Coordinates(1, SQUARE)
        expected.admit(new.slot, request)
        due = expected.of(slot, every, row_start)
        due = every[:, None].repeat(1, 3) if due is None else due
        assert torch.equal(found.of(slot.repeat(LENGTH), every).long(), due)
        padding = torch.ones(LENGTH, dtype=torch.int32)
        assert torch.equal(found.of(padding, every).long(), every[:, None].repeat(1, 3))
        scheduler.abort(request.id, now=0.0)


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

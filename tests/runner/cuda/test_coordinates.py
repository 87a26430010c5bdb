"""Coordinates on a GPU are those that the CPU has."""

import pytest
import torch

from paceline import Request, Scheduler
from paceline.runner.batch import Coordinates
from paceline.runner.cuda.coordinates import CudaCoordinates
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

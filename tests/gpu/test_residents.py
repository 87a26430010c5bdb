"""Who is in which slot, also when the GPU has no memory left to take somebody in."""

import numpy as np
import pytest
import torch

from paceline import Request
from paceline.core.arrays import NO_I32
from paceline.core.plan import NO_ROWS, Admitted, Plan
from paceline.core.sampling import Sampling
from paceline.runner.cuda.residents import Residents
from paceline.runner.sampling.sampler import Sampler
from tests.gpu.support import ON_GPU

pytestmark = ON_GPU

PROMPT = [3, 1, 4]


def admitted(slot: int, **sampling: float) -> Admitted:
    request = Request(id=f"r{slot}", prompt=PROMPT, max_tokens=2, sampling=Sampling(**sampling))  # pyright: ignore[reportArgumentType]
    return Admitted(slot, request, np.array(PROMPT, np.int32), 0, (slot,), resumed=False)


def test_one_that_could_not_be_taken_in_leaves_its_slot_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sampler = Sampler(61, 64, torch.device("cuda"))
    residents = Residents(4, sampler)
    coming = admitted(0), admitted(1, presence_penalty=0.5), admitted(2)

    def full(*_: object) -> int:
        raise torch.cuda.OutOfMemoryError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(sampler._tally, "open", full)
        with pytest.raises(torch.cuda.OutOfMemoryError):
            residents.apply(Plan(1, NO_ROWS, NO_I32, admitted=coming))
    residents.apply(Plan(2, NO_ROWS, NO_I32, released=(0, 1, 2)))
    assert not residents.requests
    residents.apply(Plan(3, NO_ROWS, NO_I32, admitted=coming))
    assert sorted(residents.requests) == [0, 1, 2]

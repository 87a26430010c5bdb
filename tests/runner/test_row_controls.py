"""Controls are kept while the same slots sample."""

from dataclasses import replace

import numpy as np
import torch

from paceline import Request, Scheduler
from paceline.runner.sampling.sampler import Sampler
from paceline.runner.step_tokens import RowControls


def test_controls_are_made_anew_only_for_other_slots() -> None:
    scheduler = Scheduler.create(max_num_seqs=4, max_model_len=32, num_blocks=32, block_size=4)
    for name in "ab":
        scheduler.submit(Request(id=name, prompt=[1, 2], max_tokens=9), now=0.0)  # pyright: ignore[reportArgumentType]
    plan = scheduler.plan(now=0.0)
    sampler = Sampler(16, 32, torch.device("cpu"))
    for new in plan.admitted:
        sampler.admit(new.slot, new.request, new.tokens)
    controls, everyone = RowControls(sampler), np.array([0, 1])
    first = controls.of(plan.rows, everyone)
    assert controls.of(plan.rows, everyone) is first
    assert controls.of(replace(plan.rows), everyone) is first
    assert controls.of(replace(plan.rows), np.array([1])) is not first
    controls.forget()
    assert controls.of(plan.rows, everyone) is not first

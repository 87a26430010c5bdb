"""Proposers that read on the host, and drafts that were drawn, on a GPU: the CPU's tokens."""

from typing import Any

import pytest
import torch

from paceline import Scheduler
from paceline.core.sampling import Sampling
from paceline.runner.cuda.model import CudaModel
from paceline.runner.models.model import Model
from paceline.runner.proposer import load
from paceline.runner.sampling.rejection import DrawnDrafts, draw_drafts
from paceline.runner.weights.dummy import Dummy
from tests.conformance.architectures import Case
from tests.gpu.runners import gpu_runner
from tests.gpu.support import ON_GPU
from tests.runner.driving import SETTINGS, TIGHT, drive, for_states, requests
from tests.runner.support import tiny
from tests.runner.test_runner import runner_for

pytestmark = ON_GPU

DRAFTS = {"num_speculative_tokens": 4, "speculation": "fixed", "proposer": "suffix"}
WAYS: dict[str, dict[str, Any]] = {
    "alone": {},
    "ahead": {"depth": 3},
    "recomputed": {**TIGHT, "depth": 2},
    "swapped": {**TIGHT, "preemption_mode": "swap", "swap_space": 32, "depth": 2},
}


@pytest.mark.parametrize("heat", [0.0, 0.9])
@pytest.mark.parametrize("way", WAYS)
def test_a_suffix_proposer_changes_no_token(way: str, heat: float) -> None:
    source = Dummy(tiny(architectures=["Qwen3ForCausalLM"], num_hidden_layers=3), seed=3)
    asked = requests(sampling=Sampling(temperature=heat), seed=4)
    plain = Scheduler.create(**SETTINGS)
    due = drive(plain, runner_for(Model.load(source), plain, "sdpa"), asked)
    changes = dict(WAYS[way])
    depth = changes.pop("depth", 1)
    scheduler = Scheduler.create(**{**SETTINGS, **DRAFTS, **changes})
    model = CudaModel.load(source, 64, torch.float32)
    runner = gpu_runner(model, scheduler, drafter=load(scheduler.config.speculation))
    runner.warm(drafts=True)
    assert drive(scheduler, runner, asked, depth) == due
    assert scheduler.stats.drafted


def test_drafts_are_drawn_and_accepted_as_on_the_cpu() -> None:
    random = torch.Generator().manual_seed(1)
    logits, weights = (torch.randn((64, 512), generator=random) * 3 for _ in range(2))
    weights = (weights - weights.amax(-1, keepdim=True)).exp()
    keys, positions = torch.arange(64), torch.arange(64) + 9
    heat = torch.linspace(0.5, 2.0, 64)

    def sampled(device: str) -> list[list[int]]:
        own = heat.to(device), keys.to(device), positions.to(device)
        ids, odds = draw_drafts(logits.to(device), *own)
        tokens = DrawnDrafts(ids, odds).draw(weights.to(device), *own[1:])
        return [ids.tolist(), tokens.tolist()]

    drafts, tokens = sampled("cuda")
    assert [drafts, tokens] == sampled("cpu")
    assert 0 < sum(a == b for a, b in zip(drafts, tokens, strict=True)) < 64


@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize("architecture", ["bamba", "lfm2", "qwen3_5", "kimilinear"])
def test_rejected_drafts_leave_no_trace_in_states(architecture: str, is_warm: bool) -> None:
    """Graphs are captured before, or when they are first used."""
    source, asked = Dummy(Case(architecture).config(), seed=3), requests()
    settings = for_states(SETTINGS, source.config)
    plain = Scheduler.create(**settings)
    due = drive(plain, runner_for(Model.load(source), plain, "sdpa"), asked)
    scheduler = Scheduler.create(**{**settings, **DRAFTS, "max_num_batched_tokens": 16})
    model = CudaModel.load(source, 64, torch.float32)
    runner = gpu_runner(model, scheduler, drafter=load(scheduler.config.speculation))
    if is_warm:
        runner.warm(drafts=True)
    assert drive(scheduler, runner, asked, depth=3) == due
    assert scheduler.stats.drafted > scheduler.stats.accepted

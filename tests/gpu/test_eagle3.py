"""EAGLE-3 heads on a GPU: drafts of a plain head, in graphs, and the CPU's tokens."""

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline import Request, Scheduler
from paceline.core.sampling import Sampling
from paceline.runner.cuda.drafting.eagle3 import CudaEagle3
from paceline.runner.models.model import Model
from paceline.runner.weights.dummy import Dummy
from tests.gpu.eagle3 import CHANGES, compare_drafts, drafter_on, driven
from tests.gpu.support import ON_GPU
from tests.runner.driving import SETTINGS, TIGHT, drive, requests
from tests.runner.eagle3 import head_folder
from tests.runner.support import tiny
from tests.runner.test_runner import runner_for

pytestmark = ON_GPU

WAYS: dict[str, dict[str, Any]] = {
    "alone": {"depth": 1},
    "ahead, in small pieces": {"max_num_batched_tokens": 8, "depth": 3},
    "recomputed": {**TIGHT, "enable_prefix_caching": False},
    "swapped": {
        **TIGHT,
        "preemption_mode": "swap",
        "swap_space": 32,
        "enable_prefix_caching": False,
    },
}


@pytest.mark.parametrize("way", WAYS)
def test_drafts_are_those_of_a_plain_head(way: str, tmp_path: Path) -> None:
    source = Dummy(tiny(), seed=3)
    compare_drafts("cuda", source, tmp_path, requests(), **WAYS[way])


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0.0), Sampling(temperature=0.8, top_k=5, logprobs=1)]
)
@pytest.mark.parametrize("way", ["ahead, in small pieces", "swapped"])
def test_output_is_the_same_with_a_head_in_graphs(
    way: str, sampling: Sampling, tmp_path: Path
) -> None:
    changes = {"depth": 2, **WAYS[way]}
    depth, source = changes.pop("depth"), Dummy(tiny(), seed=3)
    drafting = {"num_speculative_tokens": 3, "speculation": "fixed"}
    scheduler = Scheduler.create(**{**SETTINGS, **drafting, **changes})
    folder = head_folder(tmp_path, source.config, **CHANGES)
    drafter = drafter_on("cuda", CudaEagle3, scheduler, folder)
    asked: list[Request] = requests(sampling=sampling, seed=4)
    got = driven(source, scheduler, drafter, asked, depth)
    plain = Scheduler.create(**SETTINGS)
    assert got == drive(plain, runner_for(Model.load(source), plain, "sdpa"), asked)
    assert scheduler.stats.drafted
    torch.cuda.synchronize()

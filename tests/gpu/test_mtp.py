"""MTP heads on a GPU: drafts of a head on a CPU, in graphs, and the CPU's tokens."""

from itertools import product
from typing import Any

import pytest

from paceline import Scheduler
from paceline.core.sampling import Sampling
from paceline.runner.cuda.drafting.mtp import CudaMtp
from paceline.runner.draft_heads.mtp import MTPWeights
from paceline.runner.models.model import Model
from paceline.runner.weights.dummy import Dummy
from tests.conformance.architectures import Case
from tests.gpu.eagle3 import driven
from tests.gpu.mtp import compare_drafts, drafter_on
from tests.gpu.support import ON_GPU
from tests.runner.driving import SETTINGS, TIGHT, drive, for_states, requests
from tests.runner.test_runner import runner_for

pytestmark = ON_GPU

WAYS: dict[str, dict[str, Any]] = {
    "alone": {"depth": 1},
    "ahead, in small pieces": {"max_num_batched_tokens": 8, "depth": 3},
    "swapped": {**TIGHT, "preemption_mode": "swap", "swap_space": 32},
}


ARCHITECTURES = ["mimo", "glm4moe", "deepseekv3", "qwen3_5", "qwen3next"]
NOT_SWAPPED = {("swapped", "qwen3_5"), ("swapped", "qwen3next")}  # which have states


@pytest.mark.parametrize(
    ("way", "architecture"), sorted(set(product(WAYS, ARCHITECTURES)) - NOT_SWAPPED)
)
def test_drafts_are_those_of_a_head_on_a_cpu(way: str, architecture: str) -> None:
    source = Dummy(Case(architecture).config(), seed=3)
    how = {**WAYS[way], "enable_prefix_caching": False}
    compare_drafts("cuda", source, requests(), **how)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_output_is_the_same_with_a_head_in_graphs(architecture: str, temperature: float) -> None:
    source = Dummy(Case(architecture).config(), seed=3)
    drafting = {"num_speculative_tokens": 3, "speculation": "fixed"}
    scheduler = Scheduler.create(**for_states({**SETTINGS, **drafting}, source.config))
    drafter = drafter_on("cuda", CudaMtp, scheduler, MTPWeights(source))
    asked = requests(sampling=Sampling(temperature=temperature), seed=4)
    got = driven(source, scheduler, drafter, asked, 2)
    plain = Scheduler.create(**for_states(SETTINGS, source.config))
    assert got == drive(plain, runner_for(Model.load(source), plain, "sdpa"), asked)
    assert scheduler.stats.drafted

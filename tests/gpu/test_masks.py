"""Masks on a GPU: the tokens of constrained rows are the CPU's, however they are scheduled."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from paceline import Scheduler
from paceline.core.constraint import Constraint
from paceline.core.masks import MaskRows
from paceline.core.sampling import Sampling
from paceline.runner.cuda.kernels.sampling import mask_logits
from paceline.runner.cuda.model import CudaModel
from paceline.runner.models.model import Model
from paceline.runner.step_tokens import apply_masks
from paceline.runner.weights.dummy import Dummy
from tests.gpu.runners import gpu_runner
from tests.gpu.support import ON_GPU
from tests.property.grammars import END, constrained_requests
from tests.runner.driving import SETTINGS, TIGHT, drive, requests
from tests.runner.support import tiny
from tests.runner.test_runner import runner_for

pytestmark = ON_GPU

PATTERN = Constraint.regex("[0-4]{4,9}(5|67)*")
BANNED = Constraint.any_text().without(
    tuple((a, b) for a in range(60) for b in range(a % 3, 60, 3))
)
WAYS: dict[str, dict[str, Any]] = {
    "one by one": {},
    "ahead": {"depth": 2},
    "in small pieces": {"max_num_batched_tokens": 8, "depth": 2},
    "swapped": {**TIGHT, "preemption_mode": "swap", "swap_space": 32, "depth": 2},
    "drafted": {"num_speculative_tokens": 3, "speculation": "fixed", "depth": 2},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("vocab", [61, 151_936])
def test_the_same_logits(vocab: int, dtype: torch.dtype) -> None:
    random = np.random.default_rng(vocab)
    bits = random.integers(-(2**31), 2**31, (3, -(-vocab // 32))).astype(np.int32)
    logits = torch.randn(5, vocab).to(dtype)
    expected, found = logits.float(), logits.cuda()
    apply_masks(expected, MaskRows(np.arange(3), np.arange(3), bits), torch.tensor([3, 0, 2]))
    mask_of = torch.tensor([1, -1, 2, 0, -1], dtype=torch.int32)
    mask_logits(found, mask_of.cuda(), torch.from_numpy(bits).flatten().cuda())
    assert torch.equal(found.float().cpu(), expected)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0.0), Sampling(top_k=9)], ids=["plain", "filtered"]
)
@pytest.mark.parametrize("constraint", [PATTERN, BANNED], ids=["grammar", "banned"])
def test_tokens_are_the_cpus(way: str, sampling: Sampling, constraint: Constraint) -> None:
    source = Dummy(tiny(architectures=["Qwen3ForCausalLM"], num_hidden_layers=3), seed=3)
    gpu, cpu = CudaModel.load(source, 64, torch.float32), Model.load(source)
    asked = requests(sampling=sampling, seed=5)
    held = {"constraint": constraint, "eos_token_ids": (END,)}
    asked = [replace(one, **held) if at % 2 else one for at, one in enumerate(asked)]
    found: list[dict[str, Any]] = []
    for changes in ({}, dict(WAYS[way])):
        depth = changes.pop("depth", 1)
        masks = constrained_requests(source.config.vocab)
        scheduler = Scheduler.create(**{**SETTINGS, **changes})
        if found:
            runner: Any = gpu_runner(gpu, scheduler, masks=masks)
            runner.warm(drafts="num_speculative_tokens" in changes)
        else:
            runner = runner_for(cpu, scheduler, "sdpa", masks)
        found.append(drive(scheduler, runner, asked, depth, masks))
    assert found[0] == found[1]

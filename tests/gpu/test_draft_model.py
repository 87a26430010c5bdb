"""Draft models on a GPU: right KV wherever the model has it, and the CPU's tokens."""

from typing import Any

import pytest
import torch

from paceline import Request, Scheduler
from paceline.core.errors import ConfigError
from paceline.core.sampling import Sampling
from paceline.core.settings.features import SpeculationConfig
from paceline.runner.cuda.drafting.draft_model import CudaDraftModel
from paceline.runner.cuda.model import CudaModel
from paceline.runner.models.model import Model
from paceline.runner.weights.dummy import Dummy
from tests.gpu.runners import gpu_runner
from tests.gpu.support import ON_GPU
from tests.runner.driving import SETTINGS, TIGHT, drive, requests
from tests.runner.support import tiny
from tests.runner.test_runner import runner_for

pytestmark = ON_GPU

QWEN: dict[str, Any] = {"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 3}
DRAFTS = {"num_speculative_tokens": 3, "speculation": "fixed"}
WAYS: dict[str, dict[str, Any]] = {
    "alone": {},
    "ahead": {"depth": 3},
    "in small pieces": {"max_num_batched_tokens": 8, "depth": 2},
    "recomputed": {**TIGHT, "depth": 2},
    "swapped": {**TIGHT, "preemption_mode": "swap", "swap_space": 32, "depth": 2},
    "in samples": {"n": 3, "max_num_seqs": 16, "depth": 2},
}


def asked_of(**fields: Any) -> list[Request]:
    first = requests(**fields)
    return [*first, Request(id="hit", prompt=[*first[1].prompt, 3, 4], max_tokens=20)]


def on_gpu(
    source: Dummy, draft: Dummy, asked: list[Request], depth: int = 1, **changes: Any
) -> tuple[dict[str, Any], Scheduler]:
    scheduler = Scheduler.create(**{**SETTINGS, **DRAFTS, **changes})
    small = CudaModel.load(draft, 64, torch.float32)
    drafter = CudaDraftModel(scheduler.config.speculation, small, torch.float32)
    model = CudaModel.load(source, 64, torch.float32)
    runner = gpu_runner(model, scheduler, drafter=drafter)
    runner.warm(drafts=True)
    return drive(scheduler, runner, asked, depth), scheduler


def on_cpu(source: Dummy, asked: list[Request], **changes: Any) -> dict[str, Any]:
    scheduler = Scheduler.create(**{**SETTINGS, **changes})
    return drive(scheduler, runner_for(Model.load(source), scheduler, "sdpa"), asked)


@pytest.mark.parametrize("way", WAYS)
def test_all_drafts_of_a_model_for_itself_are_right(way: str) -> None:
    changes = dict(WAYS[way])
    asked, source = asked_of(n=changes.pop("n", 1)), Dummy(tiny(**QWEN), seed=3)
    got, scheduler = on_gpu(source, source, asked, **changes)
    assert got == on_cpu(source, asked, max_num_seqs=changes.get("max_num_seqs", 8))
    assert scheduler.stats.accepted == scheduler.stats.drafted > 0
    if "num_blocks" in changes:
        assert scheduler.stats.preemptions, "the pool was not tight"


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0.0), Sampling(temperature=0.8, top_k=5, logprobs=1)]
)
def test_output_is_the_same_with_a_model_of_another_shape(sampling: Sampling) -> None:
    """The drafts are the likeliest tokens, so samples are those without drafts too."""
    asked = asked_of(sampling=sampling, seed=4)
    source = Dummy(tiny(**QWEN), seed=3)
    smaller = {"num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 16}
    draft = Dummy(tiny(**smaller, hidden_size=48), seed=5)
    got, scheduler = on_gpu(source, draft, asked, depth=2)
    assert got == on_cpu(source, asked)
    assert 0 < scheduler.stats.accepted < scheduler.stats.drafted


def test_another_vocabulary_is_refused() -> None:
    with pytest.raises(ConfigError, match="64 tokens and the model one of 61"):
        on_gpu(Dummy(tiny(**QWEN)), Dummy(tiny(vocab_size=64)), [])


def test_the_size_of_a_cell() -> None:
    small = CudaModel.load(Dummy(tiny(**QWEN)), 64, torch.bfloat16)
    drafter = CudaDraftModel(SpeculationConfig(), small, torch.bfloat16)
    assert drafter.cell_bytes == 3 * 2 * 2 * 8 * 2

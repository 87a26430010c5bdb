"""The runner for a GPU under the scheduler, where blocks that a window has passed are reused."""

from typing import Any

import pytest
import torch

from paceline import Request, Scheduler
from paceline.runner.attention_backend import load
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.runner import CudaRunner, RunnerSizes
from paceline.runner.kv_store import KVStore
from paceline.runner.models.layer_groups import layer_groups
from paceline.runner.models.model import Model
from paceline.runner.proposers.ngram import Ngram
from paceline.runner.weights.dummy import Dummy
from paceline.wiring.memory import attention_groups
from tests.conformance.architectures import Case, tokens_of
from tests.gpu.cuda_backend import SMALL
from tests.interpreted.host_device import large_programs, use_host
from tests.runner.driving import drive
from tests.runner.test_runner import runner_for

KINDS = ["sliding_attention", "full_attention"]
SOURCE = Dummy(Case("mistral").config(**SMALL, sliding_window=3, layer_types=KINDS), seed=3)
SETTINGS: dict[str, Any] = {
    "max_num_seqs": 2,
    "max_num_batched_tokens": 4,  # less than a prompt
    "max_model_len": 16,
    "block_size": 2,
}


def requests() -> list[Request]:
    shared = tokens_of(7, seed=1)
    prompts = [shared + tokens_of(more, seed=more) for more in (2, 1)]
    return [
        Request(id=f"r{number}", prompt=prompt, max_tokens=3, ignore_eos=True)
        for number, prompt in enumerate(prompts)
    ]


def test_tokens_are_those_of_a_roomy_pool_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    roomy = Scheduler.create(**SETTINGS, num_blocks=64)
    due = drive(roomy, runner_for(Model.load(SOURCE), roomy), requests())
    large_programs(monkeypatch)
    use_host(monkeypatch)
    groups = layer_groups(SOURCE.config.windows)
    assert groups.windows == (None, 3)
    tight = {**SETTINGS, "num_blocks": 12, "attention_groups": attention_groups(groups)}
    scheduler = Scheduler.create(**tight)
    model = CudaModel.load(SOURCE, 16, torch.float32, device="cpu")
    kv = KVStore(model.config, 13, 2, groups=groups)
    kv.content.fill_(float("nan"))
    sizes = RunnerSizes(2, 16, 4)
    drafter = Ngram(scheduler.config.speculation)
    runner = CudaRunner(model, kv, load("triton"), drafter, sizes)
    assert drive(scheduler, runner, requests(), depth=2) == due
    assert scheduler.stats.prefix_hits

"""The runner for GPUs on two ranks: the tokens are those of the runner for a CPU."""

from dataclasses import replace
from threading import Lock
from typing import Any
from unittest import mock

import pytest
import torch
from triton.runtime import interpreter

from paceline import Request, Scheduler
from paceline.core.constraint import Constraint
from paceline.core.sampling import Sampling
from paceline.runner.attention.backend import load
from paceline.runner.cuda import model as cuda_model
from paceline.runner.cuda.draft_model import CudaDraftModel
from paceline.runner.cuda.graphs.drafts import DraftGraphs
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.runner import CudaRunner, RunnerSizes
from paceline.runner.kv_store import KVStore
from paceline.runner.models.model import Model
from paceline.runner.parallel.drafts import AwaitedDrafts
from paceline.runner.parallel.group import RankGroup
from paceline.runner.proposers.ngram import Ngram
from paceline.runner.weights.dummy import Dummy
from tests.gpu.cuda_backend import LaidOutForGPU
from tests.interpreted.host_device import large_programs, use_host
from tests.property.grammars import END, constrained_requests
from tests.runner.driving import SETTINGS, drive
from tests.runner.parallel.ranks import tokens_of_two_ranks
from tests.runner.support import tiny
from tests.runner.test_runner import runner_for

SIZES: dict[str, Any] = {
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "head_dim": 16,
    "intermediate_size": 64,
    "vocab_size": 64,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MODELS: dict[str, dict[str, Any]] = {
    "Gemma2ForCausalLM": {"sliding_window": 7, "hidden_activation": "gelu_pytorch_tanh"},
    "Qwen3MoeForCausalLM": EXPERTS,
}
SMALL_STEPS = {"max_num_seqs": 3, "max_num_batched_tokens": 8}  # graphs are filled up
# By temperature alone, by the sampler, and with scores of the prompt.
SAMPLINGS = [
    Sampling(temperature=0.7),
    Sampling(temperature=0.0, top_k=3, logprobs=1),
    Sampling(temperature=0.0, prompt_logprobs=1),
]


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    large_programs(monkeypatch)
    monkeypatch.setattr("paceline.runner.attention.triton.BUSY", 8)
    one, run = Lock(), interpreter.GridExecutor.__call__

    def alone(*given: Any, **named: Any) -> Any:
        with one:  # the interpreter is at one place of one program
            return run(*given, **named)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", alone)


def asked(samplings: list[Sampling]) -> list[Request]:
    return [
        Request(id=f"r{i}", prompt=[5, 9, 2 + i], max_tokens=2, sampling=sampling, seed=i)
        for i, sampling in enumerate(samplings)
    ]


@pytest.mark.parametrize("architecture", MODELS)
def test_tokens_are_those_of_the_cpu(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    samplings = SAMPLINGS if architecture == "Gemma2ForCausalLM" else SAMPLINGS[:1]
    config = tiny(architectures=[architecture], **SIZES, **MODELS[architecture])
    checkpoint, settings = Dummy(config, seed=3), {**SETTINGS, **SMALL_STEPS}
    scheduler = Scheduler.create(**settings)
    due = drive(scheduler, runner_for(Model.load(checkpoint), scheduler), asked(samplings))
    use_host(monkeypatch)

    def rank(group: RankGroup, scheduler: Scheduler) -> CudaRunner:
        cache = scheduler.config.cache
        model = CudaModel.load(checkpoint, 64, torch.float32, "cpu", group=group)
        kv = KVStore(model.config, cache.num_blocks + 1, cache.block_size)
        attention: Any = load("triton")
        drafter = Ngram(scheduler.config.speculation)
        return CudaRunner(model, kv, attention, drafter, RunnerSizes(3, 64, 8))

    with mock.patch.object(cuda_model, "DenseLinear", LaidOutForGPU):
        assert tokens_of_two_ranks(rank, asked(samplings), settings, 2)[0] == due


def test_rank_0_drafts_for_all_and_has_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some steps are verified in a graph, and some under masks."""
    held = {"constraint": Constraint.regex("[0-4]{2}"), "eos_token_ids": (END,)}
    first, second = asked([Sampling(temperature=0.0), SAMPLINGS[1]])
    both = [
        replace(first, max_tokens=12, ignore_eos=True),
        replace(second, max_tokens=4, **held),
    ]
    config = tiny(architectures=["Qwen3ForCausalLM"], **SIZES)
    checkpoint, smaller = Dummy(config, seed=3), Dummy(config, seed=3)
    scheduler, masks = Scheduler.create(**SETTINGS), constrained_requests(config.vocab)
    whole = runner_for(Model.load(checkpoint), scheduler, masks=masks)
    due = drive(scheduler, whole, both, constrained=masks)
    use_host(monkeypatch)
    masks, drafted = constrained_requests(config.vocab), list[int]()
    captured = DraftGraphs.verify

    def noted(graphs: DraftGraphs, samples: int) -> torch.Tensor:
        drafted.append(samples)
        return captured(graphs, samples)

    monkeypatch.setattr(DraftGraphs, "verify", noted)

    def rank(group: RankGroup, scheduler: Scheduler) -> CudaRunner:
        cache, speculation = scheduler.config.cache, scheduler.config.speculation
        model = CudaModel.load(checkpoint, 64, torch.float32, "cpu", group=group)
        kv = KVStore(model.config, cache.num_blocks + 1, cache.block_size)
        attention: Any = load("triton")
        sizes = RunnerSizes(3, 64, 8)
        if not group.is_first:
            awaited = AwaitedDrafts(speculation, CudaDraftModel)
            return CudaRunner(model, kv, attention, awaited, sizes)
        draft = CudaModel.load(smaller, 64, torch.float32, "cpu")
        drafter = CudaDraftModel(speculation, draft, torch.float32)
        return CudaRunner(model, kv, attention, drafter, sizes, masks)

    drafting = {"num_speculative_tokens": 2, "speculation": "fixed"}
    with mock.patch.object(cuda_model, "DenseLinear", LaidOutForGPU):
        settings = {**SETTINGS, **SMALL_STEPS, **drafting}
        got, scheduler = tokens_of_two_ranks(rank, both, settings, 2, masks)
    assert got == due
    assert 0 < scheduler.stats.accepted < scheduler.stats.drafted
    assert drafted

"""The runner for a GPU under the scheduler, with layers that keep states."""

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch

from paceline import Request, Scheduler
from paceline.core.settings.features import SpeculationConfig
from paceline.engine.loop.warm_up import WarmUp
from paceline.runner.attention_backend import load
from paceline.runner.cuda.kernels.dry_run import dry_run
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.runner import CudaRunner, RunnerSizes
from paceline.runner.kv_store import KVStore
from paceline.runner.models.layer_groups import one_group
from paceline.runner.models.model import Model
from paceline.runner.proposers.ngram import Ngram
from paceline.runner.weights.dummy import Dummy
from tests.conformance.architectures import Case, tokens_of
from tests.interpreted.host_device import capture_late, large_programs, use_host
from tests.runner.driving import drive, for_states
from tests.runner.test_runner import runner_for

KINDS = ["conv", "full_attention"]
SOURCE = Dummy(Case("lfm2").config(layer_types=KINDS, num_hidden_layers=2), seed=3)
SETTINGS: dict[str, Any] = {
    "max_num_seqs": 2,
    "max_num_batched_tokens": 6,  # less than a prompt
    "max_model_len": 16,
    "block_size": 2,
}


def requests(max_tokens: int = 2) -> list[Request]:
    shared = tokens_of(7, seed=1)
    prompts = [shared, shared + tokens_of(2, seed=2), shared + tokens_of(1, seed=3)]
    return [
        Request(id=f"r{number}", prompt=prompt, max_tokens=max_tokens, ignore_eos=True)
        for number, prompt in enumerate(prompts)
    ]


DRAFTS = {"num_speculative_tokens": 2, "speculation": "fixed", "proposer": "ngram"}


def compared(
    patch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    asked: list[Request],
    **settings: Any,
) -> Scheduler:
    """The scheduler of a run whose tokens are those of a CPU."""
    settings = {**for_states(SETTINGS, SOURCE.config), **settings}
    roomy = Scheduler.create(**{**for_states(SETTINGS, SOURCE.config), "num_blocks": 64})
    due = drive(roomy, runner_for(Model.load(SOURCE), roomy), asked)
    large_programs(patch)
    use_host(patch)
    capture_late(patch)
    scheduler = Scheduler.create(**settings)
    model = CudaModel.load(SOURCE, 16, torch.float32, device="cpu")
    blocks = scheduler.config.cache.num_blocks + 1
    kv = KVStore(model.config, blocks, 2, groups=one_group(model.config.windows))
    drafter = Ngram(scheduler.config.speculation)
    runner = CudaRunner(model, kv, load("triton"), drafter, RunnerSizes(2, 16, 6))
    runner.reserve_host(scheduler.config.preemption.swap_space)
    runner.warm(drafts=scheduler.config.speculation.num_speculative_tokens > 0)
    config = replace(scheduler.config, speculation=SpeculationConfig())
    with dry_run(), caplog.at_level(logging.WARNING):
        WarmUp(runner, config, 2).run(lambda done, total: None)
    assert not caplog.records, "a step has failed"
    assert runner.state.states is not None
    runner.state.states.content.fill_(0xFF)  # states of slots are not read before they begin
    assert drive(scheduler, runner, asked, depth=2) == due
    return scheduler


@pytest.mark.parametrize("drafting", [{}, DRAFTS], ids=["alone", "with drafts"])
def test_tokens_are_those_of_a_cpu(
    drafting: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A prompt continues from a snapshot within a block. Rejected drafts leave no trace."""
    scheduler = compared(
        monkeypatch, caplog, requests(4 if drafting else 2), num_blocks=16, **drafting
    )
    assert scheduler.stats.prefix_hits
    assert (scheduler.stats.drafted > scheduler.stats.accepted) == bool(drafting)


def test_a_swapped_state_comes_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    swapping = {"num_blocks": 9, "preemption_mode": "swap", "swap_space": 32}
    scheduler = compared(monkeypatch, caplog, requests(5)[:2], **swapping)
    assert scheduler.stats.swapped_in_blocks

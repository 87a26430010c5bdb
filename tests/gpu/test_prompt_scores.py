"""Scores of prompts on a GPU: those of the CPU, however they are scheduled."""

from typing import Any

import numpy as np
import pytest
import torch

from paceline import Request, Scheduler, StepResult
from paceline.core.plan import Plan
from paceline.core.pooling import PromptScores
from paceline.core.sampling import Sampling
from tests.gpu.support import ON_GPU
from tests.gpu.test_runner import both, gpu_runner, on_gpu
from tests.runner.driving import SETTINGS, drive
from tests.runner.pooling_ways import PROMPT
from tests.runner.pooling_ways import WAYS as UNDRAFTED
from tests.runner.test_runner import runner_for as cpu_runner

pytestmark = ON_GPU

PROMPTS = {"a": PROMPT, "b": [*PROMPT[:9], 4, 4], "c": [7, 8] * 5, "d": PROMPT[::-1]}
WAYS: dict[str, dict[str, Any]] = UNDRAFTED | {
    "drafted": {"num_speculative_tokens": 3, "speculation": "fixed"},
    "drafted, ahead, in chunks": {
        "num_speculative_tokens": 2,
        "speculation": "fixed",
        "max_num_batched_tokens": 8,
        "depth": 2,
    },
}
PLAIN = Sampling(temperature=0.8)
FILTERED = Sampling(temperature=0.8, top_p=0.9, logprobs=2)


class Listening:
    """A runner of which every word about prompts is kept."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.heard: list[PromptScores] = []

    def launch(self, plan: Plan) -> None:
        self._runner.launch(plan)

    def wait(self) -> StepResult:
        result = self._runner.wait()
        self.heard += result.prompt
        return result


def request(name: str, wanted: int | None, how: Sampling, **fields: Any) -> Request:
    filters = {"top_p": how.top_p, "logprobs": how.logprobs}
    sampling = Sampling(temperature=how.temperature, prompt_logprobs=wanted, **filters)
    settings: dict[str, Any] = {"max_tokens": 16, "cache_salt": name, "seed": 1, **fields}
    return Request(id=name, prompt=PROMPTS[name], sampling=sampling, **settings)  # pyright: ignore[reportArgumentType]


def heard(
    make: Any, model: Any, asked: list[Request], depth: int = 1, **changes: Any
) -> tuple[list[PromptScores], dict[str, Any], Scheduler]:
    """What was told of prompts, the tokens that were sampled, and the scheduler afterwards."""
    scheduler = Scheduler.create(**{**SETTINGS, **changes})
    runner = Listening(make(model, scheduler))
    got = drive(scheduler, runner, asked, depth)
    return runner.heard, got, scheduler


def by_place(pieces: list[PromptScores]) -> dict[tuple[str, int], list[tuple[Any, ...]]]:
    """Log-probability, rank and alternatives of each token, as often as they were told."""
    found: dict[tuple[str, int], list[tuple[Any, ...]]] = {}
    for piece in pieces:
        assert piece.logprob.dtype == piece.values.dtype == np.float32
        assert piece.rank.dtype == piece.ids.dtype == np.int32
        columns = piece.logprob, piece.rank, piece.ids.tolist(), piece.values
        for place, entry in enumerate(zip(*columns, strict=True), piece.first):
            found.setdefault((piece.request_id, place), []).append(entry)
    return found


def differences(gpu: list[PromptScores], cpu: list[PromptScores]) -> list[str]:
    """Where the GPU tells something else than the CPU, in words."""
    got, expected = by_place(gpu), by_place(cpu)
    told = [f"{key} is not told" for key in expected if key not in got]
    told += [f"{key} is told though it ought not" for key in got if key not in expected]
    for key in expected.keys() & got.keys():
        logprob, rank, ids, values = expected[key][0]
        for entry in got[key]:
            if abs(entry[0] - logprob) > 1e-3:
                told.append(f"{key}: log-probability {entry[0]} instead of {logprob}")
            if entry[1] != rank:
                told.append(f"{key}: rank {entry[1]} instead of {rank}")
            if entry[2] != ids:
                told.append(f"{key}: alternatives {entry[2]} instead of {ids}")
            elif len(ids) and np.abs(entry[3] - values).max() > 1e-3:
                told.append(f"{key}: theirs are {entry[3]} instead of {values}")
    return sorted(told)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", [PLAIN, FILTERED], ids=["plain", "filtered"])
@pytest.mark.parametrize("n", [1, 2])
def test_they_are_those_of_the_cpu_on_every_schedule(way: str, how: Sampling, n: int) -> None:
    gpu, cpu = both("Llama")
    asked = [request(name, 3, how, n=n) for name in PROMPTS]
    truth, _, _ = heard(cpu_runner, cpu, asked)
    places = {(name, at) for name, prompt in PROMPTS.items() for at in range(1, len(prompt))}
    assert by_place(truth).keys() == places
    found, tokens, scheduler = heard(gpu_runner, gpu, asked, **WAYS[way])
    assert not differences(found, truth)
    unasked = [request(name, None, how, n=n) for name in PROMPTS]
    assert tokens == on_gpu(gpu, unasked)[0], "who asks gets other tokens"
    if "num_blocks" in WAYS[way]:
        assert scheduler.stats.preemptions, "the pool was not tight"


@pytest.mark.parametrize("family", ["Qwen3", "Gemma3"])
def test_other_architectures(family: str) -> None:
    gpu, cpu = both(family)
    asked = [request(name, 2, PLAIN) for name in PROMPTS]
    found, _, _ = heard(gpu_runner, gpu, asked, max_num_batched_tokens=16, depth=2)
    assert not differences(found, heard(cpu_runner, cpu, asked)[0])


def test_only_those_are_told_that_are_asked_for() -> None:
    gpu, cpu = both("Llama")
    wanted = {"a": None, "b": 0, "c": 5, "d": None}
    asked = [request(name, number, PLAIN) for name, number in wanted.items()]
    found, _, _ = heard(gpu_runner, gpu, asked, max_num_batched_tokens=16, depth=2)
    assert {piece.request_id for piece in found} == {"b", "c"}
    assert {piece.ids.shape[1] for piece in found} == {0, 5}
    assert not differences(found, heard(cpu_runner, cpu, asked)[0])


def test_logits_are_held_of_as_many_positions_as_there_are_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu, cpu = both("Llama")
    asked = [request(name, 2, PLAIN) for name in PROMPTS]
    widest: list[int] = []
    logits = gpu.logits

    def counted(hidden: torch.Tensor) -> torch.Tensor:
        widest.append(len(hidden))
        return logits(hidden)

    monkeypatch.setattr(gpu, "logits", counted)
    found, _, _ = heard(gpu_runner, gpu, asked)
    assert max(widest) == SETTINGS["max_num_seqs"], "slices are not as long as there are slots"
    assert not differences(found, heard(cpu_runner, cpu, asked)[0])

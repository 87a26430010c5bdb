"""Scores of prompts by the runner: those of the model's logits, whatever computes them."""

from collections import deque
from typing import Any

import numpy as np
import pytest
import torch

from paceline import Request, Scheduler, StepResult
from paceline.core.plan import Plan
from paceline.core.pooling import PromptScores
from paceline.core.sampling import Sampling
from paceline.runner import prompt_reports
from paceline.runner.models.model import Model
from paceline.runner.weights.dummy import Dummy
from tests.runner.sequences import OnCPU, logits_of
from tests.runner.support import tiny
from tests.runner.test_runner import SETTINGS, TIGHT, runner_for

PROMPT = [5, 9, 2, 7, 1, 1, 3, 44, 60, 0, 12, 30, 30, 8]
WAYS: dict[str, dict[str, Any]] = {
    "whole": {},
    "in chunks": {"max_num_batched_tokens": 8},
    "ahead": {"max_num_batched_tokens": 8, "depth": 3},
    "tight": {**TIGHT, "max_num_batched_tokens": 12, "depth": 2},
    "drafted": {"num_speculative_tokens": 3, "speculation": "fixed"},
}


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.load(Dummy(tiny(), seed=3))


def told(
    model: Model, requests: list[Request], depth: int = 1, **changes: Any
) -> tuple[dict[str, list[PromptScores]], Scheduler]:
    """Scores by request, in the order in which they came."""
    scheduler = Scheduler.create(**{**SETTINGS, **changes})
    runner = runner_for(model, scheduler)
    for request in requests:
        scheduler.submit(request, now=0.0)
    found: dict[str, list[PromptScores]] = {request.id: [] for request in requests}
    flight: deque[Plan] = deque()
    while not scheduler.idle:
        plan = scheduler.plan(now=0.0)
        runner.launch(plan)
        flight.extend([] if plan.empty else [plan])
        if plan.empty and not flight:
            scheduler.commit(plan, StepResult.of(plan, {}), now=0.0)
        elif plan.empty or len(flight) == depth:
            result = runner.wait()
            for one in result.prompt:
                found[one.request_id].append(one)
            scheduler.commit(flight.popleft(), result, now=0.0)
    return found, scheduler


def request(name: str, prompt: list[int], wanted: int | None, **fields: Any) -> Request:
    sampling = Sampling(temperature=0.8, prompt_logprobs=wanted)
    settings: dict[str, Any] = {"max_tokens": 16, "cache_salt": name, "seed": 1, **fields}
    return Request(id=name, prompt=prompt, sampling=sampling, **settings)  # pyright: ignore[reportArgumentType]


def check(model: Model, prompt: list[int], pieces: list[PromptScores], wanted: int) -> None:
    """Every place is told, and each time the same, which is what the logits say."""
    expected = logits_of(OnCPU(model, "paged"), prompt).log_softmax(-1)
    seen: set[int] = set()
    for piece in pieces:
        assert piece.ids.shape == piece.values.shape == (len(piece.rank), wanted)
        for at, place in enumerate(range(piece.first, piece.first + len(piece.rank))):
            row = expected[place - 1]
            assert piece.logprob[at] == pytest.approx(float(row[prompt[place]]), abs=1e-5)
            assert piece.rank[at] == int((row > row[prompt[place]]).sum()) + 1
            best = row.topk(wanted)
            np.testing.assert_allclose(piece.values[at], best.values, atol=1e-5)
            assert piece.ids[at].tolist() == best.indices.tolist()
            seen.add(place)
    assert seen == set(range(1, len(prompt)))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("n", [1, 2])
def test_they_do_not_depend_on_the_schedule(model: Model, way: str, n: int) -> None:
    prompts = {"a": PROMPT, "b": [*PROMPT[:9], 4, 4], "c": [7, 8] * 5, "d": PROMPT[::-1]}
    asked = [request(name, prompt, 3, n=n) for name, prompt in prompts.items()]
    found, scheduler = told(model, asked, **WAYS[way])
    for name, pieces in found.items():
        check(model, prompts[name], pieces, 3)
    if way == "tight":
        assert scheduler.stats.preemptions


def test_only_those_are_told_that_are_asked_for(model: Model) -> None:
    asked = [request("a", PROMPT, None), request("b", PROMPT, 0), request("c", PROMPT, 5)]
    found, _ = told(model, asked, max_num_batched_tokens=16)
    assert found["a"] == []
    check(model, PROMPT, found["b"], 0)
    check(model, PROMPT, found["c"], 5)


def test_who_has_the_id_of_an_earlier_one_is_told_apart(model: Model) -> None:
    scheduler = Scheduler.create(**SETTINGS)
    runner = runner_for(model, scheduler)
    serials: list[int] = []
    for _ in range(2):
        scheduler.submit(request("a", PROMPT, 1, max_tokens=1), now=0.0)
        plan = scheduler.plan(now=0.0)
        runner.launch(plan)
        result = runner.wait()
        (piece,) = result.prompt
        assert [piece.serial] == plan.rows.serial.tolist()
        serials.append(piece.serial)
        scheduler.commit(plan, result, now=0.0)
    assert serials[0] != serials[1]


def test_who_takes_the_slot_of_one_who_asked_is_told_nothing(model: Model) -> None:
    scheduler = Scheduler.create(**{**SETTINGS, "max_num_seqs": 1})
    runner = runner_for(model, scheduler)
    found: list[int] = []
    for name, wanted in (("a", 1), ("b", None)):
        scheduler.submit(request(name, PROMPT, wanted, max_tokens=1), now=0.0)
        plan = scheduler.plan(now=0.0)
        runner.launch(plan)
        result = runner.wait()
        found.append(len(result.prompt))
        scheduler.commit(plan, result, now=0.0)
    assert found == [1, 0]


def test_a_prompt_of_one_token_has_nothing_to_tell(model: Model) -> None:
    assert told(model, [request("a", [5], 2)])[0] == {"a": []}


@pytest.mark.parametrize(("share", "most"), [(3.0, 3), (0.5, 1)])
def test_slices_are_as_good_as_the_whole(
    model: Model, monkeypatch: pytest.MonkeyPatch, share: float, most: int
) -> None:
    widest: list[int] = []
    logits = model.logits

    def counted(hidden: torch.Tensor) -> torch.Tensor:
        widest.append(len(hidden))
        return logits(hidden)

    monkeypatch.setattr(prompt_reports, "MOST_LOGITS", int(share * model.config.vocab))
    monkeypatch.setattr(model, "logits", counted)
    found, _ = told(model, [request("a", PROMPT, 2)])
    assert max(widest) == most
    monkeypatch.undo()
    check(model, PROMPT, found["a"], 2)

"""A runner on two ranks, under the real scheduler: the same tokens as one process, in every way."""

from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest

from paceline import Request, Scheduler, StepResult
from paceline.core.plan import Plan
from paceline.core.sampling import Sampling
from paceline.runner.models.model import Model
from paceline.runner.parallel.group import RankGroup
from paceline.runner.runner import TorchRunner
from paceline.runner.weights.dummy import Dummy
from tests.runner.driving import SETTINGS, WAYS, drive, requests
from tests.runner.parallel.ranks import on_ranks
from tests.runner.support import tiny
from tests.runner.test_runner import DRAFTED, runner_for

CHECKPOINT = Dummy(tiny(vocab_size=62), seed=3)
MIXED = [
    Sampling(temperature=0.0),
    Sampling(temperature=0.9),
    Sampling(temperature=0.8, top_p=0.9, presence_penalty=0.5, logprobs=2),
    Sampling(temperature=0.0, prompt_logprobs=1),
    Sampling(temperature=1.1, top_k=5),
]


class Repeated:
    """A runner whose plans are run by another one too."""

    def __init__(self, runner: TorchRunner, send: Callable[[Plan | None], None]) -> None:
        self._runner, self._send = runner, send

    def launch(self, plan: Plan) -> None:
        self._send(plan)
        self._runner.launch(plan)

    def wait(self) -> StepResult:
        return self._runner.wait()


def asked() -> list[Request]:
    plain = requests(seed=11)
    fields = {"max_tokens": 12, "seed": 11}
    return [
        Request(id=one.id, prompt=one.prompt, sampling=sampling, **fields)  # pyright: ignore
        for one, sampling in zip(plain, MIXED, strict=True)
    ]


def one_process(**changes: Any) -> dict[str, Any]:
    scheduler = Scheduler.create(**SETTINGS | changes)
    return drive(scheduler, runner_for(Model.load(CHECKPOINT), scheduler), asked())


@pytest.fixture(scope="module")
def plainly() -> dict[str, Any]:
    return one_process()


@pytest.mark.parametrize("way", WAYS | DRAFTED)
def test_two_ranks_have_the_tokens_of_one_process(way: str, plainly: dict[str, Any]) -> None:
    settings = SETTINGS | (WAYS | DRAFTED)[way]
    depth = settings.pop("depth", 1)
    plans: SimpleQueue[Plan | None] = SimpleQueue()

    def work(group: RankGroup) -> dict[str, Any]:
        scheduler = Scheduler.create(**settings)
        runner = runner_for(Model.load(CHECKPOINT, group=group), scheduler)
        if group.is_first:
            got = drive(scheduler, Repeated(runner, plans.put), asked(), depth)
            plans.put(None)
            return got
        while (plan := plans.get()) is not None:
            runner.launch(plan)
            if not plan.empty:
                runner.wait()
        return {}

    assert on_ranks(2, work) == [plainly, {}]

"""The ranks of a model as threads of one process, which exchange what processes would."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, TypeVar
from unittest import mock

from torch import distributed

from paceline import Request, Scheduler, StepResult
from paceline.core.plan import Plan
from paceline.engine.grammar.constrained_requests import ConstrainedRequests
from paceline.runner.parallel import group as group_module
from paceline.runner.parallel.divide import Shard
from paceline.runner.parallel.group import RankGroup
from tests.runner.driving import drive

T = TypeVar("T")
Plans = SimpleQueue[Plan | None]
dist: Any = distributed


def on_ranks(size: int, work: Callable[[RankGroup], T]) -> list[T]:
    """What each rank returns, in their order. If one fails, the others do not wait for long."""
    store, soon = dist.HashStore(), mock.patch.object(group_module, "TIMEOUT", timedelta(minutes=1))
    with soon, ThreadPoolExecutor(size) as threads:
        started = [
            threads.submit(lambda shard: work(RankGroup(shard, store)), Shard(rank, size))
            for rank in range(size)
        ]
        return [one.result(120) for one in started]


class Repeated:
    """A runner whose plans are run by another one too."""

    def __init__(self, runner: Any, plans: Plans) -> None:
        self._runner, self._plans = runner, plans

    def launch(self, plan: Plan) -> None:
        self._plans.put(plan)
        self._runner.launch(plan)

    def wait(self) -> StepResult:
        return self._runner.wait()


def tokens_of_two_ranks(
    runner_of: Callable[[RankGroup, Scheduler], Any],
    asked: list[Request],
    settings: dict[str, Any],
    depth: int = 1,
    constrained: ConstrainedRequests | None = None,
) -> tuple[dict[str, Any], Scheduler]:
    """What requests get of two ranks, and the scheduler when all have ended."""
    scheduler, plans = Scheduler.create(**settings), Plans()

    def work(group: RankGroup) -> dict[str, Any]:
        runner = runner_of(group, scheduler)
        if group.is_first:
            try:
                return drive(scheduler, Repeated(runner, plans), asked, depth, constrained)
            finally:
                plans.put(None)
        flight = 0
        while (plan := plans.get()) is not None:
            runner.launch(plan)
            flight += not plan.empty
            if flight == depth:
                runner.wait()
                flight -= 1
        return {}

    got, _ = on_ranks(2, work)
    return got, scheduler

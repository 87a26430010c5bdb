"""The ranks of a model as threads of one process, which exchange what processes would."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from torch import distributed

from paceline.runner.parallel.group import RankGroup
from paceline.runner.parallel.shard import Shard

T = TypeVar("T")
dist: Any = distributed


def on_ranks(size: int, work: Callable[[RankGroup], T]) -> list[T]:
    """What each rank returns, in their order."""
    store = dist.HashStore()
    with ThreadPoolExecutor(size) as threads:
        started = [
            threads.submit(lambda shard: work(RankGroup(shard, store)), Shard(rank, size))
            for rank in range(size)
        ]
        return [one.result(60) for one in started]

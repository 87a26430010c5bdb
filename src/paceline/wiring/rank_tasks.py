"""What a rank does beside its steps: it reads adapters."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from paceline.engine.core.process_main import Outbox
from paceline.engine.core.wire import EncodedError, NumberedAnswer
from paceline.runner.adapters.weights import AdapterWeights
from paceline.wiring.rank_wire import DropAdapter, KeepAdapter, NumberedTask, ReadAdapter

THREADS = 2  # a copy does not wait for an adapter


class RankTasks:
    """Tasks of rank 0, which answers when they are done. Steps go on meanwhile."""

    def __init__(self, runner: Any, outbox: Outbox) -> None:
        self._runner, self._outbox = runner, outbox
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tasks")
        self._read: dict[int, AdapterWeights] = {}  # by number, until they are kept

    def begin(self, message: NumberedTask) -> None:
        self._threads.submit(
            self._answer, message.number, partial(self._read_adapter, message.task)
        )

    def keep(self, message: KeepAdapter) -> None:
        self._runner.host_adapters.keep(message.identity, self._read.pop(message.adapter))

    def drop(self, message: DropAdapter) -> None:
        self._runner.host_adapters.drop(message.identity)

    def _read_adapter(self, task: ReadAdapter) -> str:
        for number in [one for one in self._read if one not in task.held]:
            self._read.pop(number, None)
        found = self._read[task.adapter] = self._runner.host_adapters.read(task.path)
        return found.version

    def _answer(self, number: int, work: Callable[[], Any]) -> None:
        try:
            answer = NumberedAnswer(number, work())
        except Exception as error:  # noqa: BLE001 - rank 0 raises it
            answer = NumberedAnswer(number, fault=EncodedError.of(error))
        self._outbox.send(answer)

"""What a rank does beside its steps: it reads adapters, and copies blocks."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from paceline.engine.core.process_main import Outbox
from paceline.engine.core.wire import EncodedError, NumberedAnswer
from paceline.kv.connector import Bytes
from paceline.runner.adapters.weights import AdapterWeights
from paceline.runner.block_bytes import BlockBytes
from paceline.runner.parallel.shard import Shard
from paceline.wiring.rank_wire import (
    CopyBlocks,
    DropAdapter,
    KeepAdapter,
    NumberedTask,
    ReadAdapter,
    ShareRows,
)

THREADS = 2  # a copy does not wait for an adapter


class RankTasks:
    """Tasks of rank 0, which answers when they are done. Steps go on meanwhile."""

    def __init__(self, runner: Any, shard: Shard, outbox: Outbox) -> None:
        self._runner, self._shard, self._outbox = runner, shard, outbox
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tasks")
        self._read: dict[int, AdapterWeights] = {}  # by number, until they are kept
        self._blocks: BlockBytes | None = None
        self._rows: Bytes = np.empty((0, 0), np.uint8)  # [rows, bytes of a block]

    def begin(self, message: NumberedTask) -> None:
        match task := message.task:
            case ReadAdapter():
                work = partial(self._read_adapter, task)
            case ShareRows():
                blocks: BlockBytes = self._runner.block_bytes()
                self._blocks, work = blocks, partial(self._share_rows, task, blocks.block_bytes)
            case CopyBlocks():
                work = self._copy(task)
        self._threads.submit(self._answer, message.number, work)

    def keep(self, message: KeepAdapter) -> None:
        self._runner.host_adapters.keep(message.identity, self._read.pop(message.adapter))

    def drop(self, message: DropAdapter) -> None:
        self._runner.host_adapters.drop(message.identity)

    def _read_adapter(self, task: ReadAdapter) -> str:
        for number in tuple(self._read):  # a copy: `keep` runs on another thread
            if number not in task.held:
                self._read.pop(number, None)
        found = self._read[task.adapter] = self._runner.host_adapters.read(task.path)
        return found.version

    def _share_rows(self, task: ShareRows, block_bytes: int) -> None:
        shape = self._shard.size - 1, task.rows, block_bytes
        memory: Bytes = np.memmap(task.path, np.uint8, "r+", shape=shape)
        self._rows = memory[self._shard.rank - 1]

    def _copy(self, task: CopyBlocks) -> Callable[[], None]:
        """A copy behind all steps of plans that came before it: on rank 0 these have ended."""
        assert self._blocks is not None, "blocks are copied before there is memory for it"
        self._blocks.follow_steps()
        copy = self._blocks.read_into if task.to_host else self._blocks.write
        return partial(copy, task.blocks, self._rows[: len(task.blocks)])

    def _answer(self, number: int, work: Callable[[], Any]) -> None:
        try:
            answer = NumberedAnswer(number, work())
        except Exception as error:  # noqa: BLE001 - rank 0 raises it
            answer = NumberedAnswer(number, fault=EncodedError.of(error))
        self._outbox.send(answer)

"""A rank of a model as a process: `python -m paceline.wiring.ranks.rank_main ADDRESS`."""

import logging
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import sleep
from typing import Any

import numpy as np
import zmq

from paceline.core.errors import PacelineError
from paceline.core.system.host import keep_heap
from paceline.engine.loop.ports import Runner
from paceline.engine.transport.plan_wire import EncodedPlan, PlanReader
from paceline.engine.transport.process_main import Outbox, bound_to_parent
from paceline.engine.transport.wire import (
    Close,
    Died,
    EncodedError,
    NumberedAnswer,
    Ready,
    as_declared,
)
from paceline.hub.repository_files import silent
from paceline.kv.connector import Bytes
from paceline.runner.adapters.weights import AdapterWeights
from paceline.runner.kv_store import BlockBytes
from paceline.runner.parallel.divide import Shard
from paceline.runner.parallel.group import ExchangeFailed, RankGroup
from paceline.wiring.device import ModelLoad, device_named
from paceline.wiring.model import find_checkpoint, find_draft_weights
from paceline.wiring.ranks.rank_processes import (
    BuildRank,
    CopyBlocks,
    DropAdapter,
    KeepAdapter,
    NumberedTask,
    ReadAdapter,
    ShareRows,
    ToRank,
    to_rank,
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


PATIENCE_S = 2.0  # for the parent to notice that another rank is gone, after an exchange failed
IN_FLIGHT = 2  # steps at least, so that a GPU has the next one before it has ended one

log = logging.getLogger("paceline.wiring.ranks.rank_main")  # its name is __main__ here


def main(address: str) -> None:
    """Build the rank that the first message describes, and run plans until the parent closes it."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    commands, outbox = bound_to_parent(context, address)
    status = 1
    try:
        run(commands, outbox)
        status = 0
    except PacelineError as error:
        outbox.send(Ready(fault=EncodedError.of(error)))
    except ExchangeFailed as error:
        sleep(PATIENCE_S)  # the parent ends this rank once it knows which one is gone
        outbox.send(Died(f"{type(error).__name__}: {error}"))
    except Exception as error:
        log.exception("this rank has failed")
        outbox.send(Died(f"{type(error).__name__}: {error}"))
    context.destroy(linger=1000)
    sys.exit(status)


def run(commands: zmq.Socket[bytes], outbox: Outbox) -> None:
    loop: RankLoop | None = None
    while True:
        message: ToRank = to_rank.decode(commands.recv())
        match message:
            case BuildRank():
                loop = built(message, outbox)
            case Close():
                return
            case _:
                assert loop is not None, "a message before the model"
                loop.follow(message)


class RankLoop:
    """Follows rank 0: runs the plans of its scheduler, and does other tasks in step with them. The
    tokens come from rank 0."""

    def __init__(self, runner: Runner, tasks: RankTasks, depth: int) -> None:
        """Rank 0 has so many steps in flight. As many are here at least: the plan behind a step
        with drafts may not know where its rows begin, and the runner knows by the steps in
        flight."""
        self._runner, self._reader, self._tasks = runner, PlanReader(), tasks
        self._most, self._flight = max(depth, IN_FLIGHT), 0

    def follow(self, message: EncodedPlan | NumberedTask | KeepAdapter | DropAdapter) -> None:
        match message:
            case EncodedPlan():
                self._run(message)
            case NumberedTask():
                self._tasks.begin(message)
            case KeepAdapter():
                self._tasks.keep(message)
            case DropAdapter():
                self._tasks.drop(message)

    def _run(self, message: EncodedPlan) -> None:
        plan = self._reader.plan(message)
        self._runner.launch(plan)
        self._flight += not plan.empty
        if self._flight == self._most:
            self._runner.wait()
            self._flight -= 1


def built(message: BuildRank, outbox: Outbox) -> RankLoop:
    """Load the model's part of a rank, beside the other ranks."""
    model, shard = message.model, Shard(message.rank, message.size)
    settings, load_config = as_declared(model.settings), model.load
    on = device_named(load_config.device)
    on.choose_device(shard)
    checkpoint, _ = find_checkpoint(model.name, load_config, load_config.device, silent)
    draft = find_draft_weights(settings, load_config, load_config.device, silent, checkpoint)
    outbox.send(Ready())  # rank 0 connects when all others do
    group = RankGroup.through_file(shard, message.store, model.backend)
    load = ModelLoad(settings, load_config, checkpoint, draft=draft, adapters=model.adapters)
    loaded = on.load(load, group)
    keep_heap()
    return RankLoop(
        loaded.runner,
        RankTasks(loaded.runner, shard, outbox),
        load_config.steps_in_flight(on.DEPTH),
    )


if __name__ == "__main__":
    main(sys.argv[1])

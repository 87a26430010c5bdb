"""A rank of a model as a process of its own: `python -m paceline.wiring.rank_main ADDRESS`."""

import logging
import sys
from importlib import import_module
from time import sleep
from typing import Any

import zmq

from paceline.core.errors import PacelineError
from paceline.core.garbage import keep_heap
from paceline.engine.core.plan_wire import EncodedPlan, PlanReader
from paceline.engine.core.ports import Runner
from paceline.engine.core.process_main import Outbox, bound_to_parent
from paceline.engine.core.wire import Close, Died, EncodedError, Ready, as_declared
from paceline.hub.progress import silent
from paceline.runner.parallel.group import ExchangeFailed, RankGroup
from paceline.runner.parallel.shard import Shard
from paceline.wiring.drafting import find_draft_weights
from paceline.wiring.model import find_checkpoint
from paceline.wiring.rank_tasks import RankTasks
from paceline.wiring.rank_wire import (
    BuildRank,
    DropAdapter,
    KeepAdapter,
    NumberedTask,
    ToRank,
    to_rank,
)

PATIENCE_S = 2.0  # for the parent to notice that another rank is gone, after an exchange failed
IN_FLIGHT = 2  # steps at least, so that a GPU has the next one before it has ended one

log = logging.getLogger("paceline.wiring.rank_main")  # its name is __main__ here


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
    settings, own = as_declared(model.settings), model.load
    on: Any = import_module(f"paceline.wiring.{own.device}")
    on.choose_device(shard)
    checkpoint, _ = find_checkpoint(model.name, own.load_format, own.device, silent)
    draft = find_draft_weights(settings, own, own.device, silent)
    outbox.send(Ready())  # rank 0 connects when all others do
    group = RankGroup.through_file(shard, message.store, model.backend)
    loaded = on.load(settings, own, checkpoint, None, draft, model.adapters, group)
    keep_heap()
    return RankLoop(
        loaded.runner, RankTasks(loaded.runner, shard, outbox), own.steps_in_flight(on.DEPTH)
    )


if __name__ == "__main__":
    main(sys.argv[1])

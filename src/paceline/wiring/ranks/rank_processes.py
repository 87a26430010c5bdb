"""The other ranks of a divided model: their messages, and the processes, which end here."""

import logging
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Condition, Thread
from typing import Any
from weakref import finalize, ref

import msgspec

from paceline.core.adapter import AdapterConfig
from paceline.core.errors import DeviceLost, PacelineError
from paceline.core.plan import Plan
from paceline.core.settings.load import LoadConfig
from paceline.engine.loop.messages import EngineFailed
from paceline.engine.transport import wire
from paceline.engine.transport.child_process import ChildProcess
from paceline.engine.transport.plan_wire import EncodedPlan, PlanWriter
from paceline.engine.transport.wire import Close, read_only
from paceline.runner.parallel.divide import Shard
from paceline.runner.parallel.group import RankGroup

CLOSE_S = 5.0  # for a rank to exit by itself; then it is killed
NEWS_S = 2.0  # for the news that a rank is gone to arrive after an exchange with it failed


class RankedModel(msgspec.Struct, array_like=True, frozen=True):
    """What all ranks load a part of, and how they exchange tensors."""

    name: str
    settings: dict[str, Any]  # of the scheduler; read them with `as_declared`
    load: LoadConfig
    adapters: AdapterConfig
    backend: str  # of torch.distributed


class BuildRank(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Load a part of a model, and run plans on it."""

    rank: int
    size: int
    store: str  # a file through which ranks find each other
    model: RankedModel


class ReadAdapter(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Read the files of an adapter. The answer is its version."""

    adapter: int  # the number under which it is kept
    path: str
    held: tuple[int, ...]  # earlier ones that may still be kept; others are forgotten


class ShareRows(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Copy blocks from now on through rows of a file: [ranks - 1, rows, bytes of a block]."""

    path: str
    rows: int


class CopyBlocks(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Copy blocks to the first rows, or these to blocks."""

    blocks: tuple[int, ...]
    to_host: bool


RankTask = ReadAdapter | ShareRows | CopyBlocks


class NumberedTask(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Work beside the steps. The answer has the same number."""

    number: int
    task: RankTask


class KeepAdapter(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Plans after this one may use an adapter that was read."""

    identity: str
    adapter: int


class DropAdapter(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """No further plan uses an adapter."""

    identity: str


ToRank = BuildRank | EncodedPlan | NumberedTask | KeepAdapter | DropAdapter | Close
to_rank = msgspec.msgpack.Decoder(ToRank, dec_hook=read_only)


class RankProcesses:
    """Ranks from 1 on, as children of this process, which is rank 0.

    A rank that ends before `close` is reported once, and so is one that cannot be built. Then the
    ranks are out of step, and no more steps can run.
    """

    def __init__(self, size: int) -> None:
        """The processes start at once, and import meanwhile what they need."""
        self.size, self._writer = size, PlanWriter()
        self._changed = Condition()
        self._numbers, self._connecting, self._closing = count(), 0, False
        self._answers: dict[int, list[wire.NumberedAnswer]] = {}  # to tasks
        self._fault: PacelineError | None = None
        self._report: Callable[[str], None] | None = None
        self._group: RankGroup | None = None
        self._folder = TemporaryDirectory(prefix="paceline-", ignore_cleanup_errors=True)
        self._ranks = [ChildProcess("paceline.wiring.ranks.rank_main") for _ in range(1, size)]
        self._threads = [
            Thread(target=read, args=(ref(self), rank, child), name=f"rank {rank}", daemon=True)
            for rank, child in enumerate(self._ranks, 1)
        ]
        for thread in self._threads:
            thread.start()
        self._end = finalize(self, kill, self._ranks, self._folder)  # unless it is closed

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._ranks]

    def build(self, model: RankedModel) -> RankGroup:
        """Let every rank load its part, and connect to all of them."""
        store = str(self.new_path("store"))
        for rank, child in enumerate(self._ranks, 1):
            child.send(wire.encoder.encode(BuildRank(rank, self.size, store, model)))
        with self._changed:
            self._changed.wait_for(lambda: self._fault or self._connecting == self.size - 1)
            self._connecting = 0
        self.check()
        connect = partial(RankGroup.through_file, Shard(0, self.size), store, model.backend)
        group: RankGroup = self.guarded(partial(self._unless_lost, connect))
        self._group = group
        return group

    def new_path(self, name: str) -> Path:
        """A path for a file that ranks share, in a folder that is deleted with this object."""
        return Path(self._folder.name) / f"{name}{next(self._numbers)}"

    def _unless_lost(self, work: Callable[[], Any]) -> Any:
        """What the work returns. If a rank is gone, and the work may wait for it, raise the
        error at once."""
        found: Future[Any] = Future()

        def run() -> None:
            try:
                found.set_result(work())
            except Exception as error:  # noqa: BLE001 - the caller raises it
                found.set_exception(error)
            with self._changed:
                self._changed.notify_all()

        Thread(target=run, name="connecting", daemon=True).start()
        with self._changed:
            self._changed.wait_for(lambda: self._fault or found.done())
        self.check()
        return found.result()

    def run(self, plan: Plan) -> None:
        """Let every rank run a plan."""
        self.send(self._writer.encoded(plan))

    def send(self, message: ToRank) -> None:
        """Send a message to every rank."""
        frame = wire.encoder.encode(message)
        for child in self._ranks:
            child.send(frame)

    @contextmanager
    def together(self, task: RankTask) -> Generator[list[Any]]:
        """Let every rank do a task while this one does its own part of it. The list has the answers
        of all ranks afterwards. Raises the error of a rank that could not do it. For any thread but
        the engine's, which should not wait."""
        number, values = next(self._numbers), list[Any]()
        with self._changed:
            self._answers[number] = []
        self.send(NumberedTask(number, task))
        try:
            yield values
        finally:
            answers = self._answers_to(number)
        for answer in answers:
            if answer.fault is not None:
                raise answer.fault.error()
            values.append(answer.value)

    def _answers_to(self, number: int) -> list[wire.NumberedAnswer]:
        with self._changed:
            found = self._answers[number]
            self._changed.wait_for(
                lambda: self._fault or self._closing or len(found) == self.size - 1
            )
            del self._answers[number]
            if len(found) < self.size - 1:
                raise self._fault or EngineFailed("the engine is shut down")
        return found

    def check(self) -> None:
        """Raise the error if a rank is gone."""
        if self._fault is not None:
            raise self._fault

    def guarded(self, work: Callable[[], Any]) -> Any:
        """What the work returns. If it fails because a rank is gone, that is the error; if it fails
        otherwise, the ranks are out of step all the same."""
        try:
            return work()
        except Exception as error:
            with self._changed:
                self._changed.wait_for(lambda: self._fault, NEWS_S)
                if self._fault is None:
                    is_ours = isinstance(error, PacelineError)
                    name = f"rank 0 failed: {type(error).__name__}: {error}"
                    self._fault = error if is_ours else DeviceLost(name)
                raise self._fault from error

    @property
    def are_lost(self) -> bool:
        return self._fault is not None

    def watch(self, report: Callable[[str], None]) -> None:
        """Call `report` with the reason if a rank is gone, now or later."""
        with self._changed:
            self._report, fault = report, self._fault
        if fault is not None:
            report(str(fault))

    def close(self) -> None:
        """End all ranks."""
        self._end.detach()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self.send(wire.Close())
        for child, thread in zip(self._ranks, self._threads, strict=True):
            if self._fault is not None:
                child.kill()  # it may wait for another rank
            child.wait(CLOSE_S)
            thread.join()
            child.close()
        self._folder.cleanup()

    # -- a thread for each rank ---------------------------------------------

    def received(self, rank: int, frame: bytes) -> None:
        """A message of a rank."""
        message: wire.FromCore = wire.from_core.decode(frame)
        match message:
            case wire.LogMessage(name, level, text):
                logging.getLogger(name).log(level, "rank %d: %s", rank, text)
            case wire.Ready(_, None):
                with self._changed:
                    self._connecting += 1
                    self._changed.notify_all()
            case wire.Ready(_, fault) if fault is not None:
                self._lose(fault.error())
            case wire.NumberedAnswer(number):
                with self._changed:
                    if number in self._answers:
                        self._answers[number].append(message)
                        self._changed.notify_all()
            case wire.Died(reason):
                self._lose(DeviceLost(f"rank {rank} failed: {reason}"))
            case _:
                raise AssertionError(f"{type(message).__name__} is no message of a rank")

    def ended(self, rank: int, child: ChildProcess) -> None:
        """The process of a rank is gone."""
        self._lose(
            DeviceLost(
                f"rank {rank} of {self.size} (process {child.pid}) has died with code "
                f"{child.returncode}"
            )
        )

    def _lose(self, fault: PacelineError) -> None:
        with self._changed:
            if self._closing or self._fault is not None:
                return
            self._fault, report, group = fault, self._report, self._group
            self._changed.notify_all()
        if group is not None:
            with suppress(Exception):  # it may have ended by itself
                group.abort()
        if report is not None:
            report(str(fault))


def read(ranks: "ref[RankProcesses]", rank: int, child: ChildProcess) -> None:
    """Pass on messages of a rank until its process ends. The thread does not keep `ranks` alive."""
    while (frame := child.receive()) is not None:
        if (found := ranks()) is not None:
            found.received(rank, frame)
        del found
    if (found := ranks()) is not None:
        found.ended(rank, child)
    else:
        child.close()


def kill(ranks: Sequence[ChildProcess], folder: TemporaryDirectory[str]) -> None:
    """End ranks that were dropped; their threads close them."""
    for child in ranks:
        child.kill()
        child.wait(CLOSE_S)
    folder.cleanup()

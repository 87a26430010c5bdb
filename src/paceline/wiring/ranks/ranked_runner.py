"""Rank 0 of a model: a runner whose plans go to the other ranks too."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch

from paceline.core.capabilities import Capabilities
from paceline.core.errors import RequestError
from paceline.core.plan import Plan, StepResult
from paceline.core.settings.checks import require
from paceline.core.settings.config import Config
from paceline.core.settings.load import LoadConfig
from paceline.kv.connector import Bytes, needs_memory
from paceline.runner.adapters.host import HostAdapters
from paceline.runner.adapters.weights import AdapterWeights
from paceline.runner.kv_store import BlockBytes, lazy_zeros
from paceline.runner.parallel.divide import Shard, check_size
from paceline.runner.weights.checkpoint import Checkpoint
from paceline.sched.scheduler import Scheduler
from paceline.wiring.device import Device, LoadedRunner, ModelLoad
from paceline.wiring.ranks.rank_processes import (
    CopyBlocks,
    DropAdapter,
    KeepAdapter,
    RankedModel,
    RankProcesses,
    ReadAdapter,
    ShareRows,
)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class RankedAdapter:
    """An adapter that all ranks have read. They forget it some time after this object is gone,
    unless it is kept."""

    number: int  # its name for the ranks
    own: AdapterWeights  # the part of rank 0

    @property
    def version(self) -> str:
        return self.own.version


class RankedAdapters:
    """See `AdapterHost`. Ranks get these messages among their plans, so all of them have an adapter
    from the same step on."""

    def __init__(self, own: HostAdapters, ranks: RankProcesses) -> None:
        self._own, self._ranks, self._numbers = own, ranks, count()
        self._read: WeakValueDictionary[int, RankedAdapter] = WeakValueDictionary()

    def read(self, path: str) -> RankedAdapter:
        """Read the files on all ranks. RequestError if a rank cannot."""
        number, held = next(self._numbers), tuple(self._read.keys())
        with self._ranks.together(ReadAdapter(number, path, held)) as versions:
            own = self._own.read(path)
        if any(version != own.version for version in versions):
            raise RequestError(f"{path} has changed while it was read; load the adapter again")
        found = self._read[number] = RankedAdapter(number, own)
        return found

    def keep(self, identity: str, adapter: RankedAdapter) -> None:
        self._own.keep(identity, adapter.own)
        self._ranks.send(KeepAdapter(identity, adapter.number))

    def drop(self, identity: str) -> None:
        self._own.drop(identity)
        self._ranks.send(DropAdapter(identity))


SHARED_BYTES = 32 << 20  # of each rank


class RankedBlocks:
    """Reads and writes whole blocks, as `BlockBytes` does. A row of bytes has the parts of all
    ranks. Those of other ranks pass through memory that all ranks share:

        row      | rank 0 | rank 1 | rank 2 | ...
        shared            [ranks - 1, rows, part_bytes]

    If a rank cannot copy its part, the copy has failed.
    """

    def __init__(self, own: BlockBytes, ranks: RankProcesses) -> None:
        self._own, self._ranks, self.ranks = own, ranks, ranks.size
        self._part, self.block_bytes = own.block_bytes, own.block_bytes * ranks.size
        self._rows = max(SHARED_BYTES // self._part, 1)
        path, shape = ranks.new_path("rows"), (ranks.size - 1, self._rows, self._part)
        self._lock = Lock()  # of the shared memory
        self._shared: Bytes = np.memmap(path, np.uint8, "w+", shape=shape)
        with ranks.together(ShareRows(str(path), self._rows)):
            pass
        path.unlink()  # all ranks have mapped it

    def host_memory(self, rows: int) -> Bytes:
        """Host memory, [rows, block_bytes]. It is not page-locked: copies pass through other
        memory anyway."""
        return lazy_zeros((rows, self.block_bytes), torch.uint8).numpy()

    def read(self, blocks: Sequence[int]) -> Bytes:
        """The content of blocks, [blocks, block_bytes]."""
        rows = np.empty((len(blocks), self.block_bytes), np.uint8)
        self.read_into(blocks, rows)
        return rows

    def read_into(self, blocks: Sequence[int], rows: Iterable[Bytes]) -> None:
        """Copy blocks to rows of bytes."""
        with self._lock:
            for some, into in self._pieces(blocks, list(rows)):
                with self._ranks.together(CopyBlocks(some, to_host=True)):
                    self._own.read_into(some, [row[: self._part] for row in into])
                for at, row in enumerate(into):
                    self._of_others(row)[:] = self._shared[:, at]

    def write(self, blocks: Sequence[int], rows: Iterable[Bytes]) -> None:
        """Copy rows of bytes to blocks."""
        with self._lock:
            for some, content in self._pieces(blocks, list(rows)):
                for at, row in enumerate(content):
                    self._shared[:, at] = self._of_others(row)
                with self._ranks.together(CopyBlocks(some, to_host=False)):
                    self._own.write(some, [row[: self._part] for row in content])

    def _of_others(self, row: Bytes) -> Bytes:
        """The parts of the other ranks, [ranks - 1, part_bytes]."""
        return row[self._part :].reshape(-1, self._part)

    def _pieces(
        self, blocks: Sequence[int], rows: list[Bytes]
    ) -> Iterator[tuple[tuple[int, ...], list[Bytes]]]:
        """As many blocks at a time as the shared memory has room for."""
        for first in range(0, len(blocks), self._rows):
            piece = slice(first, first + self._rows)
            yield tuple(blocks[piece]), rows[piece]


class RankedRunner:
    """See `ports.Runner`. After any error the ranks are out of step, so the runner is lost."""

    def __init__(self, runner: Any, ranks: RankProcesses) -> None:
        self._runner, self.ranks = runner, ranks
        own = runner.host_adapters
        self.host_adapters = None if own is None else RankedAdapters(own, ranks)

    @property
    def capabilities(self) -> Capabilities:
        return replace(self._runner.capabilities, processors=False)  # ranks are processes

    def block_bytes(self) -> RankedBlocks:
        """The blocks of all ranks as bytes, for other threads."""
        return RankedBlocks(self._runner.block_bytes(), self.ranks)

    def launch(self, plan: Plan) -> None:
        self.ranks.check()
        self.ranks.run(plan)
        self.ranks.guarded(partial(self._runner.launch, plan))

    def wait(self) -> StepResult:
        self.ranks.check()
        return self.ranks.guarded(self._runner.wait)

    def is_lost(self) -> bool:
        return self.ranks.are_lost or self._runner.is_lost()

    def watch(self, report: Callable[[str], None]) -> None:
        """Call `report` with the reason if a rank is gone, whether or not a step runs."""
        self.ranks.watch(report)

    def close(self) -> None:
        self._runner.close()
        self.ranks.close()


Start = Callable[[int], RankProcesses]


def assemble_ranks(
    device: Device,
    model: str,
    load: ModelLoad,
    scheduler_of: Callable[[Config], Scheduler] = Scheduler,
    start: Start = RankProcesses,
) -> tuple[Scheduler, LoadedRunner]:
    """The same as `assemble` if there are several ranks, each with a part of every layer. `start`
    gives so many ranks; `load.config` names the device."""
    config = load.config
    check_ranks(config, load.checkpoint)
    size = config.tensor_parallel_size
    device.choose_device(Shard(0, size))
    ranks, backend = start(size), device.backend_of(size)
    try:
        group = ranks.build(RankedModel(model, load.settings, config, load.adapters, backend))
        loaded = ranks.guarded(partial(device.load, load, group))
        runner = RankedRunner(loaded.runner, ranks)
        loaded = replace(loaded, runner=runner, model=None)  # other ranks have parts of it
        return device.started(loaded, config, scheduler_of), loaded
    except BaseException:
        ranks.close()
        raise


def check_ranks(load_config: LoadConfig, checkpoint: Checkpoint) -> None:
    """ConfigError if the settings, or the model, do not go with several ranks."""
    size, connector = load_config.tensor_parallel_size, load_config.kv_connector
    alone = f"tensor_parallel_size is {size}, and"
    require(
        not (connector and needs_memory(connector)),
        f"{alone} kv_connector {connector!r} moves the blocks of one rank: use 'host', "
        "'disk' or 'valkey'",
    )
    check_size(checkpoint.config, size)

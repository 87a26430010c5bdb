"""KV in host memory: what the device evicts can be loaded again."""

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from paceline.core.errors import ConfigError
from paceline.core.request import Request
from paceline.core.settings.features import ConnectorConfig
from paceline.kv.connector import BlockStore, Connector, News, Transfer, TransferEnd, options
from paceline.kv.remote.background import Worker

USUAL_BYTES = 4 << 30
FAILED = "the copy failed; see the log"


@dataclass(frozen=True, slots=True, eq=False)
class CopiedRows:
    """A copy between blocks and rows that has ended."""

    end: TransferEnd
    rows: list[int]
    stored: Mapping[bytes, int] = field(default_factory=dict[bytes, int])  # rows by key
    is_good: bool = True  # else the rows have no content


class Host(Connector):
    """Rows of host memory by key; the least recently used content makes room.

        row      0    1    2    3    4         rows in `_ready` can be loaded, oldest first
        key      k7   k2   .    k9   k4        rows in `_busy` are read or written by the thread
                 r    r         b    r         others are in `_free`, or `_unused` so far

    The engine's thread has all of this; another one copies. A row that is being loaded is in both
    `_ready` and `_busy`, and is not evicted meanwhile.
    """

    takes_groups = takes_states = True
    medium = "CPU"

    def __init__(self, config: ConnectorConfig) -> None:
        super().__init__(config)
        self._bytes: int = options(config, cpu_bytes_to_use=USUAL_BYTES)["cpu_bytes_to_use"]
        self._ready: OrderedDict[bytes, int] = OrderedDict()  # rows by key
        self._coming: dict[bytes, int] = {}  # rows that are being stored, by key
        self._busy: dict[int, int] = {}  # how many copies use a row
        self._free: list[int] = []  # rows that had content before
        self._dropped: set[int] = set()  # busy rows of content that was forgotten
        self._done: deque[CopiedRows] = deque()  # from the thread

    def attach(self, store: BlockStore, news: News) -> None:
        rows = self._bytes // store.block_bytes
        if rows < 1:
            raise ConfigError(
                f"cpu_bytes_to_use is {self._bytes}; a block has {store.block_bytes} bytes"
            )
        self._blocks, self._news = store, news
        self._memory = store.host_memory(rows)  # [rows, block_bytes]
        self._unused = iter(range(rows))  # a list of all rows would take memory too
        self._worker = Worker("kv-host")

    # -- loading ------------------------------------------------------------

    def offer(self, request: Request, keys: Sequence[bytes], have: int) -> int | None:
        return self._use(keys[have:])

    def find(self, request: Request, keys: Sequence[bytes]) -> int | None:
        return next((at for at, key in enumerate(keys) if key in self._ready), len(keys))

    def _use(self, keys: Sequence[bytes]) -> int:
        """How many of the first keys it has. They are the latest used now, the first one most, so
        that the end of a prefix is evicted before its beginning."""
        there = next((at for at, key in enumerate(keys) if key not in self._ready), len(keys))
        for key in reversed(keys[:there]):
            self._ready.move_to_end(key)
        return there

    def fetch(self, transfer: Transfer) -> None:
        there = self._use(transfer.keys)
        rows = [self._ready[key] for key in transfer.keys[:there]]
        self._hold(rows)
        self._worker.do(partial(self._load, transfer, rows))

    def _load(self, transfer: Transfer, rows: list[int]) -> None:
        end = TransferEnd(transfer.ticket, 0, FAILED)
        try:
            self._blocks.write(transfer.blocks[: len(rows)], [self._memory[row] for row in rows])
            whole = len(rows) == len(transfer.keys)
            bad, reason = (None, "") if whole else (len(rows), "evicted")
            end = TransferEnd(transfer.ticket, bad, reason)
        finally:
            self._report(CopiedRows(end, rows))

    # -- storing ------------------------------------------------------------

    def keep(self, keys: Sequence[bytes]) -> int:
        there = self._use(keys)
        while there < len(keys) and (keys[there] in self._ready or keys[there] in self._coming):
            there += 1
        return there

    def store(self, transfer: Transfer) -> None:
        """Store as many leading blocks as there is room for."""
        new = [
            (key, block)
            for key, block in zip(transfer.keys, transfer.blocks, strict=True)
            if key not in self._ready and key not in self._coming
        ]
        rows = [row for row in (self._row() for _ in new) if row is not None]
        self._hold(rows)
        stored = dict(zip([key for key, _ in new], rows, strict=False))
        self._coming |= stored
        blocks = [block for _, block in new[: len(rows)]]
        self._worker.do(partial(self._save, transfer, blocks, stored))

    def _row(self) -> int | None:
        """A free row, by evicting content if necessary; None: all rows are busy."""
        if not self._free and (unused := next(self._unused, None)) is not None:
            return unused
        if not self._free:
            idle = (key for key, row in self._ready.items() if row not in self._busy)
            oldest = next(idle, None)
            if oldest is None:
                return None
            self._free.append(self._ready.pop(oldest))
            self.changed([oldest], False)
        return self._free.pop()

    def _save(self, transfer: Transfer, blocks: list[int], stored: dict[bytes, int]) -> None:
        rows, is_good = list(stored.values()), False
        try:
            self._blocks.read_into(blocks, [self._memory[row] for row in rows])
            is_good = True
        finally:
            self._report(CopiedRows(TransferEnd(transfer.ticket), rows, stored, is_good))

    # -- both ---------------------------------------------------------------

    def _hold(self, rows: list[int]) -> None:
        for row in rows:
            self._busy[row] = self._busy.get(row, 0) + 1

    def _report(self, copy: CopiedRows) -> None:
        self._done.append(copy)
        self._news()

    def poll(self) -> Sequence[TransferEnd]:
        ended: list[TransferEnd] = []
        while self._done:
            copy = self._done.popleft()
            self._settle(copy)
            ended.append(copy.end)
        return ended

    def _settle(self, copy: CopiedRows) -> None:
        """A copy has ended."""
        if not copy.is_good:
            self.forget([key for key, row in copy.stored.items() if self._coming.get(key) == row])
        stored = {row: key for key, row in copy.stored.items() if self._coming.get(key) == row}
        self.changed(list(stored.values()), True)
        for row in reversed(copy.rows):
            self._busy[row] -= 1
            if not self._busy[row]:
                del self._busy[row]
            if row in stored:
                key = stored[row]
                del self._coming[key]
                self._ready[key] = row
            elif row in self._dropped and row not in self._busy:
                self._dropped.remove(row)
                self._free.append(row)

    def forget(self, keys: Sequence[bytes]) -> None:
        self.changed([key for key in keys if key in self._ready], False)
        for key in keys:
            rows = self._coming if key in self._coming else self._ready
            row = rows.pop(key, None)
            if row in self._busy:
                self._dropped.add(row)
            elif row is not None:
                self._free.append(row)

    def clear(self) -> None:
        self.forget([*self._ready, *self._coming])

    def close(self) -> None:
        self._worker.close()

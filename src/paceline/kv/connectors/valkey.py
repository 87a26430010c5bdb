"""KV in a server that speaks RESP: Valkey, Redis and others, shared by all engines that use it."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Any

import numpy as np

from paceline.core.connector_config import ConnectorConfig
from paceline.core.errors import ConfigError
from paceline.core.request import Request
from paceline.kv.connector import (
    BlockStore,
    Bytes,
    Connector,
    News,
    Transfer,
    TransferEnd,
    options,
)
from paceline.kv.remote.resp_server import RespServer, ServerHealth
from paceline.kv.remote.worker import Worker

MIB = 1 << 20
SLICE_BYTES = 8 * MIB  # of values in one message
REMEMBERED = 1 << 16  # keys that were stored, and lookups
FRESH_S = 1.0  # seconds for which the answer to a lookup holds


@dataclass(frozen=True, slots=True)
class Lookup:
    """How many blocks the server had from block `first` on; None: it has not answered."""

    first: int
    found: int | None = None
    time: float = 0.0
    stores: int | None = None  # how many had ended when the answer was first used; None: unused


class Valkey(Connector):
    """Looks up and loads on one thread, and stores on another. The server decides what it keeps.

    A server that is down or slow has nothing: requests compute their prompts, and what would be
    stored is dropped. Keys begin with the layout, so that engines with different models can share
    a server. Answers of the threads wait in `_answers` until the engine calls `offer` or `poll`.
    """

    def __init__(self, config: ConnectorConfig) -> None:
        super().__init__(config)
        chosen = options(
            config, url="redis://127.0.0.1:6379", timeout_s=1.0, retry_s=5.0, pending_mib=256
        )
        self._health = ServerHealth(chosen["retry_s"])
        server = chosen["url"], chosen["timeout_s"], self._health
        try:
            self._loads_from, self._stores_to = RespServer(*server), RespServer(*server)
        except ValueError as error:
            raise ConfigError(f"url is {chosen['url']!r}: {error}") from None
        self._most_pending: int = chosen["pending_mib"] * MIB
        self._pending = 0  # bytes that are to be stored
        self._stores = 0  # that have ended
        self._stored: OrderedDict[bytes, None] = OrderedDict()  # keys, least recently used first
        self._lookups: OrderedDict[str, Lookup] = OrderedDict()  # by request
        self._answers: deque[Callable[[], None]] = deque()
        self._ended: list[TransferEnd] = []
        self._cleared = 0  # how often

    def attach(self, store: BlockStore, news: News) -> None:
        self._blocks, self._news = store, news
        self._loader, self._storer = Worker("kv-loader"), Worker("kv-storer")

    # -- loading ------------------------------------------------------------

    def offer(self, request: Request, keys: Sequence[bytes], have: int) -> int | None:
        if have >= len(keys) or self._health.is_down:
            return 0
        self._take_answers()
        known = self._lookups.get(request.id)
        if known is not None and known.found is None:
            return None
        if known is None or known.found is None or known.first > have or not self._holds(known):
            remember(self._lookups, request.id, Lookup(have))
            self._loader.do(partial(self._look_up, request.id, tuple(keys[have:]), have))
            return None
        if known.stores is None:
            remember(self._lookups, request.id, replace(known, stores=self._stores))
        return max(known.first + known.found - have, 0)

    def _holds(self, known: Lookup) -> bool:
        """Whether an answer is used. After a store the server has more, but an answer is used at
        least once: otherwise a request would wait for as long as others store."""
        return monotonic() - known.time < FRESH_S and known.stores in (None, self._stores)

    def _look_up(self, request_id: str, keys: Sequence[bytes], first: int) -> None:
        try:
            found = self._loads_from.present(self._named(keys))
        except OSError:
            found = 0
        self._answer(partial(self._looked_up, request_id, first, found))

    def _looked_up(self, request_id: str, first: int, found: int) -> None:
        # The time is when the engine hears of it, so that an answer is fresh after a long step.
        remember(self._lookups, request_id, Lookup(first, found, monotonic()))

    def fetch(self, transfer: Transfer) -> None:
        self._loader.do(partial(self._load, transfer))

    def _load(self, transfer: Transfer) -> None:
        """Load slice by slice, up to the first block that is missing."""
        place, reason = 0, ""
        try:
            for part in self._slices(len(transfer.blocks)):
                found = self._loads_from.get(self._named(transfer.keys[part]))
                good = self._complete(found)
                self._write(transfer.blocks[part][: len(good)], good)
                place += len(good)
                if len(good) < len(found):
                    reason = "the server no longer has it"
                    break
        except OSError as error:
            reason = str(error)
        bad = None if place == len(transfer.blocks) else place
        self._end(TransferEnd(transfer.ticket, bad, reason))

    def _complete(self, values: Sequence[bytes | None]) -> list[bytes]:
        """The values up to the first that is missing or has another size."""
        good: list[bytes] = []
        for value in values:
            if value is None or len(value) != self._blocks.block_bytes:
                break
            good.append(value)
        return good

    def _write(self, blocks: Sequence[int], values: Sequence[bytes]) -> None:
        if values:
            content = np.frombuffer(b"".join(values), np.uint8)
            self._blocks.write(blocks, content.reshape(len(blocks), -1))

    # -- storing ------------------------------------------------------------

    def keep(self, keys: Sequence[bytes]) -> int:
        for place, key in enumerate(keys):
            if key not in self._stored:
                return place
            self._stored.move_to_end(key)
        return len(keys)

    def store(self, transfer: Transfer) -> None:
        self._take_answers()
        size = len(transfer.blocks) * self._blocks.block_bytes
        if self._health.is_down or self._pending + size > self._most_pending:
            self._ended.append(TransferEnd(transfer.ticket))
            return
        self._pending += size
        self._storer.do(partial(self._read, transfer, self._cleared))

    def _read(self, transfer: Transfer, cleared: int) -> None:
        """Copy the blocks, so that they need not wait for the server."""
        content = self._blocks.read(transfer.blocks)
        self._end(TransferEnd(transfer.ticket))
        self._storer.do(partial(self._send, transfer.keys, content, cleared))

    def _send(self, keys: tuple[bytes, ...], content: Bytes, cleared: int) -> None:
        """Store what the server does not have."""
        stored: tuple[bytes, ...] = ()
        try:
            if cleared == self._cleared:
                names = self._named(keys)
                first = self._stores_to.present(names)
                for part in self._slices(len(keys), first):
                    self._stores_to.set(names[part], [row.tobytes() for row in content[part]])
                stored = keys
        except OSError:
            pass  # it is the connector's loss
        self._answer(partial(self._sent, stored, content.nbytes, cleared))

    def _sent(self, keys: Sequence[bytes], size: int, cleared: int) -> None:
        self._pending -= size
        self._stores += 1
        if cleared == self._cleared:
            for key in keys:
                remember(self._stored, key, None)

    # -- both ---------------------------------------------------------------

    def poll(self) -> Sequence[TransferEnd]:
        self._take_answers()
        ended, self._ended = self._ended, []
        return ended

    def forget(self, keys: Sequence[bytes]) -> None:
        self._lookups.clear()
        for key in keys:
            self._stored.pop(key, None)
        self._storer.do(partial(self._remove, self._named(keys)))

    def clear(self) -> None:
        """Remove all content of this layout from the server, for all engines that use it."""
        self._cleared += 1
        self._stored.clear()
        self._lookups.clear()
        self._storer.do(partial(self._remove, None))

    def _remove(self, names: Sequence[bytes] | None) -> None:
        try:
            if names is None:
                self._stores_to.remove_all(self._prefix)
            else:
                self._stores_to.remove(names)
        except OSError:
            pass  # a server that lost its connection may keep it

    def close(self) -> None:
        self._loader.close()
        self._storer.close()
        self._loads_from.close()
        self._stores_to.close()

    @property
    def _prefix(self) -> bytes:
        return f"paceline:{self._blocks.layout}:".encode()

    def _named(self, keys: Sequence[bytes]) -> list[bytes]:
        prefix = self._prefix
        return [prefix + key for key in keys]

    def _slices(self, blocks: int, first: int = 0) -> Iterator[slice]:
        """Parts of some blocks, each for one message."""
        step = max(SLICE_BYTES // self._blocks.block_bytes, 1)
        return (slice(begin, min(begin + step, blocks)) for begin in range(first, blocks, step))

    def _end(self, end: TransferEnd) -> None:
        self._answer(partial(self._ended_by, end))

    def _ended_by(self, end: TransferEnd) -> None:
        self._ended.append(end)

    def _answer(self, answer: Callable[[], None]) -> None:
        """Pass something on to the engine's thread."""
        self._answers.append(answer)
        self._news()

    def _take_answers(self) -> None:
        while self._answers:
            self._answers.popleft()()


def remember(kept: OrderedDict[Any, Any], name: object, value: object) -> None:
    """Keep a value, and drop the oldest one if there are too many."""
    kept[name] = value
    kept.move_to_end(name)
    if len(kept) > REMEMBERED:
        kept.popitem(last=False)

"""KV in a server that speaks RESP: Valkey, Redis and others, shared by all engines that use it."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic

import numpy as np

from paceline.core.errors import ConfigError
from paceline.core.request import Request
from paceline.core.settings.features import ConnectorConfig
from paceline.kv.connector import Bytes, Transfer, TransferEnd, options
from paceline.kv.keys import HEAD, head_of
from paceline.kv.remote.background import MIB, BackgroundConnector
from paceline.kv.remote.block_files import KnownContent, remember
from paceline.kv.remote.resp_server import RespServer, ServerHealth

SLICE_BYTES = 8 * MIB  # of values in one message
FRESH_S = 1.0  # seconds for which the answer to a lookup holds


@dataclass(frozen=True, slots=True)
class Lookup:
    """How many blocks the server had from block `first` on; None: it has not answered."""

    first: int
    found: int | None = None
    time: float = 0.0
    stores: int | None = None  # how many had ended when the answer was first used; None: unused


class Valkey(BackgroundConnector):
    """Has one value per block, the head and the content. The server decides what it keeps.

    A server that is down or slow has nothing: requests compute their prompts, and what would be
    stored is dropped. A full one is still read. Keys begin with the layout, so that engines with
    different models can share a server.
    """

    takes_groups = takes_states = True

    def __init__(self, config: ConnectorConfig) -> None:
        usual = {"url": "redis://127.0.0.1:6379", "timeout_s": 1.0, "retry_s": 5.0}
        chosen = options(config, ("timeout_s",), **usual, pending_mib=1024)
        super().__init__(config, chosen["pending_mib"])
        self._health = ServerHealth(chosen["retry_s"])
        server = chosen["url"], chosen["timeout_s"], self._health
        try:
            self._loads_from, self._stores_to = RespServer(*server), RespServer(*server)
        except ValueError as error:
            raise ConfigError(f"url is {chosen['url']!r}: {error}") from None
        self._stores = 0  # that have ended
        self._known = KnownContent()
        self._lookups: OrderedDict[tuple[str, int], Lookup] = OrderedDict()  # by request and keys

    # -- loading ------------------------------------------------------------

    def _offer(self, request: Request, keys: Sequence[bytes], have: int) -> int | None:
        if self._health.is_down:
            return 0
        name = request.id, hash(tuple(keys))
        known = self._lookups.get(name)
        if known is not None and known.found is None:
            return None
        if known is None or known.found is None or known.first > have or not self._holds(known):
            remember(self._lookups, name, Lookup(have))
            sought = tuple(keys[have:])
            self._look_up(partial(self._present, sought), partial(self._found, name, have, sought))
            return None
        if known.stores is None:
            remember(self._lookups, name, replace(known, stores=self._stores))
        return max(known.first + known.found - have, 0)

    def _holds(self, known: Lookup) -> bool:
        """Whether an answer is used. After a store the server has more, but an answer is used at
        least once: otherwise a request would wait for as long as others store."""
        return monotonic() - known.time < FRESH_S and known.stores in (None, self._stores)

    def _present(self, keys: Sequence[bytes]) -> int:
        with suppress(OSError):
            return self._leading(self._loads_from, keys)
        return 0

    def _leading(self, server: RespServer, keys: Sequence[bytes]) -> int:
        """How many of the first keys have values of the right size."""
        sizes = server.sizes(self._named(keys))
        return next((at for at, size in enumerate(sizes) if size != self._value_bytes), len(keys))

    def _first(self, keys: Sequence[bytes]) -> int:
        if self._health.is_down:
            return len(keys)
        with suppress(OSError):
            sizes = self._loads_from.sizes(self._named(keys))
            return next((at for at, size in enumerate(sizes) if size), len(keys))
        return len(keys)

    def _found(self, name: tuple[str, int], first: int, keys: Sequence[bytes], number: int) -> None:
        # The time is when the engine hears of it, so that an answer is fresh after a long step.
        now = monotonic()
        remember(self._lookups, name, Lookup(first, number, now))
        self._known.add(keys[:number], now)
        self._known.drop(keys[number:])  # others may be gone too

    def _load(self, transfer: Transfer) -> TransferEnd:
        """Load slice by slice, up to the first block that is missing or damaged."""
        keys, good, reason = transfer.keys, 0, ""
        try:
            for part in self._slices(len(keys)):
                values = self._loads_from.get(self._named(keys[part]))
                rows = self._whole(keys[part], values)
                self._blocks.write(transfer.blocks[part][: len(rows)], rows)
                good += len(rows)
                if len(rows) < len(values):
                    is_gone = values[len(rows)] is None
                    reason = f"the server {'no longer has it' if is_gone else 'has other content'}"
                    if not is_gone:  # the rest may be wrong too: it is computed and stored again
                        self._loads_from.remove(self._named(keys[good:]))
                    break
        except OSError as error:
            reason = str(error)
        if good == len(keys):
            return TransferEnd(transfer.ticket)
        self._answer(partial(self._known.drop, keys[good:]))
        return TransferEnd(transfer.ticket, good, reason)

    def _whole(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> list[Bytes]:
        """The content of values up to the first that is missing, damaged or of another key."""
        rows: list[Bytes] = []
        for key, value in zip(keys, values, strict=True):
            if value is None or len(value) != self._value_bytes:
                break
            content = memoryview(value)[HEAD.size :]
            if not value.startswith(head_of(self._blocks.layout, key, content)):
                break
            rows.append(np.frombuffer(content, np.uint8))
        return rows

    # -- storing ------------------------------------------------------------

    def keep(self, keys: Sequence[bytes]) -> int:
        """What the server lost or evicted is noticed when it is looked up, when it is loaded, and
        now and then while it is in use here."""
        self._take_answers()
        there = self._known.leading(keys)
        if used := self._known.use(keys[:there], monotonic()):
            self._writer.do(partial(self._use, used))
        return there

    def _use(self, keys: tuple[bytes, ...]) -> None:
        with suppress(OSError):
            sizes = self._stores_to.sizes(self._named(keys))
            there = dict(zip(keys, sizes, strict=True))
            gone = [key for key, size in there.items() if size != self._value_bytes]
            self._answer(partial(self._known.drop, gone))

    @property
    def _takes_content(self) -> bool:
        return not (self._health.is_down or self._health.is_full)

    def _save(self, keys: Sequence[bytes], content: Bytes, wanted: Callable[[], bool]) -> int:
        """Store what the server does not have."""
        with suppress(OSError):  # what is not stored is computed again
            if wanted():
                first = self._leading(self._stores_to, keys)
                for part in self._slices(len(keys), first):
                    self._stores_to.set(
                        self._named(keys[part]), list(map(self._value, keys[part], content[part]))
                    )
                return len(keys)
        return 0

    def _value(self, key: bytes, row: Bytes) -> bytes:
        return b"".join((head_of(self._blocks.layout, key, row.data), row.data))

    def _saved(self, keys: Sequence[bytes]) -> None:
        self._stores += 1
        self._known.add(keys, monotonic())

    # -- both ---------------------------------------------------------------

    def _forget_some(self, keys: Sequence[bytes]) -> None:
        self._lookups.clear()
        self._known.drop(keys)

    def _remove_some(self, keys: Sequence[bytes]) -> None:
        with suppress(OSError):  # a server that lost its connection may keep them
            self._stores_to.remove(self._named(keys))

    def _forget_all(self) -> None:
        self._known.clear()
        self._lookups.clear()

    def _remove_all(self) -> None:
        self._stores_to.remove_all(self._prefix)

    def close(self) -> None:
        super().close()
        self._loads_from.close()
        self._stores_to.close()

    @property
    def _value_bytes(self) -> int:
        return HEAD.size + self._blocks.block_bytes

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

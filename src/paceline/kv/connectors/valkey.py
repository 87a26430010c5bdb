"""KV in a server that speaks RESP: Valkey, Redis and others, shared by all engines that use it."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Any

import numpy as np

from paceline.core.connector_config import ConnectorConfig
from paceline.core.errors import ConfigError
from paceline.core.request import Request
from paceline.kv.background import MIB, BackgroundConnector
from paceline.kv.connector import Bytes, Transfer, TransferEnd, options
from paceline.kv.remote.resp_server import RespServer, ServerHealth

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


class Valkey(BackgroundConnector):
    """Has one value per block. The server decides what it keeps.

    A server that is down or slow has nothing: requests compute their prompts, and what would be
    stored is dropped. A full one is still read. Keys begin with the layout, so that engines with
    different models can share a server.
    """

    takes_groups = True

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
        self._stored: OrderedDict[bytes, None] = OrderedDict()  # keys, least recently used first
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
            self._look_up(partial(self._present, sought), partial(self._found, name, have))
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
            return self._loads_from.present(self._named(keys))
        return 0

    def _found(self, name: tuple[str, int], first: int, number: int) -> None:
        # The time is when the engine hears of it, so that an answer is fresh after a long step.
        remember(self._lookups, name, Lookup(first, number, monotonic()))

    def _load(self, transfer: Transfer) -> TransferEnd:
        """Load slice by slice, up to the first block that is missing."""
        place, reason = 0, ""
        try:
            for part in self._slices(len(transfer.blocks)):
                found = self._loads_from.get(self._named(transfer.keys[part]))
                good = self._complete(found)
                self._fill(transfer.blocks[part][: len(good)], good)
                place += len(good)
                if len(good) < len(found):
                    reason = "the server no longer has it"
                    break
        except OSError as error:
            reason = str(error)
        return TransferEnd(
            transfer.ticket, None if place == len(transfer.blocks) else place, reason
        )

    def _complete(self, values: Sequence[bytes | None]) -> list[bytes]:
        """The values up to the first that is missing or has another size."""
        good: list[bytes] = []
        for value in values:
            if value is None or len(value) != self._blocks.block_bytes:
                break
            good.append(value)
        return good

    def _fill(self, blocks: Sequence[int], values: Sequence[bytes]) -> None:
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

    @property
    def _takes_content(self) -> bool:
        return not (self._health.is_down or self._health.is_full)

    def _save(self, keys: Sequence[bytes], content: Bytes, wanted: Callable[[], bool]) -> int:
        """Store what the server does not have."""
        names = self._named(keys)
        with suppress(OSError):  # what is not stored is computed again
            if wanted():
                first = self._stores_to.present(names)
                for part in self._slices(len(keys), first):
                    self._stores_to.set(names[part], [row.tobytes() for row in content[part]])
                return len(keys)
        return 0

    def _saved(self, keys: Sequence[bytes]) -> None:
        self._stores += 1
        for key in keys:
            remember(self._stored, key, None)

    # -- both ---------------------------------------------------------------

    def _forget_some(self, keys: Sequence[bytes]) -> None:
        self._lookups.clear()
        for key in keys:
            self._stored.pop(key, None)

    def _remove_some(self, keys: Sequence[bytes]) -> None:
        with suppress(OSError):  # a server that lost its connection may keep them
            self._stores_to.remove(self._named(keys))

    def _forget_all(self) -> None:
        self._stored.clear()
        self._lookups.clear()

    def _remove_all(self) -> None:
        self._stores_to.remove_all(self._prefix)

    def close(self) -> None:
        super().close()
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


def remember(kept: OrderedDict[Any, Any], name: object, value: object) -> None:
    """Keep a value, and drop the oldest one if there are too many."""
    kept[name] = value
    kept.move_to_end(name)
    if len(kept) > REMEMBERED:
        kept.popitem(last=False)

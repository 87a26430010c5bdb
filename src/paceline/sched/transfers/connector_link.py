"""The scheduler's side of a connector."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paceline.core.errors import ConfigError, PluginError, RequestError
from paceline.core.events import BlockRemoved, BlockStored, CacheEvent, Medium
from paceline.core.request import Finish, Request
from paceline.core.settings.config import CacheConfig
from paceline.core.settings.features import FULL_ATTENTION, ConnectorRole
from paceline.kv.cache import KVCache
from paceline.kv.connector import Connector, Transfer, TransferEnd, TransferKind, TransferObserver
from paceline.kv.fence import Fence, TransferTicket

REMEMBERED = 1 << 16  # blocks stored lately, whose transfers may not have ended


class TierEvents:
    """Reports cache events of one medium: each block once when stored, and once when removed.

    A connector reports keys alone, so the contents of events are remembered when blocks are
    stored. Only blocks of the first group with full attention are reported, as on the device;
    blocks from before the start of the engine are not.
    """

    def __init__(self, medium: Medium, events: list[CacheEvent]) -> None:
        self.medium: Medium = medium
        self._events = events
        self._stored: dict[bytes, BlockStored] = {}  # the latest
        self._reported: set[bytes] = set()

    def store(self, blocks: Sequence[BlockStored]) -> None:
        """Remember blocks that the connector is about to store."""
        for one in blocks:
            self._stored.pop(one.key, None)  # to keep the latest last
            self._stored[one.key] = one
        while len(self._stored) > REMEMBERED:
            del self._stored[next(iter(self._stored))]

    def changed(self, keys: Sequence[bytes], is_there: bool) -> None:
        for key in keys:
            stored = self._stored.get(key)
            if is_there and stored is not None and key not in self._reported:
                self._reported.add(key)
                self._events.append(stored)
            elif not is_there and key in self._reported:
                self._reported.remove(key)
                self._events.append(BlockRemoved(key, self.medium))

    def clear(self) -> None:
        """Forget all blocks; the cache reports the reset for all media."""
        self._stored.clear()
        self._reported.clear()


def check_connector(connector: Connector, cache: CacheConfig) -> None:
    """ConfigError if a connector does not go with the settings of the cache."""
    if not cache.enable_prefix_caching:
        raise ConfigError("kv_connector needs enable_prefix_caching")
    name = connector.config.kv_connector
    if cache.state_blocks and not connector.takes_states:
        raise ConfigError(f"kv_connector {name!r} does not transfer states: remove it")
    if cache.attention_groups != FULL_ATTENTION and not connector.takes_groups:
        kinds = ", ".join(one.kind for one in cache.groups)
        raise ConfigError(
            f"kv_connector {name!r} transfers blocks of one group with full attention; "
            f"attention_groups has {kinds}: remove one of the settings"
        )


class ConnectorLink:
    """Numbers transfers, fences their blocks, and checks the connector's answers.

    Without a connector, no method but `connect` may be called.
    """

    def __init__(self, cache: KVCache) -> None:
        self.connector: Connector | None = None
        self.name = ""  # in the settings
        self.role: ConnectorRole = "kv_both"
        self.hands_over = False  # does the connector handle requests that end?
        self.tier_events: TierEvents | None = None  # None: no events
        self.observer: TransferObserver | None = None
        self._cache = cache
        self._tickets = 0
        self._open: set[TransferTicket] = set()
        self._loads: deque[tuple[int, Transfer]] = deque()  # not begun, by step to wait for

    def connect(self, connector: Connector) -> None:
        self.connector = connector
        self.name, self.role = connector.config.kv_connector, connector.config.kv_role
        self.hands_over = connector.hands_over
        if self._cache.events is not None and connector.medium is not None:
            self.tier_events = TierEvents(connector.medium, self._cache.events)
            connector.watch(self.tier_events.changed)

    @property
    def loads(self) -> bool:
        return self.connector is not None and self.role != "kv_producer"

    @property
    def stores(self) -> bool:
        return self.connector is not None and self.role != "kv_consumer"

    @property
    def _there(self) -> Connector:
        assert self.connector is not None, "no connector is connected"
        return self.connector

    # -- queries ------------------------------------------------------------

    def check(self, request: Request) -> None:
        """RequestError if a request asks for a transfer that the connector cannot make."""
        if request.kv_transfer_params is None:
            return
        if self.connector is None:
            raise RequestError(
                f"request {request.id!r} has kv_transfer_params; this engine exchanges no KV with "
                "others: remove `kv_transfer_params`"
            )
        self.connector.check(request)

    def offer(self, request: Request, keys: Sequence[bytes], have: int) -> int | None:
        """Number of blocks that the connector can load after the first `have`; None: ask later."""
        answer = self._there.offer(request, keys, have)
        if answer is not None and not 0 <= answer <= len(keys) - have:
            raise self._wrong(f"offers {answer!r} of {len(keys) - have} blocks")
        return answer

    def find(self, request: Request, keys: Sequence[bytes]) -> int | None:
        """The index of the first key that the connector can load; their number: none; None: ask
        later."""
        answer = self._there.find(request, keys)
        if answer is not None and not 0 <= answer <= len(keys):
            raise self._wrong(f"finds {answer!r} of {len(keys)} states")
        return answer

    def keep(self, keys: Sequence[bytes]) -> int:
        """Number of leading keys that the connector has already."""
        answer = self._there.keep(keys)
        if not 0 <= answer <= len(keys):
            raise self._wrong(f"keeps {answer!r} of {len(keys)} blocks")
        return answer

    def poll(self) -> list[TransferEnd]:
        """Transfers that ended. The caller lifts their fences."""
        ended = list(self._there.poll())
        for end in ended:
            if end.ticket not in self._open:
                raise self._wrong(f"ends {end.ticket}, which is not under way")
            self._open.remove(end.ticket)
            if self.observer is not None:
                self.observer.ended(end)
        return ended

    def forget(self, keys: Iterable[bytes]) -> None:
        """Remove the blocks of these keys, which may be wrong."""
        if self.connector is not None:
            self.connector.forget([*keys])

    def clear(self) -> bool:
        """Forget all content, and return True."""
        if self.tier_events is not None:
            self.tier_events.clear()
        if self.connector is not None:
            self.connector.clear()
        return True

    def close(self) -> None:
        connector, self.connector = self.connector, None
        if connector is not None:
            connector.close()

    # -- transfers ----------------------------------------------------------

    def fetch(self, transfer: Transfer, held: tuple[int, ...], after: int) -> None:
        """Load into blocks after the commit of step `after`, since steps in flight may still write
        to them for their earlier owner. Hold the blocks `held` until the load ends."""
        self._fence(transfer, held)
        self._loads.append((after, transfer))

    def begin_loads(self, flight: Sequence[int]) -> None:
        """Begin the loads that no step in flight holds up."""
        while self._loads and (not flight or self._loads[0][0] < flight[0]):
            transfer = self._loads.popleft()[1]
            self._begun("load", transfer)
            self._there.fetch(transfer)

    def store(self, transfer: Transfer) -> None:
        self._fence(transfer, brief=True)
        self._begun("store", transfer)
        self._there.store(transfer)

    def finished(self, transfer: Transfer, finish: Finish) -> Mapping[str, Any] | None:
        """Pass an ended request to the connector. Returns its answer for the client; if there is
        one, the blocks are held until the transfer ends."""
        answer = self._there.finished(transfer, finish)
        if answer is not None:
            self._fence(transfer)
            self._begun("hand over", transfer)
        return answer

    def ticket(self) -> TransferTicket:
        """A new ticket."""
        self._tickets += 1
        return TransferTicket(self._tickets)

    def _fence(self, transfer: Transfer, held: tuple[int, ...] = (), brief: bool = False) -> None:
        self._open.add(transfer.ticket)
        blocks = (*held, *transfer.blocks)
        self._cache.fences.add(Fence(transfer.ticket, blocks, brief=brief))

    def _begun(self, kind: TransferKind, transfer: Transfer) -> None:
        if self.observer is not None:
            self.observer.begun(kind, transfer)

    def _wrong(self, what: str) -> PluginError:
        return PluginError(f"kv_connector {self.name!r} {what}")

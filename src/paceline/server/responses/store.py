"""Keeps responses and conversations, so that clients can read and continue them later."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from time import monotonic
from typing import Any, TypeVar

from msgspec import json
from msgspec.structs import replace

from paceline.server.responses.events import EventLog, SentToPeers

Item = Mapping[str, Any]

ITEM_BYTES = 256  # that an item takes beside its JSON, and a conversation beside its items


class StoredResponse(SentToPeers, frozen=True):
    """A response as JSON, and the items that were its input, also as JSON."""

    body: bytes
    input: bytes
    background: bool = False
    has_log: bool = False  # whether its events were kept
    session: str = ""  # the name of the conversation
    until: float = 0.0  # when it is forgotten, on the clock of its store

    @property
    def size(self) -> int:
        return len(self.body) + len(self.input)

    @property
    def input_items(self) -> list[Item]:
        return json.decode(self.input, type=list[Item])

    @property
    def items(self) -> list[Item]:
        """The conversation up to the end of the response."""
        return [*self.input_items, *json.decode(self.body)["output"]]

    @property
    def status(self) -> str:
        return json.decode(self.body)["status"]


class StoredConversation(SentToPeers, frozen=True):
    """The items of a conversation in order, each as JSON, by their ids."""

    id: str
    created_at: int
    metadata: dict[str, str]
    items: dict[str, bytes]
    until: float = 0.0  # as of a response

    @property
    def size(self) -> int:
        return ITEM_BYTES * (1 + len(self.items)) + sum(map(len, self.items.values()))

    @property
    def all_items(self) -> list[Item]:
        return [json.decode(item, type=Item) for item in self.items.values()]

    def followed_by(self, items: Sequence[Item]) -> "StoredConversation":
        added = {item["id"]: json.encode(item) for item in items}
        return replace(self, items=self.items | added)


Stored = TypeVar("Stored", StoredResponse, StoredConversation)


class ResponseStore:
    """At most `most` responses and conversations of `most_bytes` together, each for `age_s`.

    The oldest go first; a conversation that is changed counts as new.

    The events of a response count as a part of it, and are given up first. Responses are put from
    several threads, since long ones are written on one of their own; logs of events are used on the
    event loop alone.
    """

    def __init__(
        self, most: int, most_bytes: int, age_s: float, clock: Callable[[], float] = monotonic
    ) -> None:
        self._most, self.most_bytes, self._age_s, self._clock = most, most_bytes, age_s, clock
        self._kept: OrderedDict[str, StoredResponse | StoredConversation] = (
            OrderedDict()
        )  # oldest first
        self._logs: dict[str, EventLog] = {}  # of responses that are kept
        self._bytes = 0
        self._lock = Lock()

    def put(self, name: str, given: Stored) -> bool:
        """Keep a response or conversation, or a new state; False if it is larger than the store."""
        now = self._clock()
        stored = replace(given, until=now + self._age_s)
        with self._lock:
            log = self._logs.get(name)
            self._drop(name)
            if stored.size > self.most_bytes:
                return False
            self._kept[name] = stored
            self._bytes += stored.size
            if log is not None and stored.size + log.size <= self.most_bytes:
                self._logs[name] = log
                self._bytes += log.size
            self._trim(now)
            return True

    def open_log(self, name: str) -> None:
        """Keep the events of a response, if it is kept."""
        with self._lock:
            if name in self._kept:
                self._logs[name] = EventLog()

    def add_events(self, name: str, events: bytes) -> None:
        """Keep events of a response that has a log. The oldest responses make room for them.

        If its events are larger than the store, the response loses them.
        """
        with self._lock:
            if (log := self._logs.get(name)) is None:
                return
            if self._kept[name].size + log.size + len(events) > self.most_bytes:
                self._drop_log(name)
                return
            log.add(events)
            self._bytes += len(events)
            self._trim(self._clock())

    def log(self, name: str) -> EventLog | None:
        """The events of a response; None if it has no log, or is not kept."""
        with self._lock:
            self._trim(self._clock())
            return self._logs.get(name)

    def get(self, name: str) -> StoredResponse | None:
        return self._found(name, StoredResponse)

    def conversation(self, name: str) -> StoredConversation | None:
        return self._found(name, StoredConversation)

    def _found(self, name: str, kind: type[Stored]) -> Stored | None:
        with self._lock:
            self._trim(self._clock())
            found = self._kept.get(name)
            return found if isinstance(found, kind) else None

    def remove(self, name: str) -> bool:
        """Forget a response or conversation; False if it is not kept."""
        with self._lock:
            return self._drop(name)

    def _drop(self, name: str) -> bool:
        if (old := self._kept.pop(name, None)) is None:
            return False
        self._bytes -= old.size
        self._drop_log(name)
        return True

    def _drop_log(self, name: str) -> None:
        if (log := self._logs.pop(name, None)) is not None:
            self._bytes -= log.size

    def _trim(self, now: float) -> None:
        while self._kept:
            name, oldest = next(iter(self._kept.items()))
            is_full = len(self._kept) > self._most or self._bytes > self.most_bytes
            if not is_full and oldest.until > now:
                return
            self._drop(name)

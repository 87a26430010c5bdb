"""Publishes KV events over ZMQ in vLLM's wire format, on a thread of its own."""

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from threading import Thread
from time import time, time_ns
from typing import Any, NamedTuple

import zmq
from msgspec import msgpack

from paceline.core.adapter import adapter_name
from paceline.core.errors import ConfigError
from paceline.core.events import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent, Medium
from paceline.core.settings.features import EventEncoding, KVEventsConfig
from paceline.engine.loop.ports import StepObserver
from paceline.engine.transport.child_process import Alarm
from paceline.sched.scheduler import Scheduler

HIGHEST_BIT = 1 << 63
log = logging.getLogger(__name__)
LINGER_MS = 1000  # for subscribers to take the last batches
SEQUENCE_BYTES = 8
END = (-1).to_bytes(SEQUENCE_BYTES, "big", signed=True)  # the sequence number after a replay
REQUEST_FRAMES = 3  # the client, an empty frame, the first sequence number


class WireEvent(NamedTuple):
    """An event under its name in vLLM. The first `required` fields are always written."""

    name: str
    required: int
    fields: dict[str, Any]


def wire_key(key: bytes) -> int:
    """A key as a 64-bit integer: its last 8 bytes, with the highest bit set.

    Routers index integers of 64 bits. With that bit, msgpack never writes a shorter form, which
    some of them do not read.
    """
    return int.from_bytes(key[-8:], "big") | HIGHEST_BIT


def encode_batch(
    time: float, events: Iterable[CacheEvent], block_size: int, encoding: EventEncoding, rank: int
) -> bytes:
    form = as_array if encoding == "array" else as_map
    return msgpack.encode([time, [form(one) for one in joined(events, block_size)], rank])


def as_array(event: WireEvent) -> list[Any]:
    """The name and the fields by place, without those at the end that are empty."""
    values = [*event.fields.values()]
    while len(values) > event.required and values[-1] is None:
        values.pop()
    return [event.name, *values]


def as_map(event: WireEvent) -> dict[str, Any]:
    """The fields by name, without those that are empty."""
    written = {
        name: value
        for place, (name, value) in enumerate(event.fields.items())
        if place < event.required or value is not None
    }
    return {"type": event.name, **written}


def joined(events: Iterable[CacheEvent], block_size: int) -> Iterator[WireEvent]:
    """The same events in the same order, consecutive ones in one where the format allows it."""
    for (kind, medium), alike in groupby(events, lambda one: (type(one), medium_of(one))):
        if kind is AllBlocksCleared:
            yield WireEvent("AllBlocksCleared", 0, {})
        elif kind is BlockRemoved:
            keys = [wire_key(one.key) for one in alike if isinstance(one, BlockRemoved)]
            yield WireEvent("BlockRemoved", 1, {"block_hashes": keys, "medium": medium})
        else:
            stored = (one for one in alike if isinstance(one, BlockStored))
            yield from (stored_event(chain, block_size) for chain in chains(stored))


def medium_of(event: CacheEvent) -> Medium | None:
    return None if isinstance(event, AllBlocksCleared) else event.medium


def chains(stored: Iterable[BlockStored]) -> Iterator[list[BlockStored]]:
    """Blocks that follow one another in the same prompt."""
    chain: list[BlockStored] = []
    for one in stored:
        if chain and one.parent != chain[-1].key:
            yield chain
            chain = []
        chain.append(one)
    yield chain


def stored_event(chain: list[BlockStored], block_size: int) -> WireEvent:
    first = chain[0]
    extra = [extra_keys(one) for one in chain]
    return WireEvent(
        "BlockStored",
        5,
        {
            "block_hashes": [wire_key(one.key) for one in chain],
            "parent_block_hash": None if first.parent is None else wire_key(first.parent),
            "token_ids": [token for one in chain for token in one.tokens],
            "block_size": block_size,
            "lora_id": None,
            "medium": first.medium,
            "lora_name": adapter_name(first.adapter) or None,
            "extra_keys": extra if any(extra) else None,
        },
    )


def extra_keys(block: BlockStored) -> list[Any] | None:
    """What a key depends on besides tokens, in vLLM's order: the adapter, the images with their
    offsets, and in the first block the salt."""
    found: list[Any] = [adapter_name(block.adapter)] if block.adapter else []
    found += map(list, block.images)
    if block.salt and block.parent is None:
        found.append(block.salt)
    return found or None


class EventPublisher:
    """Sends each batch once to every subscriber, in order, and keeps the latest for `Replays`.

        publish -> queue -> thread -> PUB socket: topic, sequence number, batch
                                   -> replays    -> ROUTER socket, when a subscriber has a gap

    `publish` never waits. If the queue is full, the batch is lost; the next batch then begins with
    AllBlocksCleared, so that no subscriber believes in blocks that are gone.

    Sequence numbers begin with the time in microseconds. They rise over restarts, so a subscriber
    sees the restart as a gap and does not take the new batches for old ones. The first batch is
    AllBlocksCleared.
    """

    def __init__(self, config: KVEventsConfig, block_size: int) -> None:
        self._config, self._block_size = config, block_size
        self._queue: deque[tuple[float, list[CacheEvent]]] = deque()
        self._overflowed = self._closing = False
        self._sequence = time_ns() // 1000
        self._context = zmq.Context()
        try:
            self._socket = opened(self._context, zmq.PUB, "endpoint", config)
            self._replays = Replays(self._context, config) if config.replay_endpoint else None
        except ConfigError:
            self._context.destroy(linger=0)
            raise
        self._alarm = Alarm()
        self._thread = Thread(target=self._run, name="kv-events", daemon=True)
        self.publish([AllBlocksCleared()])
        self._thread.start()

    def publish(self, events: list[CacheEvent]) -> None:
        """Send a batch soon."""
        if len(self._queue) >= self._config.max_queue_size:
            if not self._overflowed:
                log.warning(
                    "%d batches of KV events wait to be sent: further ones are lost",
                    len(self._queue),
                )
            self._overflowed = True
            return
        if self._overflowed:
            events, self._overflowed = [AllBlocksCleared(), *events], False
        self._queue.append((time(), events))
        self._alarm.ring()

    def close(self) -> None:
        """Send what is queued, and wait for subscribers to take it, for at most LINGER_MS."""
        self._closing = True
        self._alarm.ring()
        self._thread.join()
        self._alarm.close()

    # -- its own thread -----------------------------------------------------

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._alarm.fileno(), zmq.POLLIN)
        if self._replays is not None:
            poller.register(self._replays.socket, zmq.POLLIN)
        while not self._closing or self._queue:
            poller.poll()
            self._alarm.clear()
            requests = [] if self._replays is None else self._replays.requests()
            while self._queue:  # before the answers, so that they have all that was published
                self._send(*self._queue.popleft())
            if self._replays is not None:
                self._replays.answer(requests)
        self._context.destroy(linger=LINGER_MS)

    def _send(self, at: float, events: list[CacheEvent]) -> None:
        own = self._config
        batch = encode_batch(at, events, self._block_size, own.encoding, own.data_parallel_rank)
        number = self._sequence.to_bytes(SEQUENCE_BYTES, "big")
        self._socket.send_multipart((own.topic.encode(), number, batch))
        if self._replays is not None:
            self._replays.keep(self._sequence, batch)
        self._sequence += 1


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """All batches from a sequence number on, for a client of the socket."""

    client: bytes
    start: int


class Replays:
    """The latest batches, and a socket that sends them again.

    A request is an empty frame and the first sequence number that is wanted. The answers are
    batches as they were published, and one with the sequence number -1 and no content.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], config: KVEventsConfig) -> None:
        self._topic = config.topic.encode()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self.socket = opened(context, zmq.ROUTER, "replay_endpoint", config)

    def keep(self, sequence: int, batch: bytes) -> None:
        self._kept.append((sequence, batch))

    def requests(self) -> list[ReplayRequest]:
        """The requests that have arrived."""
        found: list[ReplayRequest] = []
        while self.socket.poll(0):
            frames = self.socket.recv_multipart()
            if len(frames) == REQUEST_FRAMES and len(frames[-1]) == SEQUENCE_BYTES:
                found.append(ReplayRequest(frames[0], int.from_bytes(frames[-1], "big")))
            else:
                log.warning("a malformed request for past KV events is ignored: %.100s", frames)
        return found

    def answer(self, requests: list[ReplayRequest]) -> None:
        for one in requests:
            for sequence, batch in self._kept:
                if sequence >= one.start:
                    self._send(one.client, sequence.to_bytes(SEQUENCE_BYTES, "big"), batch)
            self._send(one.client, END, b"")

    def _send(self, client: bytes, sequence: bytes, batch: bytes) -> None:
        self.socket.send_multipart((client, b"", self._topic, sequence, batch))


def opened(
    context: zmq.Context[zmq.Socket[bytes]], kind: int, name: str, config: KVEventsConfig
) -> zmq.Socket[bytes]:
    """A socket at an endpoint of the settings. ConfigError if it cannot be opened."""
    socket = context.socket(kind)
    # A client that asks for a replay gets all of it, however slowly it reads.
    socket.set_hwm(config.hwm if kind == zmq.PUB else config.buffer_steps + 1)
    address: str = getattr(config, name)
    socket.ipv6 = "[" in address
    is_bound = kind == zmq.ROUTER or config.is_bound
    try:
        socket.bind(address) if is_bound else socket.connect(address)
    except zmq.ZMQError as error:
        verb = "bind" if is_bound else "connect to"
        raise ConfigError(
            f"kv_events_config: cannot {verb} {name} {address}: "
            f"{zmq.strerror(error.errno or 0)}; choose another one"
        ) from None
    return socket


class CacheObserver(StepObserver):
    """The events of a turn, and those of a question, are one batch."""

    def __init__(self, scheduler: Scheduler, publisher: EventPublisher) -> None:
        self._scheduler, self._publisher = scheduler, publisher

    @classmethod
    def publishing(cls, scheduler: Scheduler, config: KVEventsConfig) -> "CacheObserver":
        """Publish as a configuration says."""
        return cls(scheduler, EventPublisher(config, scheduler.config.cache.block_size))

    def changed(self) -> None:
        if events := self._scheduler.cache_events():
            self._publisher.publish(events)

    def close(self) -> None:
        self._publisher.close()

"""Publishes KV events over ZMQ, on a thread of its own."""

import logging
from collections import deque
from dataclasses import dataclass
from threading import Thread
from time import time, time_ns

import zmq

from paceline.core.errors import ConfigError
from paceline.core.events import AllBlocksCleared, CacheEvent
from paceline.core.settings.features import KVEventsConfig
from paceline.engine.kv_events.wire import encode_batch
from paceline.engine.loop.ports import StepObserver
from paceline.engine.transport.child_process import Alarm
from paceline.sched.scheduler import Scheduler

log = logging.getLogger(__name__)

LINGER_MS = 1000  # for subscribers to take the last batches
SEQUENCE_BYTES = 8
END = (-1).to_bytes(SEQUENCE_BYTES, "big", signed=True)  # the sequence number after a replay
REQUEST_FRAMES = 3  # the client, an empty frame, the first sequence number


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

"""A thread on which engines keep blocks for each other, and read those of others."""

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Thread
from time import monotonic, sleep

from paceline.core.kv_transfer import KVTransfer
from paceline.core.plugins import library
from paceline.kv.connector import Transfer, TransferEnd
from paceline.kv.fence import TransferTicket
from paceline.kv.remote.agent import BlockReader
from paceline.kv.remote.leases import Leases
from paceline.kv.remote.reads import RemoteReads
from paceline.kv.remote.side_channel import SideChannelServer

log = logging.getLogger(__name__)

BUSY_MS = 0.5  # between two turns while blocks are read, here or by others
KEEPING_MS = 5.0  # while blocks are kept
PAUSE_S = 0.1  # after a turn that failed


@dataclass(frozen=True, slots=True)
class ExchangeSettings:
    """Where the side channel is, and how long blocks are kept and answers waited for."""

    host: str
    port: int  # 0: any
    lease_s: float
    read_s: float
    answer_s: float
    max_peer_blocks: int  # of another engine


class BlockExchange:
    """Each fetch and each lease ends exactly once, by a call of `ended` on the exchange's thread.

    The methods are for one other thread and return at once. If a turn of the exchange's thread
    fails, all fetches do, and the next turn follows.
    """

    def __init__(
        self,
        settings: ExchangeSettings,
        reader: BlockReader,
        ended: Callable[[TransferEnd], None],
    ) -> None:
        """OSError if the port is in use."""
        self._zmq = zmq = library(("zmq",), "nixl")
        self._context = context = zmq.Context()
        self._reader, self._ended = reader, ended
        self._own = reader.described()
        self._leases = Leases(settings.lease_s, settings.read_s)
        try:
            self._server = SideChannelServer(context, settings.host, settings.port, self._leases)
        except OSError:
            reader.close()
            context.destroy()
            raise
        self.port = self._server.port
        self._wake, self._woken = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        self._wake.bind("inproc://wake")
        self._woken.connect("inproc://wake")
        self._poller = zmq.Poller()
        for socket in (self._woken, self._server.socket):
            self._poller.register(socket, zmq.POLLIN)
        limits = settings.answer_s, settings.max_peer_blocks
        self._reads = RemoteReads(context, self._poller, reader, *limits, ended)
        self._commands: deque[Callable[[], None]] = deque()
        self._closing = False
        self._thread = Thread(target=self._run, name="kv-exchange", daemon=True)
        self._thread.start()

    def keep(self, name: str, transfer: Transfer) -> None:
        """Keep blocks until they have been read, or until the lease ends."""
        self._do(partial(self._keep, name, transfer))

    def fetch(self, transfer: Transfer, remote: KVTransfer) -> None:
        """Read blocks of another engine."""
        self._do(partial(self._reads.fetch, transfer, remote))

    def release(self, remote: KVTransfer) -> None:
        """Notify another engine that its blocks are not wanted."""
        self._do(partial(self._reads.release, remote))

    def close(self) -> None:
        self._do(self._stop)
        self._thread.join()
        self._context.destroy(linger=0)

    def _do(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        with suppress(self._zmq.Again):  # a full queue wakes it too
            self._wake.send(b"", self._zmq.NOBLOCK)

    # -- on its own thread --------------------------------------------------

    def _run(self) -> None:
        has_failed = False
        while not self._closing:
            try:
                if has_failed:
                    self._reads.fail_all()
                    has_failed = False
                self._turn()
            except Exception:
                log.exception("the exchange of KV with other engines failed; it goes on")
                has_failed = True
                sleep(PAUSE_S)
        self._reads.close()
        self._reader.close()

    def _turn(self) -> None:
        self._poller.poll(self._patience_ms())
        while self._woken.poll(0):
            self._woken.recv()
        self._run_commands()
        self._server.serve(self._own, self._run_commands, self._give_back)
        self._reads.follow()
        self._end_leases()

    def _run_commands(self) -> None:
        while self._commands:
            self._commands.popleft()()

    def _patience_ms(self) -> float | None:
        if self._reads.is_busy or self._leases.is_claimed:
            return BUSY_MS
        return KEEPING_MS if len(self._leases) else None

    def _stop(self) -> None:
        self._closing = True

    # -- blocks that others read --------------------------------------------

    def _keep(self, name: str, transfer: Transfer) -> None:
        self._leases.add(name, transfer, monotonic())

    def _end_leases(self) -> None:
        if not len(self._leases):
            return
        for note in self._reader.notes():
            self._end_lease(self._leases.was_read(note.decode(errors="replace")))
        for name, ticket in self._leases.expired(monotonic()):
            log.warning("no engine read the KV of request %r in time; it is freed", name)
            self._ended(TransferEnd(ticket))

    def _give_back(self, name: str) -> None:
        self._end_lease(self._leases.release(name))

    def _end_lease(self, ticket: TransferTicket | None) -> None:
        if ticket is not None:
            self._ended(TransferEnd(ticket))

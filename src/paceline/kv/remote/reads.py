"""Fetches from other engines: permission over the side channel, then a read of their memory."""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any

from paceline.core.kv_transfer import KVTransfer
from paceline.core.plugins import library
from paceline.kv.connector import Transfer, TransferEnd
from paceline.kv.remote.agent import BlockRead, BlockReader, PeerMemory
from paceline.kv.remote.side_channel import Message, SideChannelClient

log = logging.getLogger(__name__)

# What an answer may cause, whatever it has in it.
UNREADABLE = OSError, KeyError, TypeError, ValueError, OverflowError, MemoryError
FAILED = "the thread that exchanges KV failed; see the log"
SETTLING_S = 0.5  # after a failed read, in which the library ends what it had begun


@dataclass(slots=True, eq=False)
class RemoteRead:
    """A fetch: first it waits for the permission to read, then for the blocks."""

    transfer: Transfer
    remote: KVTransfer
    until: float  # when it is given up
    read: BlockRead | None = None
    asked_at: float = 0.0
    problem: str = ""  # why it is being stopped


@dataclass(slots=True, eq=False)
class Peer:
    """Another engine. Fetches wait in `waiting` until its memory is known."""

    client: SideChannelClient
    is_known: bool = False
    waiting: list[RemoteRead] = field(default_factory=list[RemoteRead])


class RemoteReads:
    """Each fetch ends exactly once, by a call of `ended`. All methods are for one thread.

    Another engine may have `most_blocks` blocks; one that names more is not read.
    """

    def __init__(
        self,
        context: Any,
        poller: Any,
        reader: BlockReader,
        answer_s: float,
        most_blocks: int,
        ended: Callable[[TransferEnd], None],
    ) -> None:
        self._context, self._poller, self._reader = context, poller, reader
        self._answer_s, self._most_blocks, self._ended = answer_s, most_blocks, ended
        self._in: int = library(("zmq",), "nixl").POLLIN
        self._peers: dict[str, Peer] = {}  # by engine id
        self._parted: list[SideChannelClient] = []  # to be closed
        self._open: list[RemoteRead] = []
        self._settled_at = 0.0  # when the library has ended what failed

    @property
    def is_busy(self) -> bool:
        """Whether `follow` has something to do soon."""
        return bool(self._open) or monotonic() < self._settled_at

    def fetch(self, transfer: Transfer, remote: KVTransfer) -> None:
        """Read blocks of another engine into those of the transfer."""
        one = RemoteRead(transfer, remote, monotonic() + self._answer_s)
        self._open.append(one)
        try:
            peer = self._peer(remote)
        except OSError as error:
            self._fail(one, str(error))
            return
        if peer.is_known:
            self._claim(peer, one)
        else:
            peer.waiting.append(one)

    def release(self, remote: KVTransfer) -> None:
        """Notify another engine that its blocks are not wanted."""
        with suppress(OSError):
            self._peer(remote).client.notify(ask="release", request=remote.remote_request_id)

    def follow(self) -> None:
        """Read answers, report the reads that ended, and stop those whose time is over."""
        for peer in list(self._peers.values()):
            peer.client.receive()
        for one in list(self._open):
            try:
                self._follow(one)
            except Exception:
                if not one.problem:
                    log.exception("a read from %s failed", one.remote.remote_host)
                one.problem = one.problem or FAILED  # its blocks may be written until it is stopped
        if not self._open and self.is_busy:
            self._reader.notes()  # the library works in its calls
        while self._parted:
            self._parted.pop().close()

    def fail_all(self) -> None:
        """End all fetches. Those whose blocks are being written end when they have been stopped."""
        for one in list(self._open):
            if one.read is None:
                self._end(one, TransferEnd(one.transfer.ticket, 0, FAILED))
            else:
                one.problem = one.problem or FAILED
        for engine_id, peer in list(self._peers.items()):
            if not peer.is_known:
                self._part_from(engine_id)

    def close(self) -> None:
        """Stop. The blocks of open reads may be written until the library is closed."""
        while monotonic() < self._settled_at:
            self._reader.notes()
        for peer in self._peers.values():
            peer.client.close()

    # -- other engines ------------------------------------------------------

    def _peer(self, remote: KVTransfer) -> Peer:
        engine_id = remote.remote_engine_id
        if engine_id not in self._peers:
            client = SideChannelClient(self._context, remote.remote_host, remote.remote_port)
            self._peers[engine_id] = peer = Peer(client)
            for socket in client.sockets:
                self._poller.register(socket, self._in)
            client.ask(partial(self._met, engine_id, peer), ask="memory")
        return self._peers[engine_id]

    def _met(self, engine_id: str, peer: Peer, answer: Message) -> None:
        """The memory of another engine became known."""
        waiting, peer.waiting = peer.waiting, []
        try:
            self._connect(engine_id, answer)
        except UNREADABLE as error:
            for one in waiting:
                self._fail(one, str(error))
            self._part_from(engine_id)
            return
        peer.is_known = True
        for one in waiting:
            if one in self._open:
                self._claim(peer, one)

    def _connect(self, engine_id: str, answer: Message) -> None:
        if problem := answer.header.get("error"):
            raise OSError(problem)
        theirs, own = PeerMemory.of(answer.header, answer.content), self._reader.layout
        if theirs.engine_id != engine_id:
            raise OSError(f"engine {engine_id} is gone: {theirs.engine_id} has its address")
        if theirs.layout != own:
            raise OSError(f"its blocks are {theirs.layout}, those here are {own}")
        if theirs.memory.blocks > self._most_blocks:
            raise OSError(
                f"it has {theirs.memory.blocks} blocks; max_peer_blocks is {self._most_blocks}"
            )
        self._reader.connect(theirs)

    def _part_from(self, engine_id: str) -> None:
        """Forget an engine that failed, unless a read from it runs. The next fetch asks it anew."""
        if any(one.read and one.remote.remote_engine_id == engine_id for one in self._open):
            return
        if (peer := self._peers.pop(engine_id, None)) is not None:
            for socket in peer.client.sockets:
                self._poller.unregister(socket)
            self._reader.forget(engine_id)
            self._parted.append(peer.client)  # it may be passing on an answer just now
            self._settled_at = monotonic() + SETTLING_S

    # -- one fetch ----------------------------------------------------------

    def _claim(self, peer: Peer, one: RemoteRead) -> None:
        transfer, one.asked_at = one.transfer, monotonic()
        span = {"first": transfer.first, "end": transfer.first + len(transfer.blocks)}
        answered, name = partial(self._granted, one), one.remote.remote_request_id
        peer.client.ask(answered, transfer.keys[-1], ask="claim", request=name, **span)

    def _granted(self, one: RemoteRead, answer: Message) -> None:
        if one not in self._open:
            return  # it was given up
        try:
            if problem := answer.header.get("error"):
                raise OSError(problem)
            one.until = one.asked_at + answer.header["read_s"]
            name, engine_id = one.remote.remote_request_id, one.remote.remote_engine_id
            ends = answer.header["blocks"], one.transfer.blocks
            if len(ends[0]) != len(ends[1]):
                raise OSError(f"it has {len(ends[0])} blocks to read, not {len(ends[1])}")
            one.read = self._reader.read(engine_id, *ends, name.encode())
        except UNREADABLE as error:
            self._fail(one, str(error))

    def _follow(self, one: RemoteRead) -> None:
        read = one.read
        state = "asking" if read is None else read.state()
        late = monotonic() > one.until  # after the look at the state
        if read is None:
            if late:
                self._fail(one, f"{one.remote.remote_host} does not answer")
        elif state == "done" and not (late or one.problem):
            read.end()
            self._end(one, TransferEnd(one.transfer.ticket))
        elif state != "running" or late or one.problem:
            why = "the read failed" if state == "failed" else "the read took too long"
            one.problem = one.problem or why
            if read.end():
                self._fail(one, one.problem)

    def _fail(self, one: RemoteRead, reason: str) -> None:
        """No block of a fetch arrived, or none can be relied on."""
        self._end(one, TransferEnd(one.transfer.ticket, 0, reason))
        engine_id = one.remote.remote_engine_id
        peer = self._peers.get(engine_id)
        if peer is not None and (one.read is not None or not peer.is_known):
            self._part_from(engine_id)

    def _end(self, one: RemoteRead, end: TransferEnd) -> None:
        if one in self._open:
            self._open.remove(one)
            self._ended(end)

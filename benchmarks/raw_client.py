"""Streaming HTTP clients that cost little: several processes, plain sockets, no JSON is parsed.

Requests are sent by a number of clients, one after another, or each at its time. A stream is read
as bytes. Every read has one time; events are counted by the blank lines that end
them, which no JSON contains. `load` starts the processes and merges what they saw.
"""

import json
import pickle
import select
import socket
import subprocess
import sys
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, field
from itertools import pairwise, zip_longest
from math import inf
from time import monotonic, process_time, sleep
from typing import Any

READ_BYTES = 1 << 16
TAIL_BYTES = 2048  # the end of a stream that is kept, to see how it ended
ERROR_BYTES = 300  # of an answer that is not what it should be
FEW = 16  # clients of a process that are read at once; more are read every NAP_S
NAP_S = (
    0.001  # so that the client costs little: a wake-up for each chunk costs more than to read it
)
NEWLINE = ord("\n")
EVENT_END = b"\n\n"
STATUS_OK = b"HTTP/1.1 200"
DONE = b"data: [DONE]"
LENGTH = b'"length"'  # the finish reason
START_S = 0.05  # between the last process that is ready and the first request
SILENT_S = 120.0  # without a byte, after which a run is given up
CUT = "cut at the end of the time"


@dataclass(frozen=True, slots=True)
class RawRequest:
    """Bytes to send, and the tokens that the answer will have."""

    body: bytes
    tokens: int
    at_s: float = 0.0  # since the load began, before which it is not sent
    name: str = ""  # of its stream

    @staticmethod
    def completion(
        prompt: str | list[int], tokens: int, at_s: float = 0.0, name: str = "", **fields: Any
    ) -> "RawRequest":
        """A streamed /v1/completions that ignores end tokens, on a connection of its own."""
        asked = {"prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True}
        content = json.dumps(asked | fields).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        )
        return RawRequest(head.encode() + content, tokens, at_s, name)


Script = Sequence[RawRequest]  # the requests that one client begins with; see `run`


@dataclass(slots=True)
class RawStream:
    """One answer as it arrived. Times are those of the system's monotonic clock."""

    tokens: int
    sent: float = 0.0
    reads: "array[float]" = field(default_factory=lambda: array("d"))  # when events arrived
    events: int = -1  # [DONE] is not counted
    error: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """What all clients saw, and the CPU time that they took for it."""

    streams: list[RawStream]
    cpu_s: float

    def figures(self) -> dict[str, float]:
        """Rates, and latencies in milliseconds. ITL is the time between two arrivals of text."""
        streams = [one for one in self.streams if not one.error]
        errors = sorted({one.error for one in self.streams if one.error})
        if not streams:
            raise SystemExit(f"no request succeeded: {'; '.join(errors) or 'none was sent'}")
        for error in errors:
            print(f"a request failed: {error}", file=sys.stderr)
        tokens = sum(one.tokens for one in streams)
        begin, end = min(one.sent for one in streams), max(one.reads[-1] for one in streams)
        first = sorted(one.reads[0] - one.sent for one in streams)
        each = [
            (one.reads[-1] - one.reads[0]) / (one.tokens - 1) for one in streams if one.tokens > 1
        ]
        gaps = sorted(gap for one in streams for gap in gaps_of(one.reads))
        return {
            "requests": len(streams),
            "failed": len(self.streams) - len(streams),
            "tokens": tokens,
            "seconds": round(end - begin, 3),
            "tokens_per_s": round(tokens / (end - begin)),
            "chunks_per_token": round(sum(one.events for one in streams) / tokens, 3),
            "ttft_p50_ms": ms(quantile(first, 0.5)),
            "ttft_p99_ms": ms(quantile(first, 0.99)),
            "tpot_ms": ms(quantile(sorted(each), 0.5)),
            "itl_p50_ms": ms(quantile(gaps, 0.5)),
            "itl_p99_ms": ms(quantile(gaps, 0.99)),
            "client_us": round(1e6 * self.cpu_s / tokens, 2),
        }


def gaps_of(times: Sequence[float]) -> Iterable[float]:
    return (after - before for before, after in pairwise(times))


def quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


def ms(seconds: float) -> float:
    return round(1e3 * seconds, 2)


class Connection:
    """A client: sends one request after another, each on a new connection, and reads answers."""

    def __init__(self, address: tuple[str, int], poll: select.epoll) -> None:
        self._address, self._poll = address, poll
        self.streams: list[RawStream] = []

    def start(self, request: RawRequest, sent: float) -> int:
        """Connect for a request; returns the file descriptor."""
        self._stream = RawStream(request.tokens, sent, name=request.name)
        self.streams.append(self._stream)
        self._unsent = request.body
        self._tail = b""
        self._status = b""
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(BlockingIOError):
            self._socket.connect(self._address)
        self._poll.register(self._socket, select.EPOLLOUT)
        return self._socket.fileno()

    def write(self) -> None:
        self._unsent = self._unsent[self._socket.send(self._unsent) :]
        if not self._unsent:
            self._poll.modify(self._socket, select.EPOLLIN)

    def read(self, now: float) -> bool:
        """Read once; False at the end of the stream."""
        got = self._socket.recv(READ_BYTES)
        if not got:
            return False
        events = got.count(EVENT_END)
        if got[0] == NEWLINE and self._tail.endswith(b"\n"):
            events += 1  # its blank line was divided
        if events:
            self._stream.reads.append(now)
            self._stream.events += events
        self._tail = (self._tail + got)[-TAIL_BYTES:]
        if len(self._status) < len(STATUS_OK):
            self._status = (self._status + got)[: len(STATUS_OK)]
        return True

    def end(self, error: str = "") -> None:
        """Close the connection and check that the answer is whole."""
        self._poll.unregister(self._socket)
        self._socket.close()
        tail = self._tail
        if error or self._status != STATUS_OK or DONE not in tail or LENGTH not in tail:
            self._stream.error = error or f"answered {tail[-ERROR_BYTES:]!r}"


class Clients:
    """The clients of one process. One that is done takes the next request that is due, so that all
    are busy until the requests run out. Times of requests count from `begun`."""

    def __init__(
        self, address: tuple[str, int], scripts: Sequence[Script], begun: float, until_s: float
    ) -> None:
        self._poll = select.epoll()
        turns = zip_longest(*scripts)
        requests = (one for turn in turns for one in turn if one is not None)
        self._requests = deque(sorted(requests, key=lambda one: one.at_s))
        self._connections = [Connection(address, self._poll) for _ in scripts]
        self._free = deque(self._connections)
        self._by_file: dict[int, Connection] = {}
        self._begun, self._until = begun, begun + until_s

    def run(self) -> list[RawStream]:
        """Until the last answer has ended; those that have not at the end of the time are cut."""
        nap_s = NAP_S if len(self._connections) > FEW else 0.0
        while self._by_file or self._requests:
            wait_s = self._send()
            if (left_s := self._until - monotonic()) <= 0:
                break
            if nap_s:
                sleep(nap_s)
            ready = self._poll.poll(min(wait_s, left_s, SILENT_S), max(len(self._by_file), 1))
            if not ready and min(wait_s, left_s) >= SILENT_S:
                raise SystemExit(f"{len(self._by_file)} streams have been silent for {SILENT_S} s")
            for file, events in ready:
                self._go_on(file, events)
        for one in self._by_file.values():
            one.end(CUT)
        return [stream for one in self._connections for stream in one.streams]

    def _send(self) -> float:
        """Send what is due; returns the seconds until the next request is; inf: no client is free
        before an answer ends."""
        while self._requests and self._free:
            request, now = self._requests[0], monotonic()
            due = self._begun + request.at_s
            if due > now:
                return due - now
            connection = self._free.popleft()
            sent = due if request.at_s else now
            self._by_file[connection.start(self._requests.popleft(), sent)] = connection
        return inf

    def _go_on(self, file: int, events: int) -> None:
        """Write or read once; a client whose answer has ended is free."""
        one, error = self._by_file[file], ""
        try:
            if events & select.EPOLLOUT:
                one.write()
                return
            if one.read(monotonic()):
                return
        except OSError as problem:
            error = str(problem)
        one.end(error)
        del self._by_file[file]
        self._free.append(one)


def run(
    address: tuple[str, int], scripts: Sequence[Script], begun: float, until_s: float = inf
) -> list[RawStream]:
    """All clients of this process; see `Clients`."""
    return Clients(address, scripts, begun, until_s).run()


def load(
    port: int,
    scripts: Sequence[Script],
    processes: int,
    host: str = "127.0.0.1",
    until_s: float = inf,
) -> Load:
    """Run the scripts of all clients at once, divided among processes; at most for `until_s`."""
    workers = [
        subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(min(processes, len(scripts)))
    ]
    parted = lambda number: scripts[number :: len(workers)]
    try:
        for number, worker in enumerate(workers):
            mine = [[astuple(one) for one in script] for script in parted(number)]
            dump(worker, ((host, port), mine, until_s))
        for worker in workers:
            assert worker.stdout is not None
            worker.stdout.readline()  # it has imported and read all it needs
        start = monotonic() + START_S
        for worker in workers:
            dump(worker, start)
        results = [pickle.load(worker.stdout) for worker in workers if worker.stdout]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    streams = [RawStream(**fields) for found, _ in results for fields in found]
    return Load(streams, sum(cpu_s for _, cpu_s in results))


def dump(worker: "subprocess.Popen[bytes]", message: Any) -> None:
    assert worker.stdin is not None
    pickle.dump(message, worker.stdin)
    worker.stdin.flush()


def main() -> None:
    """One process of `load`: reads its part from stdin, waits for the start, prints results."""
    address, asked, until_s = pickle.load(sys.stdin.buffer)
    scripts = [[RawRequest(*one) for one in script] for script in asked]
    print("ready", flush=True)
    start = pickle.load(sys.stdin.buffer)
    sleep(max(start - monotonic(), 0))
    before = process_time()
    streams = run(address, scripts, start, until_s)
    spent_s = process_time() - before
    pickle.dump(([asdict(one) for one in streams], spent_s), sys.stdout.buffer)
    sys.stdout.flush()


if __name__ == "__main__":
    main()

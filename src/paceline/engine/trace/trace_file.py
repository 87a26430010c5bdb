"""A file of trace events in JSON, which Perfetto and Chrome open."""

import json
import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fcntl import LOCK_EX, flock
from io import FileIO
from itertools import count
from math import inf
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any

log = logging.getLogger(__name__)

BEGIN, BETWEEN, END = b"[\n", b",\n", b"\n]\n"
BUFFER = 1 << 16  # bytes that wait at most
FLUSHED_S = 1.0  # between two writes to the disk, while events come
NO_VALUES: Mapping[str, Any] = {}


class TraceWindows:
    """The times of which a timeline has events, in a file beside it that all its processes read.

    Without that file the timeline has everything. `/start_profile` and `/stop_profile` change it.
    """

    def __init__(self, trace: str | Path) -> None:
        self._path = Path(trace).with_name(Path(trace).name + ".windows")
        self._read_at = -1  # of the file that was read: when it was written, in ns
        self._spans: list[list[float]] | None = None

    def start(self, now: float) -> None:
        """Write events from now on. ValueError if they are written already."""
        spans = self.spans()
        if spans is None or (spans and spans[-1][1] == inf):
            raise ValueError("the timeline is being written already; /stop_profile ends that")
        self._write([*spans, [now, inf]])

    def stop(self, now: float) -> None:
        """Write no events from now on. ValueError if none are written."""
        spans = [[0.0, inf]] if (found := self.spans()) is None else found
        if not spans or spans[-1][1] != inf:
            raise ValueError("the timeline is not being written; /start_profile begins that")
        self._write([*spans[:-1], [spans[-1][0], now]])

    def spans(self) -> list[list[float]] | None:
        """Beginning and end of each window, in seconds; None: everything."""
        try:
            if (written := self._path.stat().st_mtime_ns) != self._read_at:
                self._spans = json.loads(self._path.read_bytes())
                self._read_at = written
        except FileNotFoundError:
            self._spans, self._read_at = None, -1
        return self._spans

    def forget(self) -> None:
        """Let the timeline have everything again."""
        self._path.unlink(missing_ok=True)

    def _write(self, spans: list[list[float]]) -> None:
        new = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        new.write_text(json.dumps(spans))
        new.replace(self._path)


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """Something that takes time, in seconds, and values that describe it."""

    name: str
    begin: float
    end: float
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """A line of a timeline, and the time that it is about."""

    line: bytes
    begin: float = -inf
    end: float = inf


class TraceFile:
    """Events of one process in a file that several processes may write to, each with a `TraceFile`
    of its own. Any thread may call it. Times are in seconds, on a clock that the processes share.

    Events wait in a buffer. Whenever they are written, the file is a complete list of JSON again:

        [            <- `begin`
        event,       <- of one process
        event        <- of another one; the next event goes here, over the end of the list
        ]

    So a process that dies leaves a file that can be opened, and its successor continues it. If the
    disk is full, a warning says so, and this process writes nothing more.

    Tracks are named lines of the timeline. Slices of one track must not overlap, and come from
    one thread; spans may overlap. If two writers are in the same process, the tracks of the second
    one have numbers from `first_track` on.
    """

    def __init__(self, path: str | Path, process: str, first_track: int = 1) -> None:
        """OSError if the file cannot be written."""
        self._path, self._pid = Path(path).absolute(), os.getpid()
        self._path.open("ab").close()
        self._tracks, self._numbers = dict[str, int](), count(first_track)
        self._lock = Lock()
        self._windows = TraceWindows(self._path)
        self._waiting: list[TraceEvent] = []
        self._waiting_bytes, self._flushed, self._is_full = 0, monotonic(), False
        self._write({"ph": "M", "name": "process_name", "args": {"name": process}})

    def slice(
        self, track: str, name: str, begin: float, end: float, values: Mapping[str, Any] = NO_VALUES
    ) -> None:
        """Something that takes time on a track."""
        self._write(
            {
                "ph": "X",
                "name": name,
                "tid": self._track(track),
                "ts": micros(begin),
                "dur": max(round(micros(end) - micros(begin), 3), 0.0),
                "args": values,
            },
            TraceSpan(name, begin, end),
        )

    def counter(self, name: str, time: float, values: Mapping[str, float]) -> None:
        """Amounts at a time, which are drawn as areas."""
        event = {"ph": "C", "name": name, "tid": 0, "ts": micros(time), "args": values}
        self._write(event, TraceSpan(name, time, time))

    def span(self, kind: str, id_: str, whole: TraceSpan, parts: Iterable[TraceSpan] = ()) -> None:
        """A span on a line of its own, by its kind and its id, and below it the parts that it has,
        one after another.

        Readers look for ids in all processes, so that of the process is a part of each.
        """
        line = {"cat": kind, "id": f"{self._pid}.{id_}", "tid": 0}
        self._write(begin_of(whole, line), whole)
        for part in parts:  # before the end of the whole, because both may end at the same time
            self._write(begin_of(part, line), whole)
            self._write(end_of(part, line), whole)
        self._write(end_of(whole, line), whole)

    def flush(self) -> None:
        """Write the events that wait."""
        with self._lock:
            self._flush()

    def _track(self, name: str) -> int:
        found = self._tracks.get(name)
        if found is None:
            found = self._tracks[name] = next(self._numbers)
            self._write({"ph": "M", "name": "thread_name", "tid": found, "args": {"name": name}})
        return found

    def _write(self, event: dict[str, Any], span: TraceSpan | None = None) -> None:
        """Write an event about a span of time, or about all of the timeline."""
        line = json.dumps({"pid": self._pid, **event}).encode()
        with self._lock:
            times = () if span is None else (span.begin, span.end)
            self._waiting.append(TraceEvent(line, *times))
            self._waiting_bytes += len(line)
            if self._waiting_bytes > BUFFER or monotonic() - self._flushed > FLUSHED_S:
                self._flush()

    def _flush(self) -> None:
        events, self._waiting, self._waiting_bytes = self._waiting, [], 0
        self._flushed = monotonic()
        if self._is_full:
            return
        try:
            if not (lines := within(self._windows.spans(), events)):
                return
            with self._path.open("r+b", buffering=0) as file:
                append(file, BETWEEN.join(lines))
        except OSError as error:
            self._is_full = True
            log.warning("the trace in %s ends here: %s", self._path, error.strerror)


@dataclass(frozen=True, slots=True)
class TraceTarget:
    """Where an engine, or its front end, writes a timeline."""

    path: str = ""  # empty: nowhere
    process: str = "engine"  # its name in the timeline
    block_bytes: int = 0  # of a block of KV; 0: unknown

    def opened(self, first_track: int = 1) -> TraceFile | None:
        """The file, if there is one. If it cannot be written, a warning says so."""
        try:
            return TraceFile(self.path, self.process, first_track) if self.path else None
        except OSError as error:
            log.warning("cannot write a trace to %s: %s", self.path, error.strerror)
            return None


def begin_of(span: TraceSpan, line: Mapping[str, Any]) -> dict[str, Any]:
    return {"ph": "b", "args": span.values, "name": span.name, "ts": micros(span.begin), **line}


def end_of(span: TraceSpan, line: Mapping[str, Any]) -> dict[str, Any]:
    return {"ph": "e", "name": span.name, "ts": micros(span.end), **line}


def within(spans: list[list[float]] | None, events: Iterable[TraceEvent]) -> list[bytes]:
    """The lines of the events that are, at least in part, in one of the spans of time."""
    return [
        event.line
        for event in events
        if spans is None
        or event.begin == -inf
        or any(begin <= event.end and event.begin <= end for begin, end in spans)
    ]


def begin(path: str | Path) -> None:
    """Replace the content with an empty list. OSError if that fails."""
    TraceWindows(path).forget()
    Path(path).write_bytes(BEGIN + END)


def keep_earlier(path: Path) -> None:
    """Rename the trace of an earlier run that is in the way."""
    if path.is_file() and path.stat().st_size > len(BEGIN + END):
        path.replace(path.with_stem(f"{path.stem}-before"))


def append(file: FileIO, events: bytes) -> None:
    """Write events at the end of the list, while no other process does. If there is no room for
    them, leave the list as it is, and raise OSError."""
    flock(file, LOCK_EX)  # until the file is closed
    size = file.seek(0, os.SEEK_END)
    is_new = size <= len(BEGIN + END)
    end = file.seek(0 if is_new else size - len(END))
    try:
        write_all(file, (BEGIN if is_new else BETWEEN) + events + END)
    except OSError:
        with suppress(OSError):
            file.truncate(end)
            file.seek(end)
            write_all(file, BEGIN + END if is_new else END)
        raise


def write_all(file: FileIO, content: bytes) -> None:
    """One call may write a part alone."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def micros(seconds: float) -> float:
    return round(seconds * 1e6, 3)

"""A file of trace events in JSON, which Perfetto and Chrome open."""

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

BUFFER = 1 << 16  # bytes
NO_VALUES: Mapping[str, Any] = {}


class TraceFile:
    """Events are written as they come, so that what a process wrote before it died can be opened:
    readers accept a list without its end. Times are in seconds, on any clock.

    If the disk is full, a warning says so, and nothing more is written.

    Tracks are named lines of the timeline. Slices of one track must not overlap; those of a life
    have a line of their own, which is named by an id.
    """

    def __init__(self, path: str | Path, process: str) -> None:
        """OSError if the file cannot be written."""
        self._path, self._tracks, self._is_open = path, dict[str, int](), True
        self._file = Path(path).open("w", encoding="utf-8", buffering=BUFFER)  # noqa: SIM115  closed by `close`
        self._put("[\n")
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
            }
        )

    def counter(self, name: str, time: float, values: Mapping[str, float]) -> None:
        """Amounts at a time, which are drawn as areas."""
        self._write({"ph": "C", "name": name, "tid": 0, "ts": micros(time), "args": values})

    def life(
        self, id_: str, name: str, begin: float, end: float, values: Mapping[str, Any]
    ) -> None:
        """A phase in the life of something."""
        common = {"cat": "request", "id": id_, "name": name, "tid": 0}
        self._write({"ph": "b", "ts": micros(begin), "args": values, **common})
        self._write({"ph": "e", "ts": micros(end), **common})

    def flush(self) -> None:
        """Pass on what is buffered to the system."""
        self._put("", flushes=True)

    def close(self) -> None:
        self._put('{"ph": "M", "pid": 0, "name": "end"}\n]\n', flushes=True)
        self._is_open = False
        with suppress(OSError):
            self._file.close()

    def _track(self, name: str) -> int:
        found = self._tracks.get(name)
        if found is None:
            found = self._tracks[name] = len(self._tracks) + 1
            self._write({"ph": "M", "name": "thread_name", "tid": found, "args": {"name": name}})
        return found

    def _write(self, event: dict[str, Any]) -> None:
        self._put(json.dumps({"pid": 0, **event}) + ",\n")

    def _put(self, text: str, flushes: bool = False) -> None:
        if not self._is_open:
            return
        try:
            self._file.write(text)
            if flushes:
                self._file.flush()
        except OSError as error:
            self._is_open = False
            log.warning("the trace in %s ends here: %s", self._path, error)


def keep_earlier(path: Path) -> None:
    """Rename a file that is in the way, so that an engine that is restarted keeps the trace of the
    one that died. A device or a pipe stays."""
    if path.is_file() and path.stat().st_size:
        path.replace(path.with_stem(f"{path.stem}-before"))


def micros(seconds: float) -> float:
    return round(seconds * 1e6, 3)

"""Write records to bounded files, each of which can be replayed alone."""

import logging
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path

from paceline.core.settings.features import RecordConfig
from paceline.sched.replay.records import MAGIC, RecordingError, RecordKind, continued_by, record


def opened(path: Path, files: int) -> FileIO:
    """Open a new file. Earlier recordings are renamed, and `files` are kept in all.

    RecordingError if another kind of file is in the way; OSError if it cannot be created.
    """
    if path.exists() and not path.is_file():
        return path.open("wb", buffering=0)  # a device or a pipe cannot be renamed
    if path.is_file() and path.stat().st_size:
        check_is_recording(path)
        shift(path, files)
    return path.open("wb", buffering=0)


def check_writable(path: Path) -> None:
    """RecordingError if a recording cannot be written here. It leaves no file behind."""
    if path.is_dir():
        raise RecordingError(f"{path} is a folder; name a file in it")
    if path.exists() and not path.is_file():
        return  # opening a pipe may wait for a reader
    is_new = not path.exists()
    try:
        path.open("ab").close()
        if is_new:
            path.unlink()
        elif path.stat().st_size:
            check_is_recording(path)
    except OSError as error:
        raise RecordingError(f"cannot write to {path}: {error.strerror}") from None


def check_is_recording(path: Path) -> None:
    with path.open("rb") as there:
        if there.read(len(MAGIC)) != MAGIC:
            raise RecordingError(f"{path} exists and is not a recording; choose another name")


def shift(path: Path, files: int) -> None:
    """Rename `run` to `run.1`, `run.1` to `run.2` and so on; the oldest is overwritten."""
    for number in range(files - 1, 0, -1):
        older, newer = numbered(path, number), numbered(path, number - 1)
        if newer.is_file():
            newer.replace(older)


def numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}") if number else path


log = logging.getLogger(__name__)

OUTCOME_BYTES = 1024  # largest outcome of a call: digests, or an error message
ENDED_BYTES = len(continued_by(b""))


class Recording:
    """Writes records to files of at most `record_max_bytes`; after a full one comes another.

    `begin` returns the beginning of a file, which suffices to replay the calls after it. If writing
    fails, `ended` says why, one line is logged, and all further records are dropped: recording
    never stops the service.

    Every call is passed to the operating system before it is made, so a killed process loses only
    the outcome of its last call.
    """

    def __init__(self, config: RecordConfig, begin: Callable[[], bytes]) -> None:
        self.path = Path(config.record)
        self.size_bytes = 0  # of the file, including the pending outcome
        self.ended = ""  # why recording ended: closed, full, or an error
        self._config, self._begin = config, begin
        self._outcome = b""  # of the last call; written with the next
        self._file = opened(self.path, config.record_files)
        self._flush(begin())

    def call(self, content: bytes) -> None:
        """Write a call that is about to be made."""
        if self.ended:
            return
        if not self._fits(content):
            self.next_file()
            if not self.ended and not self._fits(content):
                self._end("full")
        if not self.ended:
            self._flush(content)

    def outcome(self, content: bytes) -> None:
        """Keep the outcome of the call; it is written with the next call."""
        if not self.ended:
            self._outcome += content
            self.size_bytes += len(content)

    def answer(self, content: bytes) -> None:
        """Keep an answer given during the call, before its outcome. Answers may let a file exceed
        `record_max_bytes` a little, since a call is never split between two files."""
        self.outcome(content)

    def close(self) -> None:
        if not self.ended:
            self._end("closed")

    def _fits(self, content: bytes) -> bool:
        size = self.size_bytes + len(content) + OUTCOME_BYTES + ENDED_BYTES
        return size <= self._config.record_max_bytes

    # -- from file to file --------------------------------------------------

    def next_file(self) -> None:
        """Begin another file with the current state, if that leaves room for calls."""
        if self.ended:
            return
        if self._config.record_files == 1:
            self._end("full")
            return
        try:
            begin = self._begin()
            if 2 * len(begin) > self._config.record_max_bytes:
                raise RecordingError(
                    f"a new file would begin with {len(begin):,} bytes of state; "
                    f"raise record_max_bytes, now {self._config.record_max_bytes:,}"
                )
        except RecordingError as error:
            self._end("full", str(error))
            return
        self._flush(continued_by(begin))
        if self.ended:
            return
        self._file.close()
        try:
            self._file = opened(self.path, self._config.record_files)
        except (OSError, RecordingError) as error:
            self._stop(f"failed: {error}")
            return
        self.size_bytes = 0
        self._flush(begin)
        log.info("recording to %s; the file before it is %s", self.path, numbered(self.path, 1))

    def _end(self, reason: str, why: str = "") -> None:
        """Write the last record."""
        self._flush(record(RecordKind.ENDED, reason.encode()))
        if not self.ended:
            self._stop(reason, why)

    def _flush(self, content: bytes) -> None:
        """Write the kept outcome, then `more`."""
        self.size_bytes += len(content)
        whole, self._outcome = self._outcome + content, b""
        try:
            written = self._file.write(whole)
        except OSError as error:
            self._stop(f"failed: {error}")
            return
        if written != len(whole):
            self._stop(f"failed: {written} of {len(whole)} bytes were written")

    def _stop(self, reason: str, why: str = "") -> None:
        self.ended = reason
        with suppress(OSError):
            self._file.close()
        if reason == "full":
            why = why or f"record_max_bytes is {self._config.record_max_bytes:,}"
            log.warning("recording to %s has stopped: the file is full; %s", self.path, why)
        elif reason.startswith("failed"):
            log.warning("recording to %s has stopped: it %s; serving goes on", self.path, reason)

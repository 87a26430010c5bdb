"""KV in files of a folder, shared between restarts and between engines."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from paceline.core.connector_config import ConnectorConfig
from paceline.core.errors import ConfigError
from paceline.core.folders import cache_folder
from paceline.core.request import Request
from paceline.kv.block_files import BlockFiles
from paceline.kv.connector import (
    BlockStore,
    Bytes,
    Connector,
    News,
    Transfer,
    TransferEnd,
    options,
)
from paceline.kv.known_files import KnownFiles
from paceline.kv.remote.worker import Worker

log = logging.getLogger(__name__)

USUAL_BYTES = 32 << 30
MIB = 1 << 20
LOADED_BLOCKS = 16  # that are read before they are written to the device


class Disk(Connector):
    """Looks up, loads and copies blocks on one thread, and writes files on another.

    Another engine may have removed a file that was seen: then its load fails, and the request
    computes. An answer of a thread waits in `_answers` for the engine's thread.
    """

    def __init__(self, config: ConnectorConfig) -> None:
        super().__init__(config)
        usual = str(cache_folder() / "kv")
        chosen = options(config, path=usual, max_bytes=USUAL_BYTES, pending_mib=256)
        self._options: dict[str, Any] = chosen | {"path": Path(chosen["path"]).expanduser()}
        self._pending = 0  # bytes to be written
        self._known = KnownFiles()
        self._answers: deque[Callable[[], None]] = deque()
        self._ended: list[TransferEnd] = []
        self._cleared = 0  # how often
        self._has_warned = False

    def attach(self, store: BlockStore, news: News) -> None:
        self._blocks, self._news = store, news
        self._rows = store.host_memory(LOADED_BLOCKS)  # for the loader's thread
        path: Path = self._options["path"]
        try:
            self._files = BlockFiles(path, store.layout, self._options["max_bytes"])
        except OSError as error:
            raise ConfigError(f"path is {str(path)!r}: {error}") from None
        self._loader, self._writer = Worker("kv-disk"), Worker("kv-disk-writer")

    # -- loading ------------------------------------------------------------

    def offer(self, request: Request, keys: Sequence[bytes], have: int) -> int | None:
        self._take_answers()
        wanted = keys[have:]
        there = self._known.leading(wanted)
        if there == len(wanted) or self._known.is_missing(wanted[there], monotonic()):
            return there
        if self._known.seek(wanted[there]):
            self._loader.do(partial(self._look_up, tuple(wanted[there:])))
        return None

    def _look_up(self, keys: tuple[bytes, ...]) -> None:
        """Find the files of keys, up to the first that is missing."""
        found = 0
        while found < len(keys) and self._files.has(keys[found]):
            found += 1
        self._answer(partial(self._found, keys, found))

    def _found(self, keys: tuple[bytes, ...], found: int) -> None:
        self._known.found(keys, found, monotonic())

    def fetch(self, transfer: Transfer) -> None:
        self._loader.do(partial(self._load, transfer))

    def _load(self, transfer: Transfer) -> None:
        """Load a few blocks at a time, up to the first that is missing or torn."""
        blocks, good = transfer.blocks, 0
        rows = self._rows
        while good < len(blocks):
            keys = transfer.keys[good : good + len(rows)]
            read = 0
            while read < len(keys) and self._files.read(keys[read], rows[read]):
                read += 1
            self._blocks.write(blocks[good : good + read], rows[:read])
            good += read
            if read < len(keys):
                break
        if good == len(blocks):
            self._end(TransferEnd(transfer.ticket))
            return
        self._answer(partial(self._known.drop, transfer.keys[good:]))
        self._end(TransferEnd(transfer.ticket, good, "a file is missing or damaged"))

    # -- storing ------------------------------------------------------------

    def keep(self, keys: Sequence[bytes]) -> int:
        self._take_answers()
        there = self._known.leading(keys)
        if used := self._known.use(keys[:there], monotonic()):
            self._writer.do(partial(self._use, used))
        return there

    def _use(self, keys: tuple[bytes, ...]) -> None:
        for key in keys:
            self._files.use(key)

    def store(self, transfer: Transfer) -> None:
        self._take_answers()
        size = len(transfer.blocks) * self._blocks.block_bytes
        if self._pending + size > self._options["pending_mib"] * MIB:
            self._ended.append(TransferEnd(transfer.ticket))  # files are written too slowly
            return
        self._pending += size
        self._loader.do(partial(self._read, transfer, self._cleared))

    def _read(self, transfer: Transfer, cleared: int) -> None:
        content = self._blocks.read(transfer.blocks)
        self._end(TransferEnd(transfer.ticket))
        self._writer.do(partial(self._write, transfer.keys, content, cleared))

    def _write(self, keys: tuple[bytes, ...], content: Bytes, cleared: int) -> None:
        written = 0
        try:
            for key, row in zip(keys, content, strict=True):
                if cleared != self._cleared:
                    break
                self._files.write(key, row)
                written += 1
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                path = self._options["path"]
                log.warning("KV cannot be stored in %s: %s; requests go on", path, error)
        self._answer(partial(self._written, keys[:written], content.nbytes, cleared))

    def _written(self, keys: Sequence[bytes], size: int, cleared: int) -> None:
        self._pending -= size
        if cleared == self._cleared:
            self._known.add(keys, monotonic())

    # -- both ---------------------------------------------------------------

    def poll(self) -> Sequence[TransferEnd]:
        self._take_answers()
        ended, self._ended = self._ended, []
        return ended

    def forget(self, keys: Sequence[bytes]) -> None:
        self._known.drop(keys)
        self._writer.do(partial(self._remove, tuple(keys)))

    def _remove(self, keys: tuple[bytes, ...]) -> None:
        for key in keys:
            self._files.remove(key)

    def clear(self) -> None:
        """Remove all content of this layout, for all engines that use the folder."""
        self._cleared += 1
        self._known.clear()
        self._writer.do(self._files.clear)

    def close(self) -> None:
        """End what is being done; what is not written yet is lost."""
        self._loader.close()
        self._writer.close()

    def _end(self, end: TransferEnd) -> None:
        self._answer(partial(self._ended_by, end))

    def _ended_by(self, end: TransferEnd) -> None:
        self._ended.append(end)

    def _answer(self, answer: Callable[[], None]) -> None:
        """Pass something on to the engine's thread."""
        self._answers.append(answer)
        self._news()

    def _take_answers(self) -> None:
        while self._answers:
            self._answers.popleft()()

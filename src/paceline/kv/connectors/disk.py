"""KV in files of a folder, shared between restarts and between engines."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import monotonic

from paceline.core.errors import ConfigError
from paceline.core.request import Request
from paceline.core.settings.features import ConnectorConfig
from paceline.core.system.files import cache_folder
from paceline.kv.connector import BlockStore, Bytes, News, Transfer, TransferEnd, options
from paceline.kv.remote.background import BackgroundConnector
from paceline.kv.remote.block_files import BlockFiles, KnownContent

log = logging.getLogger(__name__)

USUAL_BYTES = 32 << 30
LOADED_BLOCKS = 16  # that are read before they are written to the device


class Disk(BackgroundConnector):
    """Has one file per block.

    Another engine may have removed a file that was seen: then its load fails, and the request
    computes.
    """

    takes_groups = takes_states = True
    medium = "STORAGE"

    def __init__(self, config: ConnectorConfig) -> None:
        usual = str(cache_folder() / "kv")
        chosen = options(config, path=usual, max_bytes=USUAL_BYTES, pending_mib=1024)
        super().__init__(config, chosen["pending_mib"])
        self._path, self._most_bytes = Path(chosen["path"]).expanduser(), chosen["max_bytes"]
        self._known = KnownContent()
        self._has_warned = False

    def attach(self, store: BlockStore, news: News) -> None:
        self._rows = store.host_memory(LOADED_BLOCKS)  # for the loader's thread
        try:
            self._files = BlockFiles(self._path, store.layout, self._most_bytes)
        except OSError as error:
            raise ConfigError(f"path is {str(self._path)!r}: {error}") from None
        super().attach(store, news)

    # -- loading ------------------------------------------------------------

    def _offer(self, request: Request, keys: Sequence[bytes], have: int) -> int | None:
        wanted = keys[have:]
        there = self._known.leading(wanted)
        if there == len(wanted) or self._known.is_missing(wanted[there], monotonic()):
            return there
        if self._known.seek(wanted[there]):
            sought = tuple(wanted[there:])
            self._look_up(partial(self._leading_files, sought), partial(self._found, sought))
        return None

    def _leading_files(self, keys: Sequence[bytes]) -> int:
        """How many of the first keys have files."""
        return next((at for at, key in enumerate(keys) if not self._files.has(key)), len(keys))

    def _first(self, keys: Sequence[bytes]) -> int:
        return next((at for at, key in enumerate(keys) if self._files.has(key)), len(keys))

    def _found(self, keys: tuple[bytes, ...], number: int) -> None:
        self._known.found(keys, number, monotonic())

    def _load(self, transfer: Transfer) -> TransferEnd:
        """Load a few blocks at a time, up to the first that is missing or damaged."""
        keys, blocks, good = transfer.keys, transfer.blocks, 0
        rows, end = self._rows, "whole"
        while good < len(blocks) and end == "whole":
            read = 0
            for key, row in zip(keys[good:], rows, strict=False):
                if (end := self._files.read(key, row)) != "whole":
                    break
                read += 1
            self._blocks.write(blocks[good : good + read], rows[:read])
            good += read
        if good == len(blocks):
            return TransferEnd(transfer.ticket)
        if end == "damaged":  # the rest may be too: all of it is computed and stored again
            self._remove_some(keys[good:])
            self._answer(partial(self._gone, keys[good:]))
        else:
            self._answer(partial(self._gone, keys[good : good + 1]))
            self._answer(partial(self._known.drop, keys[good:]))  # others may be gone too
        return TransferEnd(transfer.ticket, good, f"a file is {end}")

    # -- storing ------------------------------------------------------------

    def keep(self, keys: Sequence[bytes]) -> int:
        self._take_answers()
        there = self._known.leading(keys)
        if used := self._known.use(keys[:there], monotonic()):
            self._writer.do(partial(self._use, used))
        return there

    def _use(self, keys: tuple[bytes, ...]) -> None:
        if gone := [key for key in keys if not self._files.use(key)]:
            self._answer(partial(self._gone, gone))

    def _save(self, keys: Sequence[bytes], content: Bytes, wanted: Callable[[], bool]) -> int:
        written = 0
        try:
            for key, row in zip(keys, content, strict=True):
                if not wanted():
                    break
                self._files.write(key, row)
                written += 1
        except OSError as error:
            self._warn("stored in", error)
        return written

    def _saved(self, keys: Sequence[bytes]) -> None:
        self._known.add(keys, monotonic())
        self.changed(keys, True)
        if self._files.removed:
            self._gone([self._files.removed.popleft() for _ in range(len(self._files.removed))])

    def _gone(self, keys: Sequence[bytes]) -> None:
        """These files are no longer there."""
        self._known.drop(keys)
        self.changed(keys, False)

    # -- both ---------------------------------------------------------------

    def _forget_some(self, keys: Sequence[bytes]) -> None:
        self._gone(keys)

    def _remove_some(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._files.remove(key)

    def _forget_all(self) -> None:
        self.changed(self._known.clear(), False)

    def _remove_all(self) -> None:
        try:
            self._files.clear()
        except OSError as error:
            self._warn("removed from", error)
            raise

    def _warn(self, what: str, error: OSError) -> None:
        """Log the first error."""
        if not self._has_warned:
            self._has_warned = True
            log.warning("KV cannot be %s %s: %s; requests go on", what, self._path, error)

"""Connectors whose content is in a slow store: threads look up, load and save."""

import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from threading import Thread
from time import monotonic

import numpy as np

from paceline.core.request import Request
from paceline.core.settings.features import ConnectorConfig
from paceline.kv.connector import BlockStore, Bytes, Connector, News, Transfer, TransferEnd

log = logging.getLogger(__name__)


class Worker:
    """Calls functions in the order in which it gets them. `close` drops those that wait.

    One that raises is logged, and the next one is called.
    """

    def __init__(self, name: str) -> None:
        self._waiting: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._closing = False
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def do(self, work: Callable[[], None]) -> None:
        self._waiting.put(work)

    def close(self) -> None:
        """Wait for the call in progress."""
        self._closing = True
        self._waiting.put(lambda: None)
        self._thread.join()

    def _run(self) -> None:
        while not self._closing:
            work = self._waiting.get()
            try:
                work()
            except Exception:
                log.exception("a transfer of KV failed in the thread of its connector")


MIB = 1 << 20
FOUND_S, MOST_FOUND = 1.0, 1024  # how long, and for how many requests, a state counts as found
CLEARED = "the content was cleared"
FAILED = "the connector failed; see its log"


class BackgroundConnector(Connector):
    """Looks up, loads and copies blocks on one thread, and saves their content on another.

        fetch -> loader: _load ---------------------> answer -> poll
        store -> loader: copy -> writer: _save -----> answer -> poll

    Answers of the threads wait in `_answers` for the engine's thread. Each transfer ends, even if
    the thread that has it fails. After `clear` nothing is offered or loaded until the writer has
    removed all content, and what was found or loaded before counts no more.
    """

    def __init__(self, config: ConnectorConfig, pending_mib: int) -> None:
        super().__init__(config)
        self._most_pending = pending_mib * MIB
        self._pending = 0  # bytes that are to be saved
        self._cleared = 0  # how often
        self._is_clearing = False  # content may be there that was cleared
        self._must_clear = False  # because it could not be removed
        self._answers: deque[Callable[[], None]] = deque()
        self._ended: list[TransferEnd] = []
        self._finding: set[tuple[str, int]] = set()  # states that are being looked for
        self._firsts: dict[
            tuple[str, int], tuple[int, float]
        ] = {}  # found, and until when it holds

    def attach(self, store: BlockStore, news: News) -> None:
        self._blocks, self._news = store, news
        self._loader, self._writer = Worker("kv-loader"), Worker("kv-writer")

    # -- what a connector adds ----------------------------------------------

    @abstractmethod
    def _offer(self, request: Request, keys: Sequence[bytes], have: int) -> int | None:
        """As `offer`, while content can be loaded."""

    @abstractmethod
    def _first(self, keys: Sequence[bytes]) -> int:
        """On the loader's thread: the index of the first key that is there, or their number."""

    @abstractmethod
    def _load(self, transfer: Transfer) -> TransferEnd:
        """On the loader's thread: write the content of keys into blocks."""

    @property
    def _takes_content(self) -> bool:
        """Whether stores are tried."""
        return True

    @abstractmethod
    def _save(self, keys: Sequence[bytes], content: Bytes, wanted: Callable[[], bool]) -> int:
        """On the writer's thread: save content, [keys, block_bytes], while it is wanted. Returns
        how many of the first keys are there now."""

    @abstractmethod
    def _saved(self, keys: Sequence[bytes]) -> None:
        """A store has ended, and these keys are there."""

    @abstractmethod
    def _remove_some(self, keys: Sequence[bytes]) -> None:
        """On the writer's thread: remove the content of these keys, as far as possible."""

    @abstractmethod
    def _forget_some(self, keys: Sequence[bytes]) -> None:
        """Forget that these keys are there."""

    @abstractmethod
    def _remove_all(self) -> None:
        """On the writer's thread: remove all content of this layout. OSError if some may be left,
        which is tried again."""

    @abstractmethod
    def _forget_all(self) -> None:
        """Forget what is known to be there."""

    # -- loading ------------------------------------------------------------

    def offer(self, request: Request, keys: Sequence[bytes], have: int) -> int | None:
        self._take_answers()
        if self._must_clear:
            self.clear()
        if self._is_clearing or have >= len(keys):
            return 0
        return self._offer(request, keys, have)

    def find(self, request: Request, keys: Sequence[bytes]) -> int | None:
        """What was found holds for a while, because the request asks about it again."""
        self._take_answers()
        if self._is_clearing:
            return len(keys)
        sought, now = (request.id, hash(tuple(keys))), monotonic()
        if sought in self._finding:
            return None
        found, until = self._firsts.get(sought, (0, now))
        if now < until:
            return found
        self._finding.add(sought)
        self._look_up(partial(self._first, keys), partial(self._found_first, sought))
        return None

    def _found_first(self, sought: tuple[str, int], number: int) -> None:
        self._finding.discard(sought)
        self._firsts[sought] = number, monotonic() + FOUND_S
        if len(self._firsts) > MOST_FOUND:
            del self._firsts[next(iter(self._firsts))]

    def _look_up(self, count: Callable[[], int], found: Callable[[int], None]) -> None:
        """Count content on the loader's thread, and pass the number on to the engine's."""
        self._loader.do(partial(self._count, count, found, self._cleared))

    def _count(self, count: Callable[[], int], found: Callable[[int], None], cleared: int) -> None:
        number = 0
        try:
            number = count()
        finally:
            self._answer(partial(self._counted, found, number, cleared))

    def _counted(self, found: Callable[[int], None], number: int, cleared: int) -> None:
        if cleared == self._cleared:
            found(number)

    def fetch(self, transfer: Transfer) -> None:
        if self._is_clearing:
            self._answer(partial(self._end_load, TransferEnd(transfer.ticket, 0, CLEARED), 0))
        else:
            self._loader.do(partial(self._fetch, transfer, self._cleared))

    def _fetch(self, transfer: Transfer, cleared: int) -> None:
        end = TransferEnd(transfer.ticket, 0, FAILED)
        try:
            end = self._load(transfer)
        finally:
            self._answer(partial(self._end_load, end, cleared))

    def _end_load(self, end: TransferEnd, cleared: int) -> None:
        is_good = cleared == self._cleared
        self._ended.append(end if is_good else TransferEnd(end.ticket, 0, CLEARED))

    # -- storing ------------------------------------------------------------

    def store(self, transfer: Transfer) -> None:
        self._take_answers()
        each, room = self._blocks.block_bytes, self._most_pending - self._pending
        count = min(len(transfer.blocks), room // each) if self._takes_content else 0
        if not count:
            self._ended.append(TransferEnd(transfer.ticket))
            return
        self._pending += count * each
        first = replace(transfer, blocks=transfer.blocks[:count], keys=transfer.keys[:count])
        self._loader.do(partial(self._copy, first, self._cleared))

    def _copy(self, transfer: Transfer, cleared: int) -> None:
        """Copy the blocks, so that they need not wait until their content is saved."""
        size = len(transfer.blocks) * self._blocks.block_bytes
        content: Bytes = np.empty((0, self._blocks.block_bytes), np.uint8)
        try:
            content = self._blocks.read(transfer.blocks)
        finally:
            self._answer(partial(self._ended.append, TransferEnd(transfer.ticket)))
            keys = transfer.keys[: len(content)]
            self._writer.do(partial(self._write, keys, content, size, cleared))

    def _write(self, keys: Sequence[bytes], content: Bytes, size: int, cleared: int) -> None:
        saved = 0
        try:
            saved = self._save(keys, content, lambda: cleared == self._cleared)
        finally:
            self._answer(partial(self._written, keys[:saved], size, cleared))

    def _written(self, keys: Sequence[bytes], size: int, cleared: int) -> None:
        self._pending -= size
        self._saved(keys if cleared == self._cleared else ())

    # -- both ---------------------------------------------------------------

    def poll(self) -> Sequence[TransferEnd]:
        self._take_answers()
        ended = self._ended.copy()
        self._ended.clear()
        return ended

    def forget(self, keys: Sequence[bytes]) -> None:
        """Remove content, also what is still to be copied and saved: it passes both threads."""
        self._forget_some(keys)
        remove = partial(self._remove_wrong, tuple(keys))
        self._loader.do(partial(self._writer.do, remove))

    def _remove_wrong(self, keys: tuple[bytes, ...]) -> None:
        try:
            self._remove_some(keys)
        finally:
            self._answer(partial(self._forget_some, keys))

    def clear(self) -> None:
        """Remove all content of this layout, for all engines that have access to it."""
        self._cleared += 1
        self._is_clearing, self._must_clear = True, False
        self._finding.clear()
        self._firsts.clear()
        self._forget_all()
        self._writer.do(partial(self._remove, self._cleared))

    def _remove(self, cleared: int) -> None:
        is_done = False
        try:
            self._remove_all()
            is_done = True
        except OSError:
            pass  # the next offer tries again
        finally:
            self._answer(partial(self._removed, is_done, cleared))

    def _removed(self, is_done: bool, cleared: int) -> None:
        if cleared == self._cleared:
            self._is_clearing, self._must_clear = not is_done, not is_done

    def close(self) -> None:
        """End what is being done. What is not saved yet is lost."""
        self._loader.close()
        self._writer.close()

    def _answer(self, answer: Callable[[], None]) -> None:
        """Pass something on to the engine's thread."""
        self._answers.append(answer)
        self._news()

    def _take_answers(self) -> None:
        while self._answers:
            self._answers.popleft()()

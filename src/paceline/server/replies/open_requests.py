"""The open requests of a front end, and the ids of their parts."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from uuid import uuid4

from paceline.engine.api import AsyncEngine
from paceline.server.scoreboard import REMEMBERED_IDS, Scoreboard

PART_SEPARATOR = " "  # between the id of a request and a part; ids of clients have no space


class OpenRequests(Mapping[str, Sequence[str]]):
    """A request is open while `opened` lasts, under an id that no recent request has had.

    It maps the id to those of its parts in the engine: a completion of several prompts has one
    part per prompt.
    """

    def __init__(self, board: Scoreboard, engine: AsyncEngine) -> None:
        self.aborted_early: set[str] = set()  # open requests; parts that have not started do not
        self._board, self._engine = board, engine
        self._open: dict[str, Sequence[str]] = {}
        self._recent: dict[str, int] = {}  # number of parts by id, oldest first

    def __getitem__(self, name: str) -> Sequence[str]:
        return self._open[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._open)

    def __len__(self) -> int:
        return len(self._open)

    def name(self, request_id: str) -> str:
        """The id itself, or the id with a suffix if a recent request had it."""
        is_own = request_id in self._recent or request_id in self._open
        used = not self._board.ids.claim(request_id) or is_own
        name = f"{request_id}-{uuid4().hex[:8]}" if used else request_id
        self._recent[name] = 1
        if len(self._recent) > REMEMBERED_IDS:
            del self._recent[next(iter(self._recent))]
        return name

    @contextmanager
    def opened(self, name: str, parts: int) -> Generator[None]:
        """Keep a request open, with an id for each part."""
        self._open[name] = part_ids(name, parts)
        self._board.set_requests(len(self._open))
        if name in self._recent:
            self._recent[name] = parts
        try:
            yield
        finally:
            del self._open[name]
            self._board.set_requests(len(self._open))
            self.aborted_early.discard(name)

    def parts(self, name: str) -> Sequence[str]:
        """The part ids of an open or recent request. The id of a part stands for itself."""
        return self._open.get(name) or part_ids(name, self._recent.get(name, 1))

    def known_parts(self, name: str) -> int:
        """The number of parts of an open or recent request; 0 if it is unknown."""
        return len(self._open.get(name, ())) or self._recent.get(name, 0)

    async def abort(self, name: str) -> bool:
        """Abort all parts of a request of this process, or one part by its own id."""
        ended = any([await self._engine.abort(part) for part in self.parts(name)])
        if name in self._open:  # some parts may not have started
            self.aborted_early.add(name)
            return True
        return ended


def part_ids(name: str, parts: int) -> list[str]:
    return [name] if parts == 1 else [f"{name}{PART_SEPARATOR}{part}" for part in range(parts)]

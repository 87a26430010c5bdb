"""What happened in a played workload, step by step: the records that pictures are drawn from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto


class Kind(Enum):
    """What one request did in one step."""

    WAITING = auto()
    PARKED = auto()
    PREFILL = auto()
    HIT = auto()  # prefill whose beginning came from the prefix cache
    AGAIN = auto()  # what is computed again after a preemption
    DECODE = auto()
    DRAFTED = auto()  # decode that also verifies draft tokens
    LAST = auto()  # the step that brought the last token
    DROPPED = auto()  # computed ahead, and the result not used
    IDLE = auto()  # resident, with nothing to compute
    PREEMPTED = auto()
    ABORTED = auto()
    REFUSED = auto()


WITHOUT_A_SLOT = (Kind.WAITING, Kind.PARKED, Kind.PREEMPTED)


@dataclass(frozen=True, slots=True)
class Cell:
    """One request in one step."""

    kind: Kind
    tokens: int = 0  # positions computed
    cached: int = 0  # positions found in the cache by this admission
    ended: bool = False  # this step brought the last token
    dropped: bool = False  # the result came after the request had left its slot

    @property
    def look(self) -> Kind:
        """What to show where several things are true."""
        if self.dropped:
            return Kind.DROPPED
        return Kind.LAST if self.ended else self.kind


@dataclass(frozen=True, slots=True)
class Levels:
    """Where the blocks of the pool are; the four add up to its size."""

    shared: int  # held by several requests
    held: int  # held by one request
    cached: int  # free, and findable by content until they are reused
    blank: int  # free, and worth nothing to anybody

    @property
    def total(self) -> int:
        return self.shared + self.held + self.cached + self.blank


@dataclass(frozen=True, slots=True)
class Note:
    """Something that happened in a step, in words."""

    kind: Kind  # the mark that it goes with
    text: str


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why nobody else was admitted."""

    text: str
    since: int  # the step in which admission first stopped for this reason at this request


@dataclass(slots=True)
class Column:
    """One step. The cells of a step in flight change once more, when its result comes."""

    step: int
    time: float  # seconds on the virtual clock, when the step was planned
    total: int  # positions the step computes
    levels: Levels
    cells: dict[str, Cell]
    notes: list[Note]
    blocked: Blocked | None


@dataclass(frozen=True, slots=True)
class Asked:
    """One line of the picture: a request as it was asked for."""

    id: str
    prompt: int
    most: int  # new tokens at most
    tag: str  # what else tells it from the others: priority, tenant, adapter


@dataclass(frozen=True, slots=True)
class End:
    """How a request ended, and in which step."""

    how: str
    step: int


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits that the picture is read against."""

    policy: str
    depth: int
    slots: int
    budget: int  # tokens of a step
    blocks: int
    block_size: int


class History:
    """All steps so far. Steps are numbered from 1, without gaps."""

    def __init__(self, asked: Sequence[Asked], rules: Rules) -> None:
        self.asked = tuple(asked)
        self.rules = rules
        self.columns: list[Column] = []
        self.ends: dict[str, End] = {}
        self.yielded: dict[str, int] = {one.id: 0 for one in asked}
        self.preemptions: dict[str, int] = {one.id: 0 for one in asked}

    def column(self, step: int) -> Column:
        return self.columns[step - 1]

    def until(self, end: int) -> "History":
        """The steps before column `end`, for looking back."""
        past = History(self.asked, self.rules)
        past.columns = self.columns[:end]
        past.ends = self.ends
        return past

    def amend(
        self, step: int, request_id: str, *, ended: bool = False, dropped: bool = False
    ) -> None:
        """The result of a cell is there."""
        cells = self.column(step).cells
        cells[request_id] = replace(cells[request_id], ended=ended, dropped=dropped)

    def cells(self, request_id: str) -> list[Cell]:
        return [column.cells[request_id] for column in self.columns if request_id in column.cells]

    def computed(self, request_id: str) -> int:
        return sum(cell.tokens for cell in self.cells(request_id))

    def cached(self, request_id: str) -> int:
        """Positions found in the cache on the first admission."""
        hits = (cell.cached for cell in self.cells(request_id) if cell.kind in FIRST_ADMISSION)
        return next(hits, 0)

    def waited_s(self, request_id: str) -> float:
        """Time without a slot, from plan to plan."""
        starts = [column.time for column in self.columns]
        return sum(
            end - start
            for column, start, end in zip(self.columns, starts, starts[1:], strict=False)
            if self._waits(column, request_id)
        )

    def waited_steps(self, request_id: str) -> int:
        return sum(self._waits(column, request_id) for column in self.columns)

    @staticmethod
    def _waits(column: Column, request_id: str) -> bool:
        cell = column.cells.get(request_id)
        return cell is not None and cell.kind in WITHOUT_A_SLOT


FIRST_ADMISSION = (Kind.PREFILL, Kind.HIT)

"""What happened in a played workload, step by step: the records that pictures are drawn from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from paceline.core.request import child_label


class Kind(Enum):
    """What one sequence did in one step."""

    WAITING = auto()
    PARKED = auto()
    PREFILL = auto()
    HIT = auto()  # prefill whose beginning came from the prefix cache
    AGAIN = auto()  # computed again after a preemption
    FORKED = auto()  # another sequence of a request begins
    REPLACED = auto()  # a beam that was replaced by a copy of another
    RETURNED = auto()  # back from the host
    DECODE = auto()
    DRAFTED = auto()  # decode that also verifies draft tokens
    LAST = auto()  # the step that brought the last token
    DROPPED = auto()  # computed ahead; the result is not used
    IDLE = auto()  # resident, and computes nothing
    PREEMPTED = auto()
    SWAPPED = auto()  # preempted, with its blocks copied to the host
    ON_HOST = auto()  # waiting, with its blocks on the host
    ABORTED = auto()
    REFUSED = auto()


WITHOUT_A_SLOT = (Kind.WAITING, Kind.PARKED, Kind.PREEMPTED, Kind.SWAPPED, Kind.ON_HOST)


@dataclass(frozen=True, slots=True)
class Cell:
    """One sequence in one step."""

    kind: Kind
    tokens: int = 0  # positions computed
    cached: int = 0  # positions found in the cache by this admission
    again: int = 0  # of the positions, those that had been computed before a preemption
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
    """Where the blocks of the pool are: the first four add up to its size."""

    shared: int  # held by several sequences
    held: int  # held by one sequence
    cached: int  # free, and findable by content until they are reused
    blank: int  # free, with no content that can be found
    host: int = 0  # in use on the host

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
    """Why no other request was admitted."""

    text: str  # as it was in the first of these steps
    since: int  # the step in which admission first stopped for this reason at this request
    varies: bool = False  # may its number differ from step to step?

    def sentence(self, later: bool) -> str:
        """The reason; `later`: it held beyond its first step."""
        return f"{self.text} at first" if later and self.varies else self.text


@dataclass(frozen=True, slots=True)
class CopiedBlocks:
    """Blocks that a step copies before it computes anything."""

    copied: int = 0  # on the device, for sequences that write after a fork
    out: int = 0  # to the host
    back: int = 0  # from the host


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
    kind: str = ""  # prefill or decode, where a step is all of one kind
    moves: CopiedBlocks = CopiedBlocks()


@dataclass(frozen=True, slots=True)
class PictureLine:
    """One line of the picture: a request, or one more sequence of the request above it."""

    id: str  # the request's, or the label of a child
    name: str  # label at the left
    size: str
    tag: str


@dataclass(frozen=True, slots=True)
class PlayedRequest:
    """A request of the workload, as the picture labels it."""

    id: str
    prompt: int
    most: int  # new tokens at most
    tag: str  # what distinguishes it: priority, tenant, adapter, group
    width: int = 1  # sequences that run for it at once

    @property
    def size(self) -> str:
        return f"{self.prompt}+{self.most}"

    @property
    def lines(self) -> list[PictureLine]:
        """One line for its first sequence, and one for each further sequence."""
        others = [
            PictureLine(child_label(self.id, n), f"  /{n}", "", "") for n in range(1, self.width)
        ]
        return [PictureLine(self.id, self.id, self.size, self.tag), *others]


def line_of(request_id: str, child: int) -> str:
    """The line that a sequence is drawn on; child -1 is the only one of its request."""
    return child_label(request_id, child) if child > 0 else request_id


def spoken(request_id: str, child: int) -> str:
    """The name of a sequence in a sentence."""
    return request_id if child < 0 else f"{request_id}/{child}"


@dataclass(frozen=True, slots=True)
class End:
    """How a request ended, and in which step."""

    how: str
    step: int


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits that the picture shows."""

    discipline: str
    policy: str
    depth: int
    slots: int
    budget: int  # tokens of a step
    blocks: int
    block_size: int
    host_blocks: int


class History:
    """All steps so far, numbered from 1 without gaps.

    Cells are kept by line; ends, preemptions and generated tokens by request.
    """

    def __init__(self, asked: Sequence[PlayedRequest], rules: Rules) -> None:
        self.asked = tuple(asked)
        self.rules = rules
        self.lines = [line for one in asked for line in one.lines]
        self._lines = {one.id: [line.id for line in one.lines] for one in asked}
        self.time = 0.0  # seconds on the virtual clock, so far
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
        past.time = self.columns[end].time
        past.ends = self.ends
        return past

    def amend(self, step: int, line: str, *, ended: bool = False, dropped: bool = False) -> None:
        """Add the result of a step to one of its cells."""
        cells = self.column(step).cells
        cells[line] = replace(cells[line], ended=ended, dropped=dropped)

    def cells(self, line: str) -> list[Cell]:
        return [column.cells[line] for column in self.columns if line in column.cells]

    def computed(self, request_id: str) -> int:
        return sum(cell.tokens for line in self._lines[request_id] for cell in self.cells(line))

    def computed_again(self) -> int:
        """Positions computed again because of preemptions."""
        return sum(cell.again for column in self.columns for cell in column.cells.values())

    def cached(self, request_id: str) -> int:
        """Positions found in the cache on the first admission."""
        hits = (cell.cached for cell in self.cells(request_id) if cell.kind in FIRST_ADMISSION)
        return next(hits, 0)

    def waited_s(self, request_id: str) -> float:
        """Seconds without a slot, from plan to plan; the latest step lasts until now."""
        ends = [*(column.time for column in self.columns[1:]), self.time]
        return sum(
            end - column.time
            for column, end in zip(self.columns, ends, strict=True)
            if self._waits(column, request_id)
        )

    def waited_steps(self, request_id: str) -> int:
        return sum(self._waits(column, request_id) for column in self.columns)

    def _waits(self, column: Column, request_id: str) -> bool:
        """Is the request without a slot? Its sequences get and lose their slots together."""
        cells = (column.cells.get(line) for line in self._lines[request_id])
        return any(cell is not None and cell.kind in WITHOUT_A_SLOT for cell in cells)


FIRST_ADMISSION = (Kind.PREFILL, Kind.HIT)

"""What was decided and why, kept so that it can be asked later."""

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import NamedTuple

from paceline.core.config import JournalConfig
from paceline.core.events import Happened, Moment
from paceline.core.request import Sequence


@dataclass(frozen=True, slots=True)
class Gate:
    """Why admission stopped in a step, and at whom. Everyone else waits behind that one.

    reason       short
    ------       -----
    budget       tokens of the step's budget that were missing
    seqs         slots that were missing
    blocks       free blocks that were missing
    room         nothing: a policy lets the request wait
    preempted    residents preempted in this step, so nobody is admitted
    decodes      nothing: this step is for those who decode
    prefill      nothing: this step is for prompts that have begun
    swapping     nothing: its blocks are still being copied to the host
    paused       nothing: admission is paused
    """

    reason: str
    serial: int
    request_id: str
    short: int = 0
    aged: bool = False  # at the head because of its age, ahead of better ranks


@dataclass(slots=True)
class Spell:
    """A stretch of time during which admission stopped for one reason at one request."""

    gate: Gate
    since: float
    until: float


class Passage(NamedTuple):
    """An admission, as those who were still waiting saw it."""

    step: int
    serial: int
    tokens: int  # to compute


class Journal:
    """Bounded memory of the past.

    A step writes one fact about admission, merged with the previous one if it is the
    same, so the cost does not depend on how many wait. The life of a request is kept
    on its Sequence; ended ones are remembered here until too many came after them.
    """

    def __init__(self, config: JournalConfig) -> None:
        self.spells: deque[Spell] = deque(maxlen=config.journal_spells)
        self.passages: deque[Passage] = deque(maxlen=config.journal_spells)
        self._ended: OrderedDict[str, Sequence] = OrderedDict()
        self._remembered = config.journal_requests
        self._open = False  # was admission blocked in the latest step?

    def blocked(self, gate: Gate | None, now: float) -> None:
        """Admission stopped at `gate` in this step; None: nobody was left waiting."""
        if self._open:
            last = self.spells[-1]
            last.until = now
            if gate is not None and self._same(last.gate, gate):
                return
        self._open = gate is not None
        if gate is not None:
            self.spells.append(Spell(gate, now, now))

    def left(self, sequence: Sequence, now: float) -> None:
        """Someone waits no longer; if it stood at the gate, nobody waits behind it now."""
        if self._open and self.spells[-1].gate.serial == sequence.serial:
            self.spells[-1].until = now
            self._open = False

    @property
    def open_spell(self) -> Spell | None:
        """Why admission stopped in the latest step."""
        return self.spells[-1] if self._open else None

    @staticmethod
    def _same(one: Gate, other: Gate) -> bool:
        return one.reason == other.reason and one.serial == other.serial

    def passed(self, sequence: Sequence, tokens: int, step: int) -> None:
        self.passages.append(Passage(step, sequence.serial, tokens))

    def ended(self, sequence: Sequence) -> None:
        """Remember a sequence after its end."""
        self._ended.pop(sequence.id, None)
        self._ended[sequence.id] = sequence
        if len(self._ended) > self._remembered:
            self._ended.popitem(last=False)

    def recall(self, request_id: str) -> Sequence | None:
        return self._ended.get(request_id)


def note(
    sequence: Sequence,
    happened: Happened,
    now: float,
    step: int,
    amount: int = 0,
    cause: str = "",
) -> None:
    """Write a turn into the life of a sequence."""
    sequence.life.append(Moment(happened, now, step, amount, cause))

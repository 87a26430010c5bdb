"""The journal: what was decided and why, for `explain` and `why`."""

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import NamedTuple

from paceline.core.events import Happened, Moment
from paceline.core.request import Sequence
from paceline.core.settings.config import JournalConfig


@dataclass(frozen=True, slots=True)
class Gate:
    """Why a request was not admitted in a step. All others wait behind the one at which admission
    stopped; one that was passed over stops no other.

    reason       short
    ------       -----
    budget       tokens of the step's budget that were missing
    others       slots that were missing, with those that are left for other requests
    pace         tokens for which the steps had no time
    seqs         slots that were missing
    blocks       free blocks that were missing
    room         nothing: a policy lets the request wait
    preempted    residents preempted in this step, in which no request is admitted
    decodes      nothing: this step is for residents that decode
    prefill      nothing: this step is for prompts that have begun
    swapping     nothing: its blocks are still being copied to the host
    encoder      nothing: its next image cannot be encoded yet
    paused       nothing: admission is paused

    A limit or gate of a custom discipline adds a reason of its own.
    """

    reason: str
    serial: int
    request_id: str
    short: int = 0
    aged: bool = False  # at the head because of its age, ahead of better ranks
    lasting: bool = False  # shut until a slot or block comes free or another request is next
    passed_over: bool = False  # those behind it were considered


@dataclass(slots=True)
class Spell:
    """A stretch of time during which one request was not admitted for one reason."""

    gate: Gate
    since: float
    until: float


class Passage(NamedTuple):
    """An admission, kept to explain the wait of later requests."""

    step: int
    serial: int
    tokens: int  # to compute


class Journal:
    """A bounded memory of the past.

    A step writes one fact about admission, merged with the previous one if it is the same, so
    the cost does not depend on the number of waiting requests. The life of a request is kept on
    its Sequence. The last `journal_requests` finished ones are kept here.
    """

    def __init__(self, config: JournalConfig) -> None:
        self.spells: deque[Spell] = deque(maxlen=config.journal_spells)
        self.passages: deque[Passage] = deque(maxlen=config.journal_spells)
        self._ended: OrderedDict[str, Sequence] = OrderedDict()
        self._remembered = config.journal_requests
        self._stop: Spell | None = None  # at which admission stopped in the latest step
        self._passed_over: dict[int, Spell] = {}  # in the latest step, by serial

    def blocked(self, gate: Gate | None, now: float, passed_over: tuple[Gate, ...] = ()) -> None:
        """Admission stopped at `gate` in this step, after some requests were passed over; None:
        no request was left waiting."""
        if passed_over or self._passed_over:
            self._pass_over(passed_over, now)
            gate = None if gate is not None and gate.passed_over else gate
        self._stop = self._continued(self._stop, gate, now)

    def _continued(self, last: Spell | None, gate: Gate | None, now: float) -> Spell | None:
        """The same spell if its gate is still shut; otherwise it ends, and another one begins."""
        if last is not None:
            last.until = now
            if gate is not None and self._same(last.gate, gate):
                return last
        if gate is None:
            return None
        spell = Spell(gate, now, now)
        self.spells.append(spell)
        return spell

    def _pass_over(self, gates: tuple[Gate, ...], now: float) -> None:
        last, self._passed_over = self._passed_over, {}
        for gate in gates:
            spell = self._continued(last.pop(gate.serial, None), gate, now)
            assert spell is not None
            self._passed_over[gate.serial] = spell
        for spell in last.values():
            spell.until = now

    def left(self, sequence: Sequence, now: float) -> None:
        """A sequence waits no longer; if admission stopped at it, none waits behind it now."""
        spell = self._passed_over.pop(sequence.serial, None)
        if self._stop is not None and self._stop.gate.serial == sequence.serial:
            spell, self._stop = self._stop, None
        if spell is not None:
            spell.until = now

    @property
    def open_spell(self) -> Spell | None:
        """Why admission stopped in the latest step."""
        return self._stop

    def passed_over(self, sequence: Sequence) -> Spell | None:
        """Why a sequence was passed over in the latest step; None: it was not."""
        return self._passed_over.get(sequence.serial)

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
    """Add a moment to the life of a sequence."""
    sequence.life.append(Moment(happened, now, step, amount, cause))

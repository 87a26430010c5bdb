"""The journal of admission decisions, for `explain` and `why`."""

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import NamedTuple

from paceline.core.events import Happened, Moment
from paceline.core.request import Sequence
from paceline.core.settings.config import JournalConfig


@dataclass(frozen=True, slots=True)
class Gate:
    """Why a request was not admitted in a step. It stops the requests behind it, unless it was
    passed over.

    reason       short
    ------       -----
    budget       missing tokens of the step's budget
    others       missing slots, including those left for other requests
    pace         tokens for which the step has no time
    seqs         missing slots
    blocks       missing free blocks
    room         0: the policy lets the request wait
    preempted    residents preempted in this step, which admits no request
    decodes      0: this step is for residents that decode
    prefill      0: this step is for prompts that have begun
    swapping     0: its blocks are still being copied to the host
    encoder      0: its next image cannot be encoded yet
    paused       0: admission is paused

    Limits and gates of plug-ins add their reasons.
    """

    reason: str
    serial: int
    request_id: str
    short: int = 0
    aged: bool = False  # at the head because of its age, before better ranks
    lasting: bool = False  # until a slot or block is freed or another request is next
    passed_over: bool = False  # later ones were considered


@dataclass(slots=True)
class Spell:
    """A time during which one request was not admitted for one reason."""

    gate: Gate
    since: float
    until: float


class Passage(NamedTuple):
    """An admission, kept to explain the waits of other requests."""

    step: int
    serial: int
    tokens: int  # to compute


class Journal:
    """A bounded history of admissions and finished requests.

    Each step records at most one stop of admission, merged with the previous one if it is the
    same, so the cost does not depend on the number of waiting requests. The events of a request
    are in its `Sequence.life`; the last `journal_requests` finished ones are kept here.
    """

    def __init__(self, config: JournalConfig) -> None:
        self.spells: deque[Spell] = deque(maxlen=config.journal_spells)
        self.passages: deque[Passage] = deque(maxlen=config.journal_spells)
        self._ended: OrderedDict[str, Sequence] = OrderedDict()
        self._remembered = config.journal_requests
        self._stop: Spell | None = None  # of the request that stopped admission in the latest step
        self._passed_over: dict[int, Spell] = {}  # in the latest step, by serial

    def blocked(self, gate: Gate | None, now: float, passed_over: tuple[Gate, ...] = ()) -> None:
        """Record the gate that stopped admission in this step, and those of requests passed over;
        None: no request is left waiting."""
        if passed_over or self._passed_over:
            self._pass_over(passed_over, now)
            gate = None if gate is not None and gate.passed_over else gate
        self._stop = self._continued(self._stop, gate, now)

    def _continued(self, last: Spell | None, gate: Gate | None, now: float) -> Spell | None:
        """Continue a spell if its gate is still shut; otherwise end it and begin another."""
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
        """A sequence left the queue: end its spell, if it stopped admission or was passed over."""
        spell = self._passed_over.pop(sequence.serial, None)
        if self._stop is not None and self._stop.gate.serial == sequence.serial:
            spell, self._stop = self._stop, None
        if spell is not None:
            spell.until = now

    @property
    def open_spell(self) -> Spell | None:
        """The spell of the request that stopped admission in the latest step."""
        return self._stop

    def passed_over(self, sequence: Sequence) -> Spell | None:
        """The spell of a sequence that was passed over in the latest step, otherwise None."""
        return self._passed_over.get(sequence.serial)

    @staticmethod
    def _same(one: Gate, other: Gate) -> bool:
        return one.reason == other.reason and one.serial == other.serial

    def passed(self, sequence: Sequence, tokens: int, step: int) -> None:
        self.passages.append(Passage(step, sequence.serial, tokens))

    def ended(self, sequence: Sequence) -> None:
        """Keep a finished sequence."""
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
    """Add an event to the life of a sequence."""
    sequence.life.append(Moment(happened, now, step, amount, cause))

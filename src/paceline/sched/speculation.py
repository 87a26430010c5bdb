"""How many draft tokens each sequence verifies in a step."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from paceline.core import plugins
from paceline.core.arrays import F32, F64, I32, I64, Bool, Index
from paceline.core.capabilities import Points, StepTimes
from paceline.core.settings.features import SpeculationConfig
from paceline.sched.composition import FOREVER, Composition
from paceline.sched.slots import SlotTable


class Curve:
    """Seconds by positions: straight lines between points, and the last one goes on.

    A larger step never takes less: where a measurement says so, it is noise. The arithmetic is
    the same to the bit on every machine, so that a replay decides as the recorded run did.
    """

    def __init__(self, points: Points) -> None:
        first = [(0, points[0][1])] if points[0][0] > 0 else []
        sizes, seconds = zip(*first, *points, strict=True)
        self._size: F64 = np.array(sizes, np.float64)
        self._seconds: F64 = np.maximum.accumulate(np.array(seconds, np.float64))
        self._slope: F64 = np.diff(self._seconds) / np.diff(self._size)
        if not len(self._slope):
            self._slope = np.zeros(1)

    def at(self, positions: I64) -> F64:
        """Seconds of steps with so many positions."""
        line = np.searchsorted(self._size, positions, side="right") - 1
        line = np.clip(line, 0, len(self._slope) - 1)
        seconds: F64 = self._seconds[line] + self._slope[line] * (positions - self._size[line])
        return seconds

    def one(self, positions: int) -> float:
        return float(self.at(np.array([positions]))[0])


LEARNING = 8.0  # drafts that weigh as much as all that was seen of a sequence before
EXPECTING = 64.0  # the same for all sequences together, which sets where new ones begin
MOST_MISSES = 7  # tries in a row that gained nothing: the next one waits 64 steps
EMPTY_MISSES = 5  # the same where nothing was proposed, which costs less: 16 steps
UNLIKELY = 0.25  # acceptance below which a wrong draft counts as such a try
UNMEASURED = 256  # positions of the largest step with drafts, where no step times are known


@dataclass(frozen=True, slots=True, eq=False)
class DraftRows:
    """The rows of a step before drafts are added. Arrays have one entry for each row."""

    step: int
    positions: int  # of the step without drafts
    samples: int  # tokens that the step yields without drafts
    most: I32  # drafts that a row may have; 0 where it computes several known tokens, or ends
    acceptance: F32  # chance that a draft is right if those before it are
    misses: I32  # tries in a row that gained nothing
    wait: I64  # steps until the row should try again; 0 or less: now

    @staticmethod
    def of(table: SlotTable, step: Composition, number: int) -> "DraftRows":
        """From the rows of step `number`."""
        slot, end = step.slot, step.start + step.count
        is_decode = (step.start >= table.given[slot]) & (step.count == 1)
        most = np.where(is_decode, table.most_drafts[slot], 0)
        return DraftRows(
            number,
            int(step.count.sum()),
            int(np.count_nonzero(end >= table.known[slot])),
            np.minimum(most, np.maximum(table.limit[slot] - 1 - end, 0)),
            table.acceptance[slot],
            table.misses[slot],
            table.draft_at[slot] - number,
        )

    @property
    def is_decode(self) -> bool:
        """Does every row compute one position?"""
        return self.positions == len(self.most)


@dataclass(frozen=True, slots=True)
class DraftedStep:
    """What became of the drafts of a step."""

    positions: int  # of the step without drafts
    samples: int  # tokens that it would have yielded without them
    computed: int  # drafts
    accepted: int  # of these
    is_decode: bool  # without drafts, every row had one position


class Speculation(ABC):
    """Decides for all rows of a step at once.

    The decision depends on the rows, on what `verified` said and on what was measured, never on
    a clock: the same calls give the same drafts.
    """

    quiet = 0  # steps for which the latest answer holds, where it was no draft for any row
    is_paused = False  # in the latest step that could have had drafts, no row got one

    def __init__(self, config: SpeculationConfig) -> None:
        self.config = config
        self.times: StepTimes | None = None  # None: the device was not measured

    @abstractmethod
    def drafts(self, rows: DraftRows) -> I32:
        """Return the drafts of each row, at most `rows.most`."""

    def verified(self, step: DraftedStep) -> None:  # noqa: B027
        """The result of a step with drafts came in."""

    def measure(self, times: StepTimes) -> None:
        """The device was measured."""
        self.times = times


class Fixed(Speculation):
    """Always as many as allowed."""

    def drafts(self, rows: DraftRows) -> I32:
        return rows.most


class Adaptive(Speculation):
    """As many as let a step yield the most tokens per second.

    The step that has the most drafts is rarely the best one: each draft costs time, and each is
    right with its own odds. So all possible drafts of all rows are sorted by their odds, and as
    many are taken as maximise

        (samples + sum of the odds taken) / seconds of the step with them

    by the step times that were measured. Without a measurement a step has at most
    `speculation_max_batch_tokens` positions, and is assumed to take as long as so many and its own.

    What the odds of a row are is known only from drafts, so rows that are not worth a draft try
    some now and then: one, or as many as could pay. An allowance pays for that. It is counted in
    steps: each step adds a hundredth of a step, drafts that were right add what they saved, and
    drafts that were wrong take what they cost. Rows try when the allowance covers the cost, and
    below zero no row drafts. So speculation never loses more than a hundredth of the time, and what
    it earned before.
    """

    WORTH = 1.1  # times as many tokens per second: less may be an error of the measurement
    EARNED = 0.01  # allowance that a step adds
    FIRST, MOST = 2.0, 4.0  # allowance at the start, and the most that is saved up

    def __init__(self, config: SpeculationConfig) -> None:
        super().__init__(config)
        self._largest = config.speculation_max_batch_tokens or UNMEASURED
        free = float(self._largest)
        self._plain = self._drafted = Curve(((1, free + 1), (2, free + 2)))
        self._least: Curve | None = None  # by positions without drafts
        self._allowance = self.FIRST
        self._step = 0  # of the latest answer

    def measure(self, times: StepTimes) -> None:
        super().measure(times)
        self._plain, self._drafted = Curve(times.plain), Curve(times.drafted)
        self._least = Curve(times.least) if times.least else None
        self._largest = self.config.speculation_max_batch_tokens or FOREVER

    def drafts(self, rows: DraftRows) -> I32:
        self._add(self.EARNED * (rows.step - self._step))
        self._step = rows.step
        room = max(self._largest - rows.positions, 0)
        ready = np.where(rows.wait <= 0, np.minimum(rows.most, room), 0)
        later = rows.wait[(rows.wait > 0) & (rows.most > 0)]
        self.quiet = int(later.min(initial=FOREVER))
        if rows.most.any():
            self.is_paused = True
        if not ready.any():
            return ready
        drafts = self._worth(rows, ready, room)
        trying = np.where(drafts == 0, ready, 0)
        if trying.any():
            drafts += self._tries(rows, trying, int(drafts.sum()), room)
        if drafts.any():
            self.quiet, self.is_paused = 0, False
        return drafts

    def verified(self, step: DraftedStep) -> None:
        if not step.samples:
            return
        base = self._base(step.positions, step.is_decode)
        # Without a draft, proposing took time all the same.
        cost = self._seconds(step.positions, step.computed) / base - 1.0
        self._add(step.accepted / step.samples - max(cost, 0.0))

    def _worth(self, rows: DraftRows, ready: I32, room: int) -> I32:
        """Drafts that pay for themselves, by what is known of the rows."""
        if self._allowance < 0.0:
            self._hold(-self._allowance)
            return np.zeros_like(ready)
        odds, row = in_order(ready, rows.acceptance)
        odds, row = odds[:room], row[:room]
        gained = np.concatenate([[0.0], np.cumsum(odds)])
        seconds = self._drafted.at(rows.positions + np.arange(len(gained)))
        if self._least is not None:
            seconds = np.maximum(seconds, self._least.one(rows.positions))
        seconds[0] = self._base(rows.positions, rows.is_decode)
        rate = (rows.samples + gained) / seconds
        number = int(np.argmax(rate))
        if rate[number] < self.WORTH * rate[0]:
            number = 0
        found: I32 = np.bincount(row[:number], minlength=len(ready)).astype(np.int32)
        return found

    def _tries(self, rows: DraftRows, trying: I32, taken: int, room: int) -> I32:
        """Drafts of rows that try up to `trying`, in a step that has `taken` drafts of other rows.
        If they have to wait for their allowance, the answer holds until then."""
        base = self._base(rows.positions, rows.is_decode)
        now = self._seconds(rows.positions, taken) if taken else base
        for found in (np.minimum(trying, 1), trying):
            drafts = int(found.sum())
            cost = (self._seconds(rows.positions, taken + drafts) - now) / base
            pays = rows.samples + drafts >= self.WORTH * (1.0 + cost) * rows.samples
            if taken + drafts > room or not pays:  # even if all were right
                continue
            if cost <= self._allowance:
                return found
            if cost <= self.MOST:
                self._hold(cost - self._allowance)
        return np.zeros_like(trying)

    def _hold(self, steps: float) -> None:
        """Let the answer hold until the allowance has grown by so many steps."""
        self.quiet = min(self.quiet, int(steps / self.EARNED) + 1)

    def _seconds(self, positions: int, drafts: int) -> float:
        """Seconds of a step with drafts: what all its positions take, or what its rows take."""
        least = 0.0 if self._least is None else self._least.one(positions)
        return max(self._drafted.one(positions + drafts), least)

    def _base(self, positions: int, is_decode: bool) -> float:
        """Seconds of a step without drafts."""
        return (self._plain if is_decode else self._drafted).one(positions)

    def _add(self, steps: float) -> None:
        self._allowance = min(self._allowance + steps, self.MOST)


def in_order(most: I32, acceptance: F32) -> tuple[F64, Index]:
    """All possible drafts, likeliest first: the odds that each counts, and its row.

    A draft counts if it is right and so are those before it in its row. Among equal odds those
    that come first in their row go first.
    """
    rows, width = len(most), int(most.max(initial=0))
    each = np.broadcast_to(acceptance.astype(np.float64)[:, None], (rows, width))
    # By multiplication, which is the same to the bit everywhere.
    odds: F64 = np.multiply.accumulate(each, axis=1)
    place, row = np.nonzero(np.arange(width)[:, None] < most)
    found = odds[row, place]
    order = np.argsort(-found, kind="stable")
    return found[order], row[order]


# -- what a sequence teaches ------------------------------------------------


def judged(accepted: I32, computed: I32) -> I32:
    """Drafts that say something: up to the first wrong one, those behind it say nothing."""
    return np.minimum(accepted + 1, computed)


def expected(acceptance: float, accepted: int, seen: int) -> float:
    """Acceptance of all sequences together, after `accepted` of `seen` judged drafts were right."""
    return acceptance + (accepted - seen * acceptance) / (seen + EXPECTING)


def learned(acceptance: F32, accepted: I32, computed: I32) -> F32:
    """Acceptance after so many drafts were computed and the first `accepted` of them were right."""
    seen = judged(accepted, computed)
    found: F64 = acceptance + (accepted - seen * acceptance) / (seen + LEARNING)
    return found.astype(np.float32)


def missed(misses: I32, accepted: I32, computed: I32, acceptance: F32) -> I32:
    """Tries in a row that gained nothing, after another one. Wrong drafts of a row do not count as
    long as its acceptance says that others will be right."""
    most = np.where(computed > 0, MOST_MISSES, EMPTY_MISSES)
    more = np.maximum(misses, np.minimum(misses + 1, most))
    more = np.where((computed > 0) & (acceptance >= UNLIKELY), misses, more)
    found: I32 = np.where(accepted > 0, 0, more).astype(np.int32)
    return found


def waits(misses: I32) -> I64:
    """Steps until the next try: the first miss changes nothing, each further one doubles it."""
    is_missing: Bool = misses > 0
    found: I64 = np.where(is_missing, 1 << np.maximum(misses - 1, 0), 0).astype(np.int64)
    return found


KNOWN: Mapping[str, type[Speculation]] = {"fixed": Fixed, "adaptive": Adaptive}


def load(config: SpeculationConfig) -> Speculation:
    """Load by name of a class here, or by dotted path."""
    return plugins.load("speculation", config.speculation, KNOWN, Speculation)(config)

"""How many drafts each row of a step verifies."""

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
    """Step times by number of positions: linear between measured points, and beyond the last one.

    Times never fall with more positions: where measured ones do, that is noise. The arithmetic is
    bit-identical on every machine, so that a replay decides as the recorded run did.
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
        """Seconds of steps with `positions` positions."""
        line = np.searchsorted(self._size, positions, side="right") - 1
        line = np.clip(line, 0, len(self._slope) - 1)
        seconds: F64 = self._seconds[line] + self._slope[line] * (positions - self._size[line])
        return seconds

    def one(self, positions: int) -> float:
        return float(self.at(np.array([positions]))[0])


class DraftedSeconds:
    """Seconds of steps with drafts.

    They were measured with a single draft, and with as many of each row as allowed. A drafter that
    is a model takes a pass for each further draft of a row: the first size that was measured, in
    which few positions cost nothing, says how long a pass takes.
    """

    def __init__(self, times: StepTimes) -> None:
        self.by_positions = Curve(times.drafted)
        self._least = Curve(times.least) if times.least else None
        self._most, self._pass_s = 0, 0.0
        if times.least:
            (rows, single), (size, full) = times.least[0], times.drafted[0]
            self._most = size // rows - 1
            self._pass_s = max(full - single, 0.0) / max(self._most - 1, 1)

    def of(self, positions: int, drafts: I64, deepest: I64) -> F64:
        """Seconds of steps of `positions` before drafts are added, by their drafts and by the most
        that one row has. They are at least those with a single draft."""
        fewer = np.maximum(self._most - deepest, 0)
        seconds = self.by_positions.at(positions + drafts) - fewer * self._pass_s
        least = 0.0 if self._least is None else self._least.one(positions)
        found: F64 = np.maximum(seconds, least + np.maximum(deepest - 1, 0) * self._pass_s)
        return found

    def one(self, positions: int, drafts: int, deepest: int) -> float:
        return float(self.of(positions, np.array([drafts]), np.array([deepest]))[0])


LEARNING = 8.0  # weight of a sequence's earlier acceptance, in drafts
EXPECTING = 64.0  # the same for all sequences together, from which new ones start
MOST_MISSES = 7  # tries in a row without accepted drafts: the next one waits 64 steps
EMPTY_MISSES = 5  # the same if nothing was proposed, which costs less: 16 steps
UNLIKELY = 0.25  # acceptance below which a rejected draft counts as a miss
UNMEASURED = 256  # most positions of a step with drafts, without measured step times


@dataclass(frozen=True, slots=True, eq=False)
class DraftRows:
    """The rows of a step before drafts are added. Arrays have one entry for each row."""

    step: int
    positions: int  # of the step without drafts
    samples: int  # tokens that the step yields without drafts
    most: I32  # most drafts of a row; 0 if it computes several known tokens, or ends
    acceptance: F32  # chance that a draft is accepted if those before it are
    misses: I32  # tries in a row without accepted drafts
    wait: I64  # steps until the row may try again; 0 or less: now

    @staticmethod
    def of(table: SlotTable, step: Composition, number: int) -> "DraftRows":
        """Build them from the rows of step `number`."""
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
    """The drafts of a committed step."""

    positions: int  # of the step without drafts
    samples: int  # tokens of the step without drafts
    computed: int
    accepted: int
    deepest: int  # most drafts of a row
    is_decode: bool  # every row had one position besides its drafts


class Speculation(ABC):
    """Decides how many drafts each row of a step gets.

    The decision depends on the rows, the results of earlier drafts and the measured step times,
    never on a clock: the same calls give the same drafts.
    """

    quiet = 0  # steps for which an answer without drafts holds
    is_paused = False  # no row got a draft in the latest step that could have had some

    def __init__(self, config: SpeculationConfig) -> None:
        self.config = config
        self.times: StepTimes | None = None  # None: the device was not measured

    @property
    def reason(self) -> str:
        """Why the latest step has its drafts, as a clause for `explain`."""
        return ""

    @abstractmethod
    def drafts(self, rows: DraftRows) -> I32:
        """Return the drafts of each row, at most `rows.most`."""

    def verified(self, step: DraftedStep) -> None:  # noqa: B027
        """Learn from the result of a step with drafts."""

    def measure(self, times: StepTimes) -> None:
        """Set the measured step times."""
        self.times = times


class Fixed(Speculation):
    """Always as many drafts as allowed."""

    def drafts(self, rows: DraftRows) -> I32:
        return rows.most


class Adaptive(Speculation):
    """As many drafts as maximise the tokens per second of a step.

    More drafts are not always better: each costs time, and may be rejected. So all possible drafts
    of all rows are sorted by their odds of acceptance, and the number taken maximises

        (samples + sum of the odds taken) / seconds of the step with them

    by the measured step times. Without them a step with drafts has at most
    `speculation_max_batch_tokens` positions, and its time is assumed to be proportional to that
    number plus its positions. A model that drafts takes longer the more drafts one row has, so rows
    share the drafts that a step can afford.

    The odds of a row are learned only from drafts, so rows that are not worth a draft try some now
    and then: one, or as many as could pay. An allowance, counted in steps, limits these tries. Each
    step adds a hundredth of a step, accepted drafts add the time that they saved, and computing
    drafts subtracts their cost. Rows try when the allowance covers the cost; below zero no row
    drafts. So speculation never loses more than a hundredth of the time and its earlier savings.
    """

    WORTH = 1.1  # least gain in tokens per second; a smaller one may be measurement error
    EARNED = 0.01  # allowance added per step
    FIRST, MOST = 2.0, 4.0  # allowance at the start, and its maximum

    def __init__(self, config: SpeculationConfig) -> None:
        super().__init__(config)
        self._largest = config.speculation_max_batch_tokens or UNMEASURED
        free = float(self._largest)
        assumed: Points = ((1, free + 1), (2, free + 2))
        self._plain, self._drafted = Curve(assumed), DraftedSeconds(StepTimes(assumed, assumed))
        self._allowance = self.FIRST
        self._step = 0  # the latest one decided
        # Of the latest step: drafts that pay, how much they promise, and drafts that are tries.
        self._worthy, self._gain, self._tried = 0, 1.0, 0

    @property
    def reason(self) -> str:
        found: list[str] = []
        if self._worthy:
            found.append(
                f"{self._worthy:,} that promise {self._gain:.2f} times the tokens per second"
            )
        if self._tried:
            found.append(f"{self._tried:,} to learn whether drafts pay")
        return f"those of the latest step: {', '.join(found)}" if found else ""

    def measure(self, times: StepTimes) -> None:
        super().measure(times)
        self._plain, self._drafted = Curve(times.plain), DraftedSeconds(times)
        self._largest = self.config.speculation_max_batch_tokens or FOREVER

    def drafts(self, rows: DraftRows) -> I32:
        self._add(self.EARNED * (rows.step - self._step))
        self._step = rows.step
        self._worthy = self._tried = 0
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
        tries = self._tries(rows, trying, drafts, room) if trying.any() else trying
        self._tried = int(tries.sum())
        if (drafts + tries).any():
            self.quiet, self.is_paused = 0, False
        return drafts + tries

    def verified(self, step: DraftedStep) -> None:
        if not step.samples:
            return
        base = self._base(step.positions, step.is_decode)
        # Proposing takes time even if it finds no draft.
        seconds = self._drafted.one(step.positions, step.computed, step.deepest)
        cost = seconds / base - 1.0
        self._add(step.accepted / step.samples - max(cost, 0.0))

    def _worth(self, rows: DraftRows, ready: I32, room: int) -> I32:
        """Drafts that pay for themselves by the acceptance learned so far."""
        if self._allowance < 0.0:
            self._hold(-self._allowance)
            return np.zeros_like(ready)
        odds, row, place = (one[:room] for one in in_order(ready, rows.acceptance))
        gained = np.concatenate([[0.0], np.cumsum(odds)])
        deepest = np.concatenate([[0], np.maximum.accumulate(place)])
        seconds = self._drafted.of(rows.positions, np.arange(len(gained)), deepest)
        seconds[0] = self._base(rows.positions, rows.is_decode)
        rate = (rows.samples + gained) / seconds
        number = int(np.argmax(rate))
        if rate[number] < self.WORTH * rate[0]:
            number = 0
        self._worthy, self._gain = number, float(rate[number] / rate[0])
        found: I32 = np.bincount(row[:number], minlength=len(ready)).astype(np.int32)
        return found

    def _tries(self, rows: DraftRows, trying: I32, others: I32, room: int) -> I32:
        """Drafts that rows try, at most `trying`, in a step in which others have some. If the
        allowance is too small, the answer holds until it is not."""
        base, taken = self._base(rows.positions, rows.is_decode), int(others.sum())
        now = self._drafted.one(rows.positions, taken, int(others.max())) if taken else base
        for found in (np.minimum(trying, 1), trying):
            drafts = int(found.sum())
            deepest = int(np.maximum(others, found).max())
            seconds = self._drafted.one(rows.positions, taken + drafts, deepest)
            cost = (seconds - now) / base
            pays = rows.samples + drafts >= self.WORTH * (1.0 + cost) * rows.samples
            if taken + drafts > room or not pays:  # even if all were accepted
                continue
            if cost <= self._allowance:
                return found
            if cost <= self.MOST:
                self._hold(cost - self._allowance)
        return np.zeros_like(trying)

    def _hold(self, steps: float) -> None:
        """Keep the answer until the allowance has grown by `steps`."""
        self.quiet = min(self.quiet, int(steps / self.EARNED) + 1)

    def _base(self, positions: int, is_decode: bool) -> float:
        """Seconds of a step without drafts."""
        return (self._plain if is_decode else self._drafted.by_positions).one(positions)

    def _add(self, steps: float) -> None:
        self._allowance = min(self._allowance + steps, self.MOST)


def in_order(most: I32, acceptance: F32) -> tuple[F64, Index, I64]:
    """All possible drafts, likeliest first: the odds of acceptance of each, its row, and its number
    within the row, from 1.

    A draft is accepted if it and all before it in its row are right. Among equal odds, earlier
    drafts of a row go first.
    """
    rows, width = len(most), int(most.max(initial=0))
    each = np.broadcast_to(acceptance.astype(np.float64)[:, None], (rows, width))
    # A product is bit-identical on every machine; a power is not.
    odds: F64 = np.multiply.accumulate(each, axis=1)
    index, row = np.nonzero(np.arange(width)[:, None] < most)
    found = odds[row, index]
    order = np.argsort(-found, kind="stable")
    return found[order], row[order], index[order] + 1


# -- learning from results --------------------------------------------------


def judged(accepted: I32, computed: I32) -> I32:
    """Drafts up to the first rejected one; those after it were not judged."""
    return np.minimum(accepted + 1, computed)


def expected(acceptance: float, accepted: int, seen: int) -> float:
    """Acceptance of all sequences together, after `accepted` of `seen` judged drafts."""
    return acceptance + (accepted - seen * acceptance) / (seen + EXPECTING)


def learned(acceptance: F32, accepted: I32, computed: I32) -> F32:
    """Acceptance of each row after the first `accepted` of its `computed` drafts were accepted."""
    seen = judged(accepted, computed)
    found: F64 = acceptance + (accepted - seen * acceptance) / (seen + LEARNING)
    return found.astype(np.float32)


def missed(misses: I32, accepted: I32, computed: I32, acceptance: F32) -> I32:
    """Tries in a row without accepted drafts, after another one. Rejected drafts do not count while
    the row's acceptance is high."""
    most = np.where(computed > 0, MOST_MISSES, EMPTY_MISSES)
    more = np.maximum(misses, np.minimum(misses + 1, most))
    more = np.where((computed > 0) & (acceptance >= UNLIKELY), misses, more)
    found: I32 = np.where(accepted > 0, 0, more).astype(np.int32)
    return found


def waits(misses: I32) -> I64:
    """Steps until the next try: 1 after the first miss, doubled by each further one."""
    is_missing: Bool = misses > 0
    found: I64 = np.where(is_missing, 1 << np.maximum(misses - 1, 0), 0).astype(np.int64)
    return found


KNOWN: Mapping[str, type[Speculation]] = {"fixed": Fixed, "adaptive": Adaptive}


def load(config: SpeculationConfig) -> Speculation:
    """Load a class by its name in KNOWN, or by dotted path."""
    return plugins.load("speculation", config.speculation, KNOWN, Speculation)(config)

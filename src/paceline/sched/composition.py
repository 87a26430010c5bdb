"""The rows of a step before they are handed out."""

from dataclasses import dataclass, replace

import numpy as np

from paceline.core.arrays import I32, NO_I32, NO_INDEX, Index
from paceline.core.plan import NOTHING_GROWN, Admitted, Grown, Kind
from paceline.sched.journal import Gate


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of somebody who has just come in."""

    slot: int
    start: int
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """The rows of a step and what came with them, before anything is handed out."""

    slot: Index
    start: I32  # the first position of each row
    count: I32
    drafts: I32
    grown: Grown = NOTHING_GROWN
    admitted: tuple[Admitted, ...] = ()
    gate: Gate | None = None  # why nobody else was admitted; None: nobody waits
    kind: Kind = "mixed"

    def joined(self, entries: list[Entry], admitted: list[Admitted]) -> "Composition":
        """With the rows of newcomers behind those that were here."""
        if not entries:
            return replace(self, admitted=tuple(admitted))
        slot = np.array([entry.slot for entry in entries], np.intp)
        start = np.array([entry.start for entry in entries], np.int32)
        count = np.array([entry.count for entry in entries], np.int32)
        return replace(
            self,
            slot=np.concatenate([self.slot, slot]),
            start=np.concatenate([self.start, start]),
            count=np.concatenate([self.count, count]),
            drafts=np.concatenate([self.drafts, np.zeros(len(entries), np.int32)]),
            admitted=tuple(admitted),
        )


NOTHING = Composition(NO_INDEX, NO_I32, NO_I32, NO_I32)

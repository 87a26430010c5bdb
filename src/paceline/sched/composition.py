"""The rows of a step before they are handed out."""

from dataclasses import dataclass

import numpy as np

from paceline.core.arrays import I32, NO_I32, NO_INDEX, Index
from paceline.core.plan import NOTHING_GROWN, Admitted, Grown, Kind
from paceline.sched.explain.journal import Gate

FOREVER = 2**31 - 1  # steps


@dataclass(slots=True)
class JoiningRow:
    """A row of a sequence that joins in this step."""

    slot: int
    start: int
    count: int


@dataclass(slots=True, eq=False)
class Composition:
    """The rows of a step and what came with them, before anything is handed out."""

    slot: Index
    start: I32  # the first position of each row
    count: I32
    drafts: I32
    grown: Grown = NOTHING_GROWN
    admitted: tuple[Admitted, ...] = ()
    gate: Gate | None = None  # what stopped admission; None: no request waits
    passed_over: tuple[Gate, ...] = ()  # requests that others were considered after
    kind: Kind = "mixed"
    quiet: int = FOREVER  # steps from this one on in which the same rows may be planned again

    def joined(
        self,
        rows: list[JoiningRow],
        admitted: list[Admitted],
        gate: Gate | None = None,
        passed_over: tuple[Gate, ...] = (),
    ) -> "Composition":
        """With the rows of newcomers behind those that were here, until `gate`."""
        slot, start, count, drafts = self.slot, self.start, self.count, self.drafts
        if rows:
            slot = np.concatenate([slot, np.array([one.slot for one in rows], np.intp)])
            start = np.concatenate([start, np.array([one.start for one in rows], np.int32)])
            count = np.concatenate([count, np.array([one.count for one in rows], np.int32)])
            drafts = np.concatenate([drafts, np.zeros(len(rows), np.int32)])
        return Composition(
            slot, start, count, drafts, self.grown, tuple(admitted), gate, passed_over, self.kind
        )

    def closed(self, gate: Gate | None) -> "Composition":
        """Without newcomers, because of `gate`."""
        return Composition(
            self.slot, self.start, self.count, self.drafts, self.grown, gate=gate, kind=self.kind
        )


NOTHING = Composition(NO_INDEX, NO_I32, NO_I32, NO_I32)

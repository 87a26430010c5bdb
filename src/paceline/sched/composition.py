"""The rows of a step under construction."""

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
    """The rows of a step under construction, with admissions and gates."""

    slot: Index
    start: I32  # the first position of each row
    count: I32
    drafts: I32
    grown: Grown = NOTHING_GROWN
    admitted: tuple[Admitted, ...] = ()
    gate: Gate | None = None  # what stopped admission; None: no request waits
    passed_over: tuple[Gate, ...] = ()  # requests that admission skipped
    kind: Kind = "mixed"
    quiet: int = FOREVER  # steps, this one included, that may repeat these rows

    def joined(
        self,
        rows: list[JoiningRow],
        admitted: list[Admitted],
        gate: Gate | None = None,
        passed_over: tuple[Gate, ...] = (),
    ) -> "Composition":
        """Append the rows of admitted sequences; `gate` stopped admission."""
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
        """Admit no sequence, because of `gate`."""
        return Composition(
            self.slot, self.start, self.count, self.drafts, self.grown, gate=gate, kind=self.kind
        )


NOTHING = Composition(NO_INDEX, NO_I32, NO_I32, NO_I32)

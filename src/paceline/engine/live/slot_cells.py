"""What the sequence in each slot does in a step, and which sequences took up slots."""

import numpy as np

from paceline.core.arrays import I64, Bool, Index, Names
from paceline.core.plan import Plan, Rows
from paceline.engine.live.frames import (
    AGAIN,
    CACHED,
    DECODE,
    DRAFTS,
    IDLE,
    PREEMPTED,
    PREFILL,
    VACANT,
    Seat,
)
from paceline.sched.slots import SlotTable

LETTERS = (VACANT, IDLE, PREFILL, AGAIN, CACHED, DECODE, DRAFTS, PREEMPTED)
KIND = {letter: ord(letter) for letter in LETTERS}
SEATS_PER_SLOT = 4  # between two frames


class SlotCells:
    """Draws the cells of some steps, and seats the sequences that it finds in slots.

    `_serial`, `_name` and `_resumed` are by slot: the sequence that was drawn there last, the id of
    its request, and whether it ran before and was preempted. `_drawn` are rows whose cells are in
    `_text`, also in the steps that repeat them.
    """

    def __init__(self, table: SlotTable) -> None:
        self._table = table
        self._serial: I64 = np.full(table.capacity, -1, np.int64)
        self._name: Names = np.full(table.capacity, None, object)
        self._resumed: Bool = np.zeros(table.capacity, np.bool_)
        self._seats: list[Seat] = []
        self._drawn: Rows | None = None
        self._text, self._prompts = "", 0

    def begin(self) -> None:
        """Seat all who are here in the next step that is drawn."""
        self._serial[:] = -1
        self._name[:] = None
        self._seats, self._drawn = [], None

    def take_seats(self) -> tuple[Seat, ...]:
        """Sequences that were found in a slot since the previous call."""
        seats, self._seats = tuple(self._seats), []
        return seats

    @property
    def crowded(self) -> bool:
        """Are there too many seats for one frame?"""
        return len(self._seats) > SEATS_PER_SLOT * self._table.capacity

    def forget_seats(self) -> None:
        """Keep the latest seat of each slot: no record needs the others."""
        self._seats = [*{one.slot: one for one in self._seats}.values()]

    def drawn(self, plan: Plan) -> tuple[str, int]:
        """The cells of a step that was just planned, and how many of its rows compute known
        tokens."""
        if plan.rows is not self._drawn:
            preempted = self._preempted(plan) if plan.preempted else []
            self._seat(plan.step)
            self._draw(plan, preempted)
            self._drawn = None if preempted or plan.admitted else plan.rows
        return self._text, self._prompts

    def _preempted(self, plan: Plan) -> list[int]:
        """The slots that preempted sequences had, as far as they were drawn there."""
        names = set(plan.preempted)
        return [slot for slot in plan.released if self._name[slot] in names]

    def _seat(self, step: int) -> None:
        """Take note of who has come since the latest step that was drawn."""
        table, order = self._table, self._table.order
        changed = order[table.serial[order] != self._serial[order]]
        if not len(changed):
            return
        self._serial[changed] = table.serial[changed]
        self._name[changed] = table.name[changed]
        for slot in changed.tolist():
            sequence = table.sequence(slot)
            self._resumed[slot] = sequence.preemptions > 0
            prompt = len(sequence.request.prompt)
            self._seats.append(Seat(slot, step, sequence.id, sequence.child, prompt))

    def _draw(self, plan: Plan, preempted: list[int]) -> None:
        table, rows, slot = self._table, plan.rows, plan.rows.slot
        cells = np.full(table.capacity, KIND[VACANT], np.uint8)
        cells[preempted] = KIND[PREEMPTED]
        cells[table.order] = KIND[IDLE]
        kinds = np.where(rows.drafts > 0, KIND[DRAFTS], KIND[DECODE])
        kinds[plan.start < table.prompt[slot]] = KIND[PREFILL]
        # The last known token is computed for the first time, also after a preemption.
        kinds[self._resumed[slot] & (plan.start < table.given[slot] - 1)] = KIND[AGAIN]
        self._prompts = int(np.count_nonzero((kinds == KIND[PREFILL]) | (kinds == KIND[AGAIN])))
        cells[slot] = kinds
        for new in plan.admitted:
            sequence = table.sequences[new.slot]
            if cells[new.slot] == KIND[PREFILL] and sequence is not None and sequence.cached:
                cells[new.slot] = KIND[CACHED]
        used: Index = np.flatnonzero(cells != KIND[VACANT])
        last = int(used[-1]) + 1 if len(used) else 0
        self._text = cells[:last].tobytes().decode("ascii")

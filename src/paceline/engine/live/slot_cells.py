"""What the sequence in each slot does in a step, and which sequences took up slots."""

import numpy as np

from paceline.core.arrays import Bool, Index, Names
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
SEATS_PER_SLOT = 4  # that are kept between two frames; more are too many to draw


class SlotCells:
    """Follows plans: which sequence has which slot. Cells are drawn for some steps only.

    `_occupant` and `_resumed` are by slot: the id of its request, and whether it ran before and was
    preempted. `_preempted` and `_found` are slots of the latest plan: of sequences that had to
    leave, and of those that found a part of their prompt in the cache. `_drawn` are rows whose
    cells are in `_text`, also in the steps that repeat them.
    """

    def __init__(self, table: SlotTable) -> None:
        self._table = table
        self._occupant: Names = np.full(table.capacity, None, object)
        self._resumed: Bool = np.zeros(table.capacity, np.bool_)
        self._preempted: list[int] = []
        self._found: list[int] = []
        self._seats: list[Seat] = []
        self._drawn: Rows | None = None
        self._text, self._prompts = "", 0

    def begin(self, step: int) -> None:
        """Seat all who are here."""
        self._occupant[:] = None
        self._resumed[:] = False
        self._preempted, self._found, self._seats = [], [], []
        self._drawn = None
        for slot in self._table.order.tolist():
            self._resumed[slot] = self._table.sequence(slot).preemptions > 0
            self._seat(slot, step)

    def follow(self, plan: Plan) -> tuple[list[int], list[int]]:
        """Take note of who left and who came with a plan that repeats no rows; returns the slots of
        preempted sequences and of new ones."""
        occupant, left, seated = self._occupant, list[int](), list[int]()
        if plan.preempted:
            names = set(plan.preempted)
            left = [slot for slot in plan.released if occupant[slot] in names]
        for slot in plan.released:
            occupant[slot] = None
        self._found = []
        for new in plan.admitted:
            sequence = self._table.sequences[new.slot]
            if sequence is None:  # it left before the plan was made
                continue
            self._resumed[new.slot] = new.resumed
            if sequence.cached and not new.resumed:
                self._found.append(new.slot)
            self._seat(new.slot, plan.step)
            seated.append(new.slot)
        self._preempted = left
        return left, seated

    def _seat(self, slot: int, step: int) -> None:
        table = self._table
        name, child = str(table.name[slot]), int(table.child[slot])
        self._occupant[slot] = name
        self._seats.append(Seat(slot, step, name, child, int(table.prompt[slot])))
        if len(self._seats) > SEATS_PER_SLOT * table.capacity:
            self._seats = [*{one.slot: one for one in self._seats}.values()]

    def take_seats(self) -> tuple[Seat, ...]:
        """Sequences that took up a slot since the previous call."""
        seats, self._seats = tuple(self._seats), []
        return seats

    def drawn(self, plan: Plan, repeats: bool) -> tuple[str, int]:
        """The cells of the latest plan, and how many of its rows compute known tokens.

        A plan that repeats the rows of the one before it has no changes.
        """
        if repeats:
            self._preempted, self._found = [], []
        if plan.rows is not self._drawn:
            self._draw(plan)
            self._drawn = None if self._preempted or self._found else plan.rows
        return self._text, self._prompts

    def _draw(self, plan: Plan) -> None:
        table, rows, slot = self._table, plan.rows, plan.rows.slot
        cells = np.full(table.capacity, KIND[VACANT], np.uint8)
        cells[self._preempted] = KIND[PREEMPTED]
        cells[table.order] = KIND[IDLE]
        kinds = np.where(rows.drafts > 0, KIND[DRAFTS], KIND[DECODE])
        kinds[plan.start < table.prompt[slot]] = KIND[PREFILL]
        # The last known token is computed for the first time, also after a preemption.
        kinds[self._resumed[slot] & (plan.start < table.given[slot] - 1)] = KIND[AGAIN]
        self._prompts = int(np.count_nonzero((kinds == KIND[PREFILL]) | (kinds == KIND[AGAIN])))
        cells[slot] = kinds
        cells[[one for one in self._found if cells[one] == KIND[PREFILL]]] = KIND[CACHED]
        used: Index = np.flatnonzero(cells != KIND[VACANT])
        last = int(used[-1]) + 1 if len(used) else 0
        self._text = cells[:last].tobytes().decode("ascii")

"""Read from the scheduler what each step did and why, into a history."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from paceline.cli.history import Blocked, Cell, Column, End, History, Kind, Levels, Note
from paceline.core.events import BlockRemoved, BlockStored
from paceline.core.plan import Admitted, Outputs, Plan
from paceline.sched.journal import Gate, Spell
from paceline.sched.scheduler import Scheduler


def tokens(count: int) -> str:
    return f"{count} token" + ("" if count == 1 else "s")


def blocks(count: int) -> str:
    return f"{count} block" + ("" if count == 1 else "s")


def names_of(plan: Plan) -> list[str]:
    """Request ids of the rows, in order."""
    names: list[str] = plan.rows.request_id.tolist()
    return names


class Observer:
    """Looks on; changes nothing. Cached blocks are counted from the scheduler's cache events."""

    def __init__(self, scheduler: Scheduler, history: History) -> None:
        self._scheduler = scheduler
        self._history = history
        self._given: dict[str, int] = {}  # tokens each resident was admitted with
        self._resumed: dict[str, bool] = {}
        self._findable: dict[bytes, None] = {}
        self._spell: Spell | None = None
        self._drafted = self._accepted = 0  # drafts, as of the step before

    # -- a step was planned -------------------------------------------------

    def planned(
        self, plan: Plan, now: float, notes: Sequence[Note], ended: dict[str, Kind]
    ) -> None:
        """Add a column. `notes` and `ended` are what happened before the step was planned."""
        state = self._scheduler.snapshot()
        cells = {name: Cell(kind) for name, kind in ended.items()}
        cells |= self._cells_without_rows(plan, state)
        cells |= self._cells_with_rows(plan)
        column = Column(
            step=plan.step,
            time=now,
            total=plan.total,
            levels=self._levels(state),
            cells=cells,
            notes=[*notes, *self._notes(plan, state)],
            blocked=self._blocked(plan.step, state),
        )
        self._history.columns.append(column)
        for name in plan.preempted:
            self._history.preemptions[name] += 1

    def _cells_with_rows(self, plan: Plan) -> dict[str, Cell]:
        cached = {new.request.id: new.computed for new in plan.admitted}
        for new in plan.admitted:
            self._given[new.request.id] = len(new.tokens)
            self._resumed[new.request.id] = new.resumed
        rows = plan.rows
        cells: dict[str, Cell] = {}
        for row, name in enumerate(names_of(plan)):
            hit = cached.get(name, 0)
            kind = self._kind(name, int(plan.start[row]), hit, int(rows.drafts[row]))
            cells[name] = Cell(kind, int(rows.count[row]), hit)
        return cells

    def _kind(self, name: str, start: int, hit: int, drafts: int) -> Kind:
        if start >= self._given[name]:
            return Kind.DRAFTED if drafts else Kind.DECODE
        if self._resumed[name]:
            return Kind.AGAIN
        return Kind.HIT if hit else Kind.PREFILL

    def _cells_without_rows(self, plan: Plan, state: dict[str, Any]) -> dict[str, Cell]:
        cells = {name: Cell(Kind.WAITING) for name in state["waiting"]}
        cells |= {name: Cell(Kind.PARKED) for name in state["parked"]}
        cells |= {name: Cell(Kind.IDLE) for name in state["running"]}
        cells |= {name: Cell(Kind.PREEMPTED) for name in plan.preempted if name in cells}
        ends = self._history.ends
        late = [name for name in plan.finished if name not in ends]
        for name in late:
            ends[name] = End("error", plan.step)
        return cells | {name: Cell(Kind.REFUSED) for name in late}

    def _levels(self, state: dict[str, Any]) -> Levels:
        for event in self._scheduler.cache_events():
            if isinstance(event, BlockStored):
                self._findable[event.key] = None
            elif isinstance(event, BlockRemoved):
                del self._findable[event.key]
        pool = self._scheduler.residency.cache.pool
        cached = sum(pool.free_among(pool.find([key])) for key in self._findable)
        holders: Counter[int] = Counter()
        for request in state["requests"].values():
            holders.update(request["blocks"][0])
        shared = sum(1 for count in holders.values() if count > 1)
        free = state["free_blocks"]
        held = state["total_blocks"] - free - shared
        return Levels(shared, held, cached, free - cached)

    # -- in words -----------------------------------------------------------

    def _notes(self, plan: Plan, state: dict[str, Any]) -> list[Note]:
        notes = [
            Note(Kind.PREEMPTED, f"{name} is preempted for {self._cause(name)}")
            for name in plan.preempted
        ]
        filling = self._filling(plan, state)
        return notes + [self._joining(new, filling) for new in plan.admitted]

    def _cause(self, name: str) -> str:
        life = self._scheduler.residency.live[name].life
        return next(
            (moment.cause for moment in reversed(life) if moment.cause),
            "a reason that was not given",
        )

    def _filling(self, plan: Plan, state: dict[str, Any]) -> dict[int, str]:
        """Who computes which blocks in this very step."""
        size = self._history.rules.block_size
        filling: dict[int, str] = {}
        for row, name in enumerate(names_of(plan)):
            start, count = int(plan.start[row]), int(plan.rows.count[row])
            table: list[int] = state["requests"][name]["blocks"][0]
            first, end = start // size, -(-(start + count) // size)
            filling |= dict.fromkeys(table[first:end], name)
        return filling

    def _joining(self, new: Admitted, filling: dict[int, str]) -> Note:
        name, known, hit = new.request.id, len(new.tokens), new.computed
        kind = Kind.AGAIN if new.resumed else Kind.HIT if hit else Kind.PREFILL
        verb = "resumes" if new.resumed else "joins"
        if not hit:
            return Note(kind, f"{name} {verb}: {tokens(known)} to compute")
        found = new.blocks[: hit // self._history.rules.block_size]
        partners = dict.fromkeys(filling[block] for block in found if block in filling)
        if partners:
            where = f"shared with {' and '.join(partners)}, computed in this very step"
        else:
            where = "still in the cache" if new.resumed else "in the cache"
        return Note(kind, f"{name} {verb}: {hit} of its {tokens(known)} are {where}")

    def _blocked(self, step: int, state: dict[str, Any]) -> Blocked | None:
        spells = self._scheduler.residency.journal.spells
        if not state["waiting"] or not spells:
            self._spell = None
            return None
        previous = self._history.columns[-1].blocked if self._history.columns else None
        spell = spells[-1]
        if spell is self._spell and previous is not None:
            return Blocked(previous.text, previous.since)
        self._spell = spell
        return Blocked(self._why(spell.gate), step)

    def _why(self, gate: Gate) -> str:
        rules, name = self._history.rules, gate.request_id
        head = f"{name} is next (it waited longest)" if gate.aged else f"{name} is next"
        match gate.reason:
            case "budget":
                return f"{head}, but the step's {rules.budget} tokens are spent"
            case "seqs":
                return f"{head}, but all {rules.slots} slots are taken"
            case "blocks":
                return f"{head}, but {blocks(gate.short)} short"
            case "preempted":
                return f"{head}, but nobody is admitted in a step that preempts"
            case reason:
                return f"{head}, but admission is {reason}"

    # -- its result came ----------------------------------------------------

    def committed(self, plan: Plan, outputs: Outputs) -> None:
        """Mark the cells of the step with what came of them."""
        history, step = self._history, plan.step
        there = set(outputs.request_id.tolist())
        for name in names_of(plan):
            if name not in there:
                history.amend(step, name, dropped=True)
        notes = history.column(step).notes
        for name, count in zip(outputs.request_id.tolist(), outputs.count.tolist(), strict=True):
            history.yielded[name] += count
        self._note_drafts(notes)
        for end in outputs.finished:
            name = end.request_id
            if end.message:
                end_step = history.ends[name].step
                refusal = Note(Kind.REFUSED, f"{name} is refused: {end.message}")
                history.column(end_step).notes.append(refusal)
                continue
            history.amend(step, name, ended=True)
            history.ends[name] = End(end.finish.value, step)
            output = tokens(history.yielded[name])
            notes.append(Note(Kind.LAST, f"{name} ends ({end.finish.value}) after {output}"))

    def _note_drafts(self, notes: list[Note]) -> None:
        stats = self._scheduler.stats
        drafted, accepted = stats.drafted - self._drafted, stats.accepted - self._accepted
        self._drafted, self._accepted = stats.drafted, stats.accepted
        if drafted:
            notes.append(Note(Kind.DRAFTED, f"{accepted} of {drafted} drafts are right"))

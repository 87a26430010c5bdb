"""Observe a running scheduler, and add what each step did and why to a history."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.core.events import BlockRemoved, BlockStored, Happened
from paceline.core.plan import Admitted, Ended, Outputs, Plan
from paceline.core.request import child_label
from paceline.sched.explain.journal import Spell
from paceline.sched.scheduler import Scheduler
from paceline.viewer.play.history import (
    Blocked,
    Cell,
    Column,
    CopiedBlocks,
    End,
    History,
    Kind,
    Levels,
    Note,
    line_of,
    spoken,
)
from paceline.viewer.play.plan_notes import Arrival, Notes, ending, varies

QUEUES = {
    "waiting": Kind.WAITING,
    "parked": Kind.PARKED,
    "swapped": Kind.ON_HOST,
    "running": Kind.IDLE,
}


@dataclass(frozen=True, slots=True)
class Member:
    """A sequence in a snapshot."""

    request: str
    child: int  # -1: the only one of its request
    blocks: tuple[int, ...]

    @property
    def line(self) -> str:
        return line_of(self.request, self.child)


def members_of(state: dict[str, Any]) -> dict[str, list[Member]]:
    """The sequences of each request in a snapshot, the leader first."""
    found: dict[str, list[Member]] = {}
    for name, request in state["requests"].items():
        each: dict[str, Any] = request.get("children") or {"-1": request}
        pairs = [(int(child), tuple(one["blocks"][0])) for child, one in each.items()]
        found[name] = [Member(name, child, blocks) for child, blocks in pairs]
    return found


class Observer:
    """Changes nothing. It counts cached blocks from the scheduler's cache events."""

    def __init__(self, scheduler: Scheduler, history: History) -> None:
        self._scheduler = scheduler
        self._history = history
        self._notes = Notes(scheduler, history.rules)
        self._owners: dict[str, tuple[str, int]] = {}  # request and child, by row label
        for one in history.asked:
            children = range(one.width) if one.width > 1 else [-1]
            self._owners |= {child_label(one.id, child): (one.id, child) for child in children}
        self._given: dict[str, int] = {}  # tokens that each resident was admitted with, by line
        self._resumed: dict[str, bool] = {}  # by line
        self._reached: dict[str, int] = {}  # positions that rows have computed, by line
        self._before: dict[str, int] = {}  # of these, those before the last preemption
        self._yielded: Counter[str] = Counter()  # tokens reported, by line
        self._shown: dict[str, list[str]] = {}  # lines of each request in the latest column
        self._findable: dict[bytes, None] = {}
        self._spell: Spell | None = None
        self._drafted = self._accepted = 0  # drafts, as of the step before

    # -- a step was planned -------------------------------------------------

    def planned(
        self, plan: Plan, now: float, notes: Sequence[Note], ended: dict[str, Kind]
    ) -> None:
        """Add a column. `notes` and `ended` are what happened before the step was planned."""
        state = self._scheduler.snapshot()
        members = members_of(state)
        arrivals = [self._arrival(new, members, plan.step) for new in plan.admitted]
        cells = self._cells_of_the_gone(plan, ended)
        cells |= self._cells_without_rows(plan, state, members)
        cells |= {one.line: Cell(one.kind) for one in arrivals}
        cells |= self._cells_with_rows(plan, arrivals)
        column = Column(
            step=plan.step,
            time=now,
            total=plan.total,
            levels=self._levels(state, members),
            cells=cells,
            notes=[*notes, *self._notes.of(plan, arrivals, self._filling(plan, members))],
            blocked=self._blocked(plan),
            kind=plan.kind if len(plan.rows) and plan.kind != "mixed" else "",
            moves=CopiedBlocks(len(plan.copies), len(plan.swap_out), len(plan.swap_in)),
        )
        self._history.columns.append(column)
        for name in plan.preempted:
            self._history.preemptions[name] += 1

    def _arrival(self, new: Admitted, members: dict[str, list[Member]], step: int) -> Arrival:
        name, child = self._owners[new.request.id]
        line, leads = line_of(name, child), members[name][0].child == child
        if self._notes.moment(name, Happened.RETURNED, step):
            kind = Kind.RETURNED
        elif new.computed == len(new.tokens):  # others have at least a token left to compute
            kind = Kind.REPLACED
        elif not leads and line not in self._given:
            kind = Kind.FORKED
        elif new.resumed:
            kind = Kind.AGAIN
        else:
            kind = Kind.HIT if new.computed else Kind.PREFILL
        self._given[line] = len(new.tokens)
        self._resumed[line] = new.resumed
        if new.resumed:  # the last token that it knows was never computed
            self._reached[line] = min(self._reached.get(line, 0), len(new.tokens) - 1)
            self._before[line] = self._reached[line]
        return Arrival(new, name, child, kind, leads)

    def _cells_with_rows(self, plan: Plan, arrivals: Sequence[Arrival]) -> dict[str, Cell]:
        came = {one.line: one for one in arrivals}
        rows = plan.rows
        cells: dict[str, Cell] = {}
        for row, line in enumerate(self._lines(plan)):
            start, count, drafts = int(plan.start[row]), int(rows.count[row]), int(rows.drafts[row])
            again = self._again(line, start, start + count)
            if one := came.get(line):
                found = one.new.computed if one.kind in (Kind.HIT, Kind.AGAIN) else 0
                cells[line] = Cell(one.kind, count, found, again)
            else:
                cells[line] = Cell(self._kind(line, start, drafts), count, again=again)
        return cells

    def _again(self, line: str, start: int, end: int) -> int:
        """Positions from `start` to `end` that had been computed before a preemption."""
        self._reached[line] = max(self._reached.get(line, 0), end)
        return max(min(end, self._before.get(line, 0)) - start, 0)

    def _lines(self, plan: Plan) -> list[str]:
        """The line of each row, in order."""
        return [line_of(*self._owners[label]) for label in plan.rows.labels]

    def _kind(self, line: str, start: int, drafts: int) -> Kind:
        """What a row of a resident sequence does."""
        if start >= self._given[line]:
            return Kind.DRAFTED if drafts else Kind.DECODE
        return Kind.AGAIN if self._resumed[line] else Kind.PREFILL

    def _cells_of_the_gone(self, plan: Plan, ended: dict[str, Kind]) -> dict[str, Cell]:
        """Cells of requests that ended between two steps, on the lines that they had."""
        ends, gone = self._history.ends, dict(ended)
        for name in plan.finished:
            if name not in ends:
                ends[name] = End("timeout", plan.step)
                gone[name] = Kind.REFUSED
        return {
            line: Cell(kind)
            for name, kind in gone.items()
            for line in self._shown.get(name, [name])
        }

    def _cells_without_rows(
        self, plan: Plan, state: dict[str, Any], members: dict[str, list[Member]]
    ) -> dict[str, Cell]:
        """Cells of all live requests. A sequence has no line before it has forked."""
        cells: dict[str, Cell] = {}
        self._shown = {}
        for queue, kind in QUEUES.items():
            for name in state[queue]:
                first, *others = members[name]
                born = [one.line for one in others if one.line in self._given]
                self._shown[name] = [first.line, *born]
                cells |= {line: Cell(kind) for line in self._shown[name]}
        for name in (one for one in plan.preempted if one in members):
            kind = Kind.SWAPPED if name in state["swapped"] else Kind.PREEMPTED
            cells |= {line: Cell(kind) for line in self._shown[name]}
        return cells

    def _levels(self, state: dict[str, Any], members: dict[str, list[Member]]) -> Levels:
        for event in self._scheduler.cache_events():
            if isinstance(event, BlockStored):
                self._findable[event.key] = None
            elif isinstance(event, BlockRemoved):
                del self._findable[event.key]
        cached = self._scheduler.view.free_cached(self._findable)
        holders: Counter[int] = Counter()
        for family in members.values():
            for one in family:
                holders.update(one.blocks)
        shared = sum(1 for count in holders.values() if count > 1)
        free = state["free_blocks"]
        held = state["total_blocks"] - free - shared
        host = self._history.rules.host_blocks - state["host_free_blocks"]
        return Levels(shared, held, cached, free - cached, host)

    def _filling(self, plan: Plan, members: dict[str, list[Member]]) -> dict[int, str]:
        """The request that computes each block in this step."""
        size = self._history.rules.block_size
        tables = {one.line: one.blocks for family in members.values() for one in family}
        filling: dict[int, str] = {}
        for row, line in enumerate(self._lines(plan)):
            start, count = int(plan.start[row]), int(plan.rows.count[row])
            first, end = start // size, -(-(start + count) // size)
            name: str = plan.rows.request_id[row]
            filling |= dict.fromkeys(tables[line][first:end], name)
        return filling

    def _blocked(self, plan: Plan) -> Blocked | None:
        spell, gate = self._scheduler.view.open_spell, self._scheduler.gate
        if spell is None or gate is None:
            self._spell = None
            return None
        previous = self._history.columns[-1].blocked if self._history.columns else None
        if spell is not self._spell:
            self._spell, previous = spell, None
        left = self._history.rules.budget - plan.total
        text = self._notes.blocked(gate, left)
        if previous is not None and (previous.varies or previous.text == text):
            return previous
        return Blocked(text, plan.step, varies(gate, left))

    # -- a step was committed -----------------------------------------------

    def committed(self, plan: Plan, outputs: Outputs) -> None:
        """Add the results to the cells of the step."""
        history, step = self._history, plan.step
        notes = history.column(step).notes
        columns = outputs.request_id.tolist(), outputs.child.tolist(), outputs.count.tolist()
        dropped = dict.fromkeys(self._lines(plan))
        self._note_drafts(notes)
        for name, child, count in zip(*columns, strict=True):
            line = line_of(name, child)
            del dropped[line]
            history.yielded[name] += count
            self._yielded[line] += count
            if not self._here(name, child):
                history.amend(step, line, ended=True)
                self._leave(name, child, notes)
        for line in dropped:
            history.amend(step, line, dropped=True)
        for end in outputs.finished:
            self._end(end, step)

    def _here(self, name: str, child: int) -> bool:
        """Is a sequence that was in the step still running?"""
        view = self._scheduler.view
        return view.is_live(name) if child < 0 else child in view.children(name)

    def _leave(self, name: str, child: int, notes: list[Note]) -> None:
        """A sequence has ended; clients may get its tokens later."""
        self._shown[name] = [one for one in self._shown[name] if one != line_of(name, child)]
        if self._scheduler.view.is_silent(name):
            text = f"{spoken(name, child)} ends; the best are returned when all have ended"
            notes.append(Note(Kind.LAST, text))

    def _end(self, end: Ended, step: int) -> None:
        """A request has ended, or a sequence whose tokens were reported as they came."""
        history, name = self._history, end.request_id
        notes = history.column(step).notes
        if end.child >= 0:
            if not end.message:
                notes.append(ending(end, self._yielded[line_of(name, end.child)]))
        elif end.message:
            refusal = Note(Kind.REFUSED, f"{name} is refused: {end.message}")
            history.column(history.ends[name].step).notes.append(refusal)
        else:
            history.ends[name] = End(end.finish.value, step)
            for line in self._shown[name]:  # beams that ended in an earlier step
                history.amend(step, line, ended=True)
            history.yielded[name] += sum(len(one.tokens) for one in end.choices)
            if end.choices or name in self._owners:  # not if each sequence was reported
                notes.append(ending(end, history.yielded[name]))

    def _note_drafts(self, notes: list[Note]) -> None:
        stats = self._scheduler.stats
        drafted, accepted = stats.drafted - self._drafted, stats.accepted - self._accepted
        self._drafted, self._accepted = stats.drafted, stats.accepted
        if drafted:
            notes.append(Note(Kind.DRAFTED, f"{accepted} of {drafted} drafts are right"))

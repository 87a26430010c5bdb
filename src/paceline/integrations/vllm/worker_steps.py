"""Converts plans to steps of vLLM's workers, and what they return to our results."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from paceline.core.arrays import I32
from paceline.core.plan import NO_ROWS, Ended, Grown, Plan, Rows, StepResult
from paceline.core.settings.config import Config
from paceline.sched.scheduler import Scheduler

NULL_BLOCKS = 1  # vLLM keeps block 0 for itself, so that our block 0 is its block 1

BlockIds = tuple[list[int]]  # of the one group
Tokens = list[int]


@dataclass(frozen=True, slots=True, eq=False)
class NamedRows:
    """The rows of a step by request id. Steps that share their rows share this."""

    rows: Rows
    ids: list[str]
    tokens: dict[str, int]  # positions of each row, in the order of the rows
    row_of: dict[int, int]  # by slot

    @staticmethod
    def of(rows: Rows) -> "NamedRows":
        ids = rows.request_id.tolist()
        tokens = dict(zip(ids, rows.count.tolist(), strict=True))
        row_of = {slot: row for row, slot in enumerate(rows.slot.tolist())}
        return NamedRows(rows, ids, tokens, row_of)


NO_NAMED_ROWS = NamedRows.of(NO_ROWS)


@dataclass(frozen=True, slots=True)
class NewRow:
    """The first row of a request."""

    id: str
    blocks: BlockIds
    computed: int


@dataclass(frozen=True, slots=True)
class LaterRows:
    """Rows of requests that workers know, in columns."""

    ids: list[str]
    resumed: set[str]  # requests whose blocks replace those that workers know
    absent: list[str]  # had no row in the previous step, so that workers need their tokens
    blocks: list[BlockIds | None]  # new ones
    computed: list[int]
    outputs: list[int]  # tokens behind the prompt, with those that steps in flight sample


@dataclass(frozen=True, slots=True, eq=False)
class WorkerStep:
    """A plan in vLLM's form."""

    plan: Plan
    named: NamedRows
    tokens: dict[str, int]  # positions by request id, with drafts
    drafts: dict[str, Tokens]  # of requests that have some
    new: list[NewRow]
    later: LaterRows
    finished: set[str]  # requests that ended since the previous step


@dataclass(frozen=True, slots=True)
class Yielded:
    """What a step yielded. Requests that ended while it ran are left out."""

    ids: list[str]  # requests with new tokens
    tokens: list[Tokens]  # of each
    ended: tuple[Ended, ...]
    last: list[Tokens]  # every token of each request that ended; none if it had no row
    verified: list[tuple[int, int]]  # drafts of a row, and how many were right


class WorkerSteps:
    """Our scheduler, which plans and commits in vLLM's form.

    `_proposals` has draft tokens by request id until the next step, and `_finished` the requests
    that ended since the previous one.
    """

    def __init__(self, config: Config) -> None:
        self.scheduler = Scheduler(config)
        self._previous = NO_NAMED_ROWS
        self._proposals: dict[str, Tokens] = {}
        self._finished: set[str] = set()

    # -- requests -----------------------------------------------------------

    def abort(self, request_id: str, now: float) -> None:
        """End a request."""
        self.scheduler.abort(request_id, now)
        self.forget(request_id)

    def forget(self, request_id: str) -> None:
        """Let workers forget a request with the next step."""
        self._finished.add(request_id)

    @property
    def finished(self) -> set[str]:
        """Requests that ended and that no step has reported."""
        return self._finished

    @property
    def running(self) -> int:
        """Number of requests that hold blocks."""
        return self.scheduler.unfinished - self.scheduler.view.queued

    @property
    def waiting(self) -> int:
        """Number of requests that hold none, whatever they wait for."""
        return self.scheduler.view.queued

    def propose(self, request_id: str, drafts: Tokens) -> None:
        """Let the next step verify these drafts, as far as it has room for them."""
        self._proposals[request_id] = drafts

    # -- plans --------------------------------------------------------------

    def plan(self, now: float) -> WorkerStep:
        plan = self.scheduler.plan(now)
        previous = self._previous
        named = previous if plan.rows is previous.rows else NamedRows.of(plan.rows)
        self._previous = named
        tokens, drafts = named.tokens, self._take_drafts(named)
        if plan.rows.drafts.any():
            tokens = _positions(named, drafts)
        finished, self._finished = self._finished, set()
        new, later = self._divided(plan, named, previous)
        return WorkerStep(plan, named, tokens, drafts, new, later, finished)

    def _take_drafts(self, named: NamedRows) -> dict[str, Tokens]:
        """Drafts that were proposed for rows that verify some. Later steps need new proposals."""
        if not self._proposals:
            return {}
        proposals, self._proposals = self._proposals, {}
        room = zip(named.ids, named.rows.drafts.tolist(), strict=True)
        found = {name: proposals.get(name, [])[:most] for name, most in room if most}
        return {name: drafts for name, drafts in found.items() if drafts}

    def _divided(
        self, plan: Plan, named: NamedRows, previous: NamedRows
    ) -> tuple[list[NewRow], LaterRows]:
        """The rows of new requests, and those of requests that workers know."""
        blocks: list[BlockIds | None] = [None] * len(named.ids)
        for slot, added in _by_slot(plan.grown).items():
            blocks[named.row_of[slot]] = (added,)
        new: list[NewRow] = []
        resumed: set[str] = set()
        for one in plan.admitted:
            row, name = named.row_of[one.slot], one.request.id
            grown = blocks[row]
            all_blocks = [block + NULL_BLOCKS for block in one.blocks] + (grown[0] if grown else [])
            blocks[row] = (all_blocks,)
            if one.resumed:
                resumed.add(name)
            else:
                new.append(NewRow(name, (all_blocks,), one.computed))
        ids, computed = named.ids, plan.start.tolist()
        outputs = self.scheduler.view.outputs_ahead(plan.rows, plan.start).tolist()
        if new:
            left = {one.id for one in new}
            kept = [row for row, name in enumerate(ids) if name not in left]
            ids, blocks = [ids[row] for row in kept], [blocks[row] for row in kept]
            computed, outputs = [computed[row] for row in kept], [outputs[row] for row in kept]
        absent: list[str] = []
        if named is not previous:
            known = previous.tokens
            absent = [name for name in ids if name not in known or name in resumed]
        return new, LaterRows(ids, resumed, absent, blocks, computed, outputs)

    # -- results ------------------------------------------------------------

    def commit(
        self, step: WorkerStep, sampled: Sequence[Tokens], indexes: Mapping[str, int], now: float
    ) -> Yielded:
        """Record the tokens of each request: those at its index in `sampled`."""
        ids = step.named.ids
        found = [sampled[indexes[name]] for name in ids]
        result = _result(step, found)
        outputs = self.scheduler.commit(step.plan, result, now)
        self._finished.update(end.request_id for end in outputs.finished)
        rows = range(len(ids)) if outputs.row is None else outputs.row.tolist()
        verified = [
            (len(step.drafts[ids[row]]), len(found[row]) - 1)
            for row in (rows if step.drafts else ())
            if ids[row] in step.drafts
        ]
        if outputs.finished or outputs.row is not None or not result.count.all():
            pairs = zip(rows, outputs.count.tolist(), strict=True)
            cut = {ids[row]: found[row][:count] for row, count in pairs if count}
            ids, found = list(cut), list(cut.values())
        return Yielded(ids, found, outputs.finished, self._last(step, outputs.finished), verified)

    def _last(self, step: WorkerStep, ended: tuple[Ended, ...]) -> list[Tokens]:
        """Every token of the requests that ended with a step."""
        if not ended:
            return []
        slots = dict(zip(step.named.ids, step.named.rows.slot.tolist(), strict=True))
        tokens_in = self.scheduler.view.tokens_in
        names = [end.request_id for end in ended]
        return [tokens_in(slots[name]).tolist() if name in slots else [] for name in names]


def _by_slot(grown: Grown) -> dict[int, list[int]]:
    """New blocks by slot, in vLLM's numbers."""
    found: dict[int, list[int]] = {}
    if len(grown.slot):
        blocks: list[int] = (grown.block + NULL_BLOCKS).tolist()
        for slot, block in zip(grown.slot.tolist(), blocks, strict=True):
            found.setdefault(slot, []).append(block)
    return found


def _positions(named: NamedRows, drafts: Mapping[str, Tokens]) -> dict[str, int]:
    """Positions of each row, with as many drafts as were proposed."""
    least = (named.rows.count - named.rows.drafts).tolist()
    rows = zip(named.ids, least, strict=True)
    return {name: count + len(drafts.get(name, ())) for name, count in rows}


def _result(step: WorkerStep, found: list[Tokens]) -> StepResult:
    """The tokens of each row as a result of the plan."""
    rows = step.plan.rows
    drafts: I32 | None = None
    if rows.drafts.any():
        drafts = np.array([len(step.drafts.get(name, ())) for name in step.named.ids], np.int32)
    elif rows.samples.all():
        with suppress(ValueError):  # a row has no token, or several: the commit says which
            ids = np.array([token for (token,) in found], np.int32).reshape(-1, 1)
            return StepResult(ids, np.ones(len(found), np.int32))
    count = np.where(rows.samples, np.array([len(tokens) for tokens in found], np.int32), 0)
    ids = np.full((len(found), max(int(count.max()), 1)), -1, np.int32)
    for row, tokens in enumerate(found):
        ids[row, : count[row]] = tokens[: count[row]]
    return StepResult(ids, count, computed_drafts=drafts)

"""The requests whose output follows a grammar: compiling, masks, and the tokens they accept."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from typing import Protocol

import numpy as np

from paceline.core.arrays import I32, NO_INDEX, Index
from paceline.core.constraint import Constraint
from paceline.core.errors import PacelineError, RequestError
from paceline.core.masks import MaskRows
from paceline.core.plan import Admitted, Failed, Forced, Plan, Rows, StepResult
from paceline.core.request import Request, child_label
from paceline.engine.grammar.slot_grammars import GrammarState, SlotGrammars
from paceline.engine.loop.messages import EngineFailed
from paceline.structured.backend import Grammar
from paceline.structured.compile_queue import GrammarCounts

FOREVER = 2**31 - 1
ROWS_PER_TOKEN = 8  # of a step, for each step that a row must save by a jump
PARKED_FOR = "grammar"  # the reason for which a request is parked while its grammar is compiled


class ConstraintCompiler(Protocol):
    """Compiles constraints off the engine's thread."""

    def submit(self, constraint: Constraint, client: str = "") -> Future[Grammar]:
        """The grammar, or a RequestError that says what is wrong. It may be cancelled. Clients
        take turns."""
        ...

    @property
    def counts(self) -> GrammarCounts:
        """What it has done since its start."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class ConstrainedRequest:
    """A request with a constraint, from its submission to its end."""

    request: Request
    compiled: Future[Grammar]
    slots: dict[int, str] = field(default_factory=dict[int, str])  # where its sequences are
    # Sequences that are in no slot, by label: they keep the tokens that they have.
    away: dict[str, GrammarState] = field(default_factory=dict[str, GrammarState])

    @property
    def labels(self) -> list[str]:
        """The names that plans give its sequences."""
        children = range(self.request.width) if self.request.width > 1 else (-1,)
        return [child_label(self.request.id, child) for child in children]


@dataclass(frozen=True, slots=True, eq=False)
class Parent:
    """A beam that others may go on from."""

    one: ConstrainedRequest
    outputs: list[int]
    state: GrammarState

    def has(self, one: ConstrainedRequest, outputs: list[int]) -> bool:
        return self.one is one and self.outputs == outputs

    def fork(self) -> GrammarState:
        return replace(self.state, matcher=self.state.matcher.fork())


class ConstrainedRequests:
    """Keeps the grammars of open requests, and gives the runner its masks: see `TokenMasks`.

    All methods are for the engine's thread. The runner calls `wants` and `fill` within `launch` and
    `wait`.
    """

    def __init__(self, compiler: ConstraintCompiler, words: int, eos: tuple[int, ...]) -> None:
        """`words` is the length of a mask in 32-bit words, `eos` the end tokens of the model."""
        self._compiler = compiler
        self._open: dict[str, ConstrainedRequest] = {}
        self._labels: dict[str, ConstrainedRequest] = {}
        self._owner: dict[int, ConstrainedRequest] = {}  # by slot
        self._slots = SlotGrammars(words, eos)
        self._beams: dict[int, list[int]] = {}  # outputs of beams, by slot
        self._latest: Rows | None = None  # the rows that were looked at last
        self._wanted: Index = NO_INDEX  # of these, those that sample under a constraint

    # -- requests come and go -------------------------------------------------

    parked_for = PARKED_FOR

    def concerns(self, request: Request) -> bool:
        return request.constraint is not None

    def begin(self, request: Request, ready: Callable[[str], None]) -> bool:
        """Compile the constraint of a request. Returns whether that has ended already; if not,
        `ready` is called with its id when it has, on any thread."""
        assert request.constraint is not None
        compiled = self._compiler.submit(request.constraint, request.tenant)
        one = self._open[request.id] = ConstrainedRequest(request, compiled)
        self._labels.update(dict.fromkeys(one.labels, one))
        if compiled.done():
            return True
        compiled.add_done_callback(lambda _: ready(request.id))
        return False

    def is_pending(self, request_id: str) -> bool:
        one = self._open.get(request_id)
        return one is not None and not one.compiled.done()

    @property
    def any_open(self) -> bool:
        return bool(self._open)

    def figures(self) -> dict[str, float]:
        """Requests that wait for their grammar, and what the compiler has done."""
        waiting = sum(not one.compiled.done() for one in self._open.values())
        return {"waiting_for_grammar": waiting, **asdict(self._compiler.counts)}

    def is_done(self, request_id: str) -> bool:
        """Whether compiling a request's constraint has ended, well or badly."""
        one = self._open.get(request_id)
        return one is not None and one.compiled.done()

    def refusal(self, request_id: str) -> PacelineError | None:
        """Why the constraint of a request was not compiled; None if it was."""
        compiled = self._open[request_id].compiled
        if compiled.cancelled():
            return EngineFailed("the engine is shut down")
        error = compiled.exception()
        if error is None or isinstance(error, RequestError):
            return error
        return EngineFailed(f"the constraint cannot be compiled: {error}")

    def forget(self, request_id: str) -> None:
        """A request has ended, in any state; ignored if it has no constraint."""
        one = self._open.pop(request_id, None)
        if one is not None:
            one.compiled.cancel()
            for label in one.labels:
                del self._labels[label]
            for slot in tuple(one.slots):
                self._leave(slot)

    def close(self) -> None:
        for request_id in tuple(self._open):
            self.forget(request_id)
        self._compiler.close()

    # -- steps ----------------------------------------------------------------

    def follow(self, plan: Plan) -> None:
        """A plan is launched: sequences take up slots and give them up.

        A beam that goes on from another is admitted anew with all its tokens; the latest token of
        each beam is a chosen one.
        """
        if not self._labels and not self._owner:
            return
        parents = [
            Parent(self._owner[slot], outputs, self._slots.state(slot))
            for slot, outputs in self._beams.items()
        ]
        for slot in plan.released:
            if slot in self._owner:
                self._leave(slot)
        for new in plan.admitted:
            if (one := self._labels.get(new.request.id)) is not None:
                self._enter(new, one, parents)
        for slot, tokens in plan.chosen:
            if slot in self._beams:
                self._slots.advance(slot, [*tokens])
                self._beams[slot] += tokens

    def _enter(self, new: Admitted, one: ConstrainedRequest, parents: list[Parent]) -> None:
        tokens: list[int] = new.tokens[len(new.request.prompt) :].tolist()
        if new.request.beam_width:
            state = next((beam.fork() for beam in parents if beam.has(one, tokens)), None)
            self._beams[new.slot] = tokens
        else:
            state = one.away.pop(new.request.id, None)
        state = state or GrammarState(one.compiled.result().matcher())
        if state.outputs > len(tokens):  # the latest one did not count: it was lost with its step
            state.matcher.rollback(state.outputs - len(tokens))
            state = replace(state, outputs=len(tokens))
        request = one.request
        least = FOREVER if request.ignore_eos else request.min_tokens
        self._slots.reach(new.slot)
        self._slots.enter(new.slot, state, least, may_jump(request))
        self._slots.advance(new.slot, tokens[state.outputs :])
        self._owner[new.slot] = one
        one.slots[new.slot] = new.request.id
        self._latest = None

    def _leave(self, slot: int) -> None:
        one = self._owner.pop(slot)
        label, state = one.slots.pop(slot), self._slots.leave(slot)
        if self._beams.pop(slot, None) is None:
            one.away[label] = state
        self._latest = None

    def wants(self, plan: Plan) -> bool:
        return bool(len(self._rows(plan.rows)))

    def write_into(self, bits: I32) -> None:
        self._slots.write_into(bits)

    def fill(self, plan: Plan, order: Index, drafts: I32 | None = None) -> MaskRows | None:
        if not self.wants(plan):
            return None
        slot = plan.rows.slot[order]
        lane = self._slots.lane[slot]
        held = np.flatnonzero(lane >= 0)
        if not len(held):
            return None
        if drafts is not None:
            return self._fill_drafts(slot, held, drafts)
        self._slots.refresh(slot[held])
        return MaskRows(held, lane[held], self._slots.bits)

    def _fill_drafts(self, slot: Index, held: Index, drafts: I32) -> MaskRows:
        """The masks of rows with drafts, one after the other."""
        width, lines = 1 + drafts.shape[1], list[int]()
        bits = self._slots.reserve(len(held) * width)
        for row in held.tolist():
            given = proposed(drafts[row])
            own = bits[len(lines) : len(lines) + 1 + len(given)]
            allowed = self._slots.fill(int(slot[row]), own, given)
            lines += range(row * width, row * width + 1 + allowed)
        self._slots.fresh[:] = False  # other masks stand in their rows
        return MaskRows(np.array(lines, np.intp), np.arange(len(lines)), self._slots.bits)

    def accept(self, plan: Plan, result: StepResult, ahead: I32) -> StepResult:
        """Advance the grammars by the tokens of a step, before it is committed. `ahead` has the
        positions of each row that are handed out behind this step; -1: its sample does not count.

        A row whose token the grammar does not allow, or that had no mask, fails. Where a grammar
        allows one token alone, that is added, and what follows it likewise.
        """
        rows, slots = plan.rows, self._slots
        own = self._rows(rows)
        own = own[ahead[own] >= 0]
        due = own[result.count[own] > 0]
        if self._beams:  # the host chooses their tokens: see `follow`
            due = due[[slot not in self._beams for slot in rows.slot[due].tolist()]]
        slot, first = rows.slot[due], result.ids[due, 0]
        usual = (result.count[due] == 1) & slots.usual(slot, first)
        if usual.any():
            slots.advance_each(slot[usual], first[usual])
            result = self._with_forced(result, due[usual], slot[usual], ahead)
        for row in due[~usual].tolist():
            slots.advance(int(rows.slot[row]), result.ids[row, : result.count[row]].tolist())
        if result.failed:
            result = self._explained(plan, result, own)
        if not slots.has_errors:
            return result
        errors = {row: slots.error(int(rows.slot[row])) for row in own.tolist()}
        return failing(result, [Failed(row, error) for row, error in errors.items() if error])

    def _with_forced(self, result: StepResult, row: Index, slot: Index, ahead: I32) -> StepResult:
        """Add tokens that are forced, where that saves time. A step in which a row computes several
        tokens takes longer for all rows, so the more rows there are, the more it must save.

        Without drafts, a row has one position ahead at most: the step that computes it samples the
        first forced token anyway. With drafts, no one knows yet which tokens it will have.
        """
        slots = self._slots
        may = slots.jumps[slot] & slots.going[slot] & (ahead[row] <= 1)
        if not may.any():
            return result
        row_of = dict(zip(slot[may].tolist(), row[may].tolist(), strict=True))
        found: list[Forced] = []
        for one, token in slots.forced(slot[may], ahead[row[may]]).items():
            tokens = slots.jump(one, token)
            saved = len(tokens) - ahead[row_of[one]]
            if saved > len(ahead) // ROWS_PER_TOKEN or not slots.going[one]:
                found.append(Forced(row_of[one], tuple(tokens)))
                slots.jumped(one)
            else:
                slots.take_back(one, len(tokens))
        return replace(result, forced=tuple(found)) if found else result

    def _explained(self, plan: Plan, result: StepResult, own: Index) -> StepResult:
        """The result without failures that are a grammar's, which `accept` reports itself."""
        suspects = {one.row for one in result.failed} & {*own.tolist()}
        blamed = {row for row in suspects if self._slots.explain(int(plan.rows.slot[row]))}
        if not blamed:
            return result
        return replace(result, failed=tuple(one for one in result.failed if one.row not in blamed))

    def _rows(self, rows: Rows) -> Index:
        """Rows that sample under a constraint. Steady steps share their rows."""
        if self._latest is not rows:
            self._latest = rows
            self._slots.reach(int(rows.slot.max(initial=0)))
            self._wanted = np.flatnonzero(rows.samples & (self._slots.lane[rows.slot] >= 0))
        return self._wanted


def failing(result: StepResult, failed: list[Failed]) -> StepResult:
    """The result, in which these rows fail too."""
    if not failed:
        return result
    ids, count = result.ids.copy(), result.count.copy()
    for one in failed:
        ids[one.row], count[one.row] = -1, 0
    rows = {one.row for one in failed}
    forced = tuple(one for one in result.forced if one.row not in rows)
    failures = (*result.failed, *failed)
    return replace(result, ids=ids, count=count, failed=failures, forced=forced)


def may_jump(request: Request) -> bool:
    """Whether tokens may be appended that no step has sampled: nothing depends on their logits."""
    sampling = request.sampling
    is_scored = sampling.logprobs is not None or request.silent
    is_restricted = bool(sampling.bad_token_ids) or sampling.allowed_token_ids is not None
    return not (is_scored or is_restricted or sampling.penalised)


def proposed(drafts: I32) -> list[int]:
    """The drafts of a row without padding."""
    return [token for token in drafts.tolist() if token >= 0]

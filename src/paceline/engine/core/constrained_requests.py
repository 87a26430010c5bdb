"""The requests whose output follows a grammar: compiling, masks, and the tokens they accept."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from typing import Protocol

import numpy as np

from paceline.core.arrays import I32, Bool, Index
from paceline.core.constraint import Constraint
from paceline.core.errors import PacelineError, RequestError
from paceline.core.masks import MaskRows
from paceline.core.plan import Failed, Plan, Rows, StepResult
from paceline.core.request import Request, child_label
from paceline.engine.core.grammar_progress import BeamGrammars, GrammarProgress
from paceline.engine.core.messages import EngineFailed
from paceline.structured.backend import Grammar
from paceline.structured.grammar_counts import GrammarCounts

PARKED_FOR = "grammar"  # the reason for which a request is parked while its grammar is compiled


class ConstraintCompiler(Protocol):
    """Compiles constraints off the engine's thread."""

    def submit(self, constraint: Constraint) -> Future[Grammar]:
        """The grammar, or a RequestError that says what is wrong. It may be cancelled."""
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
    sequences: dict[int, GrammarProgress] = field(default_factory=dict[int, GrammarProgress])

    def progress(self, serial: int) -> GrammarProgress:
        """Every sequence of a request begins at the start of the grammar, and keeps its place when
        it is preempted: the tokens that it has stay known."""
        if serial not in self.sequences:
            self.sequences[serial] = GrammarProgress(self.compiled.result().matcher())
        return self.sequences[serial]


class ConstrainedRequests:
    """Keeps the grammars of open requests, and gives the runner its masks: see `TokenMasks`.

    All methods are for the engine's thread. The runner calls `wants` and `fill` within `launch` and
    `wait`.
    """

    def __init__(self, compiler: ConstraintCompiler, words: int, eos: tuple[int, ...]) -> None:
        """`words` is the length of a mask in 32-bit words, `eos` the end tokens of the model."""
        self._compiler, self._words = compiler, words
        self._open: dict[str, ConstrainedRequest] = {}
        self._ends = np.zeros(words, np.uint32)
        for token in eos:
            self._ends[token >> 5] |= np.uint32(1 << (token & 31))
        self._others = (~self._ends).view(np.int32)
        self._bits = np.empty((0, words), np.int32)  # room for the masks of a step
        self._beams = BeamGrammars()
        self._searches: dict[str, str] = {}  # from beams to their requests
        self._latest: Rows | None = None  # the rows that were looked at last
        self._wanted: list[int] = []  # of these, those that sample under a constraint

    # -- requests come and go -------------------------------------------------

    parked_for = PARKED_FOR

    def concerns(self, request: Request) -> bool:
        return request.constraint is not None

    def begin(self, request: Request, ready: Callable[[str], None]) -> bool:
        """Compile the constraint of a request. Returns whether that has ended already; if not,
        `ready` is called with its id when it has, on any thread."""
        assert request.constraint is not None
        compiled = self._compiler.submit(request.constraint)
        self._open[request.id] = ConstrainedRequest(request, compiled)
        for beam in range(request.beam_width):
            self._searches[child_label(request.id, beam)] = request.id
        self._latest = None
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
            self._latest = None
            for beam in range(one.request.beam_width):
                del self._searches[child_label(request_id, beam)]

    def close(self) -> None:
        for request_id in tuple(self._open):
            self.forget(request_id)
        self._compiler.close()

    # -- steps ----------------------------------------------------------------

    def follow(self, plan: Plan) -> None:
        """A plan is launched: beams may go on from others."""
        if self._searches and (plan.admitted or plan.chosen):
            owners = {beam: self._open[own].compiled for beam, own in self._searches.items()}
            grammars = {beam: one.result() for beam, one in owners.items() if one.done()}
            self._beams.follow(plan, grammars)

    def wants(self, plan: Plan) -> bool:
        return bool(self._rows(plan.rows))

    def fill(self, plan: Plan, order: Index, drafts: I32 | None = None) -> MaskRows | None:
        rows, width = plan.rows, 1 if drafts is None else 1 + drafts.shape[1]
        wanted = set(self._rows(rows))
        bits, lines = self._room(len(wanted) * width), list[int]()
        for place, row in enumerate(order.tolist()):
            if row not in wanted:
                continue
            one = self._open[str(rows.request_id[row])]
            progress = self._progress(rows, row)
            if progress is None:
                continue
            given = [] if drafts is None else proposed(drafts[place])
            own = bits[len(lines) : len(lines) + 1 + len(given)]
            allowed = self._fill_rows(own, given, one.request, progress)
            lines += range(place * width, place * width + 1 + allowed)
        return MaskRows(np.array(lines, np.intp), bits[: len(lines)]) if lines else None

    def _room(self, masks: int) -> I32:
        if len(self._bits) < masks:
            self._bits = np.empty((2 * masks, self._words), np.int32)
        return self._bits[:masks]

    def _fill_rows(
        self, mask: I32, drafts: list[int], request: Request, progress: GrammarProgress
    ) -> int:
        """Write the masks of one row, and return how many of its drafts are allowed."""
        try:
            allowed = progress.matcher.fill_rows(mask, drafts)
        except RequestError as error:  # its row fails when the step has ended
            progress.error = str(error)
            mask[:] = -1
            return 0
        for place, line in enumerate(mask[: 1 + allowed]):
            if request.ignore_eos or progress.outputs + place < request.min_tokens:
                others = line & self._others
                if others.any():  # else the grammar is complete and allows its end alone
                    line[:] = others
        return allowed

    def accept(self, plan: Plan, result: StepResult, alive: Bool) -> StepResult:
        """Advance the grammars by the tokens of a step, before it is committed. `alive` are the
        rows whose sequence still has its slot.

        A row whose token the grammar does not allow, or that had no mask, fails.
        """
        failed: list[Failed] = []
        sampled = alive & (result.count > 0)
        for row in self._rows(plan.rows):
            if not sampled[row]:
                continue
            progress = self._progress(plan.rows, row)
            assert progress is not None, f"row {row} has no place in its grammar"
            is_beam = self._open[plan.rows.request_id[row]].request.beam_width > 0
            count = 0 if is_beam else int(result.count[row])
            tokens: list[int] = result.ids[row, :count].tolist()
            if reason := progress.advance(tokens):
                failed.append(Failed(row, reason))
        if not failed:
            return result
        ids, count = result.ids.copy(), result.count.copy()
        for one in failed:
            ids[one.row], count[one.row] = -1, 0
        return replace(result, ids=ids, count=count, failed=(*result.failed, *failed))

    def _progress(self, rows: Rows, row: int) -> GrammarProgress | None:
        """The place of a row in its grammar; None for a beam that has left its slot."""
        one = self._open[str(rows.request_id[row])]
        if one.request.beam_width:  # the host chooses its tokens: see `follow`
            beam = child_label(one.request.id, int(rows.child[row]))
            return self._beams.at(int(rows.slot[row]), beam)
        return one.progress(int(rows.serial[row]))

    def _rows(self, rows: Rows) -> list[int]:
        """Rows that sample under a constraint. Steady steps share their rows."""
        if not self._open:
            return []
        if self._latest is not rows:
            names, samples = rows.request_id.tolist(), np.flatnonzero(rows.samples).tolist()
            self._latest = rows
            self._wanted = [row for row in samples if names[row] in self._open]
        return self._wanted


def proposed(drafts: I32) -> list[int]:
    """The drafts of a row, without the places that have none."""
    return [token for token in drafts.tolist() if token >= 0]

"""Requests with a constraint in the step loop: parked, woken, refused, aborted and failed."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from paceline.core.capabilities import Capabilities
from paceline.core.constraint import Constraint
from paceline.core.errors import GrammarTooCostly
from paceline.core.plan import Plan, StepResult
from paceline.core.request import Request
from paceline.engine.grammar.constrained_requests import ConstrainedRequests
from paceline.engine.loop.engine import Engine
from paceline.engine.loop.messages import Delivery, Question
from paceline.sched.scheduler import Scheduler
from paceline.structured.backend import Grammar
from paceline.structured.compile_queue import GrammarCounts
from paceline.testing.oracle import OracleRunner
from paceline.testing.runner import SimulatedDevice, SimulatedRunner, VirtualClock
from tests.property.grammars import END, constrained_requests, grammar

VOCAB, SIZES = 7, {"num_blocks": 16, "block_size": 4, "max_model_len": 32, "max_num_seqs": 4}


class LateCompiler:
    """Compiles when a test says so."""

    def __init__(self) -> None:
        self.futures: list[Future[Grammar]] = []
        self.counts = GrammarCounts(grammars_compiled=3)
        self.closed = False

    def submit(self, constraint: Constraint, client: str = "") -> Future[Grammar]:
        self.futures.append(Future())
        return self.futures[-1]

    def close(self) -> None:
        self.closed = True


class MaskedRunner(SimulatedRunner):
    capabilities = Capabilities(constraints=True)


class Setting:
    """An engine with an oracle that follows masks, unless a test changes its results."""

    def __init__(
        self, changed: Callable[[Plan, StepResult], StepResult] | None = None, depth: int = 2
    ) -> None:
        self.compiler, self.clock = LateCompiler(), VirtualClock()
        self.constrained = ConstrainedRequests(self.compiler, 1, (END,))
        self.oracle = OracleRunner(16, 4, VOCAB)
        self.oracle.masks = self.constrained

        def execute(plan: Plan) -> StepResult:
            result = self.oracle.run(plan)
            return result if changed is None else changed(plan, result)

        runner = MaskedRunner(SimulatedDevice(execute), self.clock)
        runner.masks = self.constrained
        scheduler = Scheduler.create(max_num_batched_tokens=32, **SIZES)
        self.engine = Engine(scheduler, runner, self.clock, depth, constrained=self.constrained)

    def submit(self, name: str = "a", parked: str = "", **fields: Any) -> None:
        fields = {"constraint": Constraint.regex("0{3,9}"), "eos_token_ids": (END,), **fields}
        self.engine.submit(Request(name, [1, 0], max_tokens=12, **fields), parked)

    def compiled(self) -> None:
        self.compiler.futures[-1].set_result(grammar(VOCAB, Constraint.regex("0{3,9}")))

    def turns(self, most: int = 40) -> list[Delivery]:
        found = [self.engine.turn() for _ in range(most)]
        return [one for one in found if one is not None]

    def state(self, name: str = "a") -> str:
        return self.engine.scheduler.snapshot()["requests"][name]["state"]


def tokens(deliveries: list[Delivery]) -> list[int]:
    rows = [pair for one in deliveries for pair in zip(one.ids, one.count, strict=True)]
    return [int(id) for ids, count in rows for id in ids[:count]]


def test_it_waits_for_its_grammar_and_follows_it() -> None:
    at = Setting()
    at.submit()
    assert not at.turns(3)
    assert at.state() == "WAITING_FOR_GRAMMAR"
    at.compiled()
    found = at.turns()
    *text, last = tokens(found)
    assert set(text) == {0}
    assert last == END
    assert found[-1].ended[0].finish.value == "stop"
    assert at.engine.idle
    assert not at.constrained.any_open


def test_the_engine_says_how_many_wait_for_their_grammar() -> None:
    setting = Setting()
    setting.submit()
    setting.engine.turn()
    figures = setting.engine.answer(Question("gauges"))
    assert (figures["waiting_for_grammar"], figures["grammars_compiled"]) == (1, 3)
    setting.compiled()
    assert setting.engine.answer(Question("gauges"))["waiting_for_grammar"] == 0


def test_one_that_does_not_compile_is_refused() -> None:
    at = Setting()
    at.submit()
    at.turns(1)
    at.compiler.futures[0].set_exception(GrammarTooCostly("too large"))
    (found,) = at.turns()
    assert [str(one.error) for one in found.refused] == ["too large"]
    assert not found.ended
    assert at.engine.idle


def test_an_abort_stops_the_compilation_and_its_id_is_free() -> None:
    at = Setting()
    at.submit()
    at.turns(1)
    at.engine.abort("a")
    at.submit()
    (found,) = at.turns(3)
    assert at.compiler.futures[0].cancelled()
    assert [one.finish.value for one in found.ended] == ["abort"]
    at.compiled()
    assert tokens(at.turns())[-1] == END


def test_one_that_is_parked_for_another_reason_waits_for_both() -> None:
    at = Setting()
    at.submit(parked="session")
    at.submit("b", parked="session")
    at.turns(1)
    at.engine.wake("b")
    at.compiler.futures[0].set_result(grammar(VOCAB, Constraint.regex("0{3,9}")))
    assert not at.turns(3)
    assert (at.state("a"), at.state("b")) == ("WAITING", "WAITING_FOR_GRAMMAR")
    at.compiled()
    at.engine.wake("a")
    assert sum(len(one.ended) for one in at.turns()) == 2
    assert at.engine.idle


def test_a_token_that_is_not_allowed_ends_its_request_alone() -> None:
    def wrong(plan: Plan, result: StepResult) -> StepResult:
        rows = plan.rows.samples & (plan.rows.request_id == "a")
        result.ids[rows] = np.where(result.ids[rows] >= 0, 5, -1)
        return result

    at = Setting(wrong)
    at.submit("b", constraint=None, eos_token_ids=())
    at.submit()
    at.turns(1)
    at.compiled()
    ended = {end.request_id: end for one in at.turns() for end in one.ended}
    assert ended["a"].finish.value == "error"
    assert "does not allow token 5" in ended["a"].message
    assert ended["b"].finish.value == "length"


@pytest.mark.parametrize("ready", [True, False])
def test_closing_ends_what_is_compiled(ready: bool) -> None:
    at = Setting()
    at.submit()
    at.turns(1)
    if ready:
        at.compiled()
    at.engine.close()
    assert at.compiler.closed
    assert at.compiler.futures[0].cancelled() is not ready


def test_each_draft_has_a_mask_up_to_the_first_that_is_not_allowed() -> None:
    """One row has drafts, the other none, and a third has no constraint."""
    constrained = constrained_requests(VOCAB)
    shared = {"constraint": Constraint.regex("0{3,9}"), "eos_token_ids": (END,), "max_tokens": 9}
    scheduler = Scheduler.create(max_num_batched_tokens=32, **SIZES)
    for name, fields in {"a": shared, "b": shared, "free": {}}.items():
        request = Request(name, [1, 0], **fields)
        scheduler.submit(request, 0.0)
        if request.constraint is not None:
            constrained.begin(request, lambda _: None)
    plan = scheduler.plan(0.0)
    constrained.follow(plan)
    drafts = np.array([[4, 4, 4, 4], [-1, -1, -1, -1], [0, 0, 0, 5]], np.int32)
    masks = constrained.fill(plan, np.array([2, 1, 0]), drafts)
    assert masks is not None
    assert masks.line.tolist() == [5, 10, 11, 12, 13]
    found = [np.flatnonzero(one).tolist() for one in masks.allowed(VOCAB)]
    assert found == [[0], [0], [0], [0], [0, END]]
    assert constrained.fill(plan, np.array([2])) is None

"""The step loop: every request is told of once, whatever happens around it."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from paceline.core.errors import ConfigError, QueueFull, RequestError
from paceline.core.events import NO_TIMINGS
from paceline.core.multimodal import ImageInput
from paceline.core.plan import Candidates, Outputs, Plan, StepResult
from paceline.core.request import Finish, Request
from paceline.engine.components import EngineComponents
from paceline.engine.loop.engine import ARRIVALS, Engine
from paceline.engine.loop.messages import Delivery, EngineFailed, PendingQuestion, Question
from paceline.engine.loop.ports import StepObserver
from paceline.engine.settings import EngineSettings
from paceline.testing.reference import reference
from tests.engine.support import (
    MAX_MODEL_LEN,
    OraclePort,
    assert_nothing_left,
    components,
    tokenizer,
)

DEPTHS = [1, 2, 3]


HANDLES: dict[str, int] = {}  # by the name of a request
CHILDREN = 100  # most of a request


def request(name: str, length: int = 9, most: int = 6, **fields: Any) -> Request:
    prompt = [(11 * length + place) % 350 + 4 for place in range(length)]
    handle = HANDLES.setdefault(name, CHILDREN * len(HANDLES))
    return Request(id=name, prompt=prompt, max_tokens=most, handle=handle, **fields)  # pyright: ignore[reportArgumentType]


class Teller:
    """Turns an engine and takes down what it tells."""

    def __init__(self, made: EngineComponents, **settings: Any) -> None:
        clock = {"clock": settings.pop("clock")} if "clock" in settings else {}
        self.engine = Engine(
            made.scheduler,
            made.runner,
            depth=made.depth,
            settings=EngineSettings(**settings),
            **clock,
        )
        self.port = made.runner
        assert isinstance(self.port, OraclePort)
        self.tokens: dict[str, list[int]] = {}
        self.ends: dict[str, tuple[Finish, str]] = {}
        self.refused: dict[str, Exception] = {}
        self.deliveries: list[Delivery] = []

    def turn(self) -> None:
        delivery = self.engine.turn()
        if delivery is None:
            return
        self.deliveries.append(delivery)
        for row, count in enumerate(delivery.count.tolist()):
            name = list(HANDLES)[delivery.handle[row] // CHILDREN]
            assert name not in self.ends
            self.tokens.setdefault(name, []).extend(delivery.ids[row, :count].tolist())
        for one in delivery.ended:
            if one.child < 0:
                assert one.request_id not in self.ends
                self.ends[one.request_id] = one.finish, one.message
        for one in delivery.refused:
            assert one.request_id not in self.ends | self.refused
            self.refused[one.request_id] = one.error

    def run(self, most: int = 2000) -> None:
        for _ in range(most):
            if self.engine.idle and self.engine.resting:
                return
            self.turn()
        raise AssertionError("it does not come to an end")


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("blocks", [96, 16])
def test_outputs_are_those_of_the_reference(depth: int, blocks: int) -> None:
    teller = Teller(components(depth=depth, num_blocks=blocks))
    asked = [request(str(one), 3 + one, 1 + one % 7, eos_token_ids=(1,)) for one in range(30)]
    for one in asked:
        teller.engine.submit(one)
    teller.run()
    for one in asked:
        tokens, reason = reference(one, tokenizer().vocab_size, MAX_MODEL_LEN)
        assert teller.tokens[one.id] == tokens
        assert teller.ends[one.id][0].value == reason
    assert teller.port.deepest == depth
    assert_nothing_left(teller.engine.scheduler)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("moment", range(12))
def test_an_abort_at_any_point(depth: int, moment: int) -> None:
    teller = Teller(components(depth=depth))
    for name in "abc":
        teller.engine.submit(request(name, 9 + ord(name), 8))
    for _ in range(moment):
        teller.turn()
    gone_before = "b" in teller.ends
    teller.engine.abort("b")
    teller.engine.abort("nobody")
    before = len(teller.tokens.get("b", []))
    teller.turn()
    assert len(teller.tokens.get("b", [])) == before
    teller.run()
    assert teller.ends["a"] == teller.ends["c"] == (Finish.LENGTH, "")
    assert teller.ends["b"][0] is (Finish.LENGTH if gone_before else Finish.ABORT)
    assert_nothing_left(teller.engine.scheduler)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("where", ["launch", "wait"])
@pytest.mark.parametrize("step", range(1, 9))
def test_a_failed_step_ends_those_in_flight_and_no_others(
    depth: int, where: str, step: int
) -> None:
    teller = Teller(components(lambda plan, at: plan.step == step and at == where, depth=depth))
    for name in "abc":
        teller.engine.submit(request(name, 30, 10))
    teller.run()
    assert set(teller.ends) == set("abc")
    failed = [one for one, (finish, _) in teller.ends.items() if finish is Finish.ERROR]
    for name in failed:
        assert f"step {step} failed: Broken" in teller.ends[name][1]
    assert failed
    teller.engine.submit(request("later", 30, 4))
    teller.run()
    assert teller.ends["later"] == (Finish.LENGTH, "")
    assert teller.tokens["later"] == expected_tokens(request("later", 30, 4))
    assert_nothing_left(teller.engine.scheduler)


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_request_that_comes_between_two_turns_is_in_the_next_plan(depth: int) -> None:
    """Also while a deep pipeline fills up: the inbox is read before each plan."""
    teller = Teller(components(depth=depth))
    teller.engine.submit(request("a", most=20))
    teller.turn()
    for name in "bcd":
        teller.engine.submit(request(name))
        teller.turn()
        assert isinstance(teller.port, OraclePort)
        admitted = [new.request.id for new in teller.port.launched[-1].admitted]
        assert admitted == [name]


class SeesSteps(StepObserver):
    """Notes steps, and whether the runner had them when they were planned."""

    def __init__(self, port: OraclePort) -> None:
        self.port = port
        self.planned_steps: list[int] = []
        self.committed_steps: list[int] = []

    def planned(self, plan: Plan) -> None:
        assert plan not in self.port.launched
        self.planned_steps.append(plan.step)

    def committed(self, plan: Plan, outputs: Outputs) -> None:
        assert plan in self.port.launched
        self.committed_steps.append(plan.step)


@pytest.mark.parametrize("depth", DEPTHS)
def test_an_observer_sees_each_step_planned_and_then_committed(depth: int) -> None:
    made = components(depth=depth)
    assert isinstance(made.runner, OraclePort)
    seen = SeesSteps(made.runner)
    engine = Engine(made.scheduler, made.runner, depth=depth, observer=seen)
    engine.submit(request("a", most=4))
    while not (engine.idle and engine.resting):
        engine.turn()
    assert seen.planned_steps == list(range(1, seen.planned_steps[-1] + 1))
    assert set(seen.committed_steps) >= {1, 2, 3, 4}


def expected_tokens(one: Request) -> list[int]:
    return reference(one, tokenizer().vocab_size, MAX_MODEL_LEN)[0]


def test_those_who_only_wait_survive_a_failed_step() -> None:
    teller = Teller(components(lambda plan, at: plan.step == 3 and at == "wait", max_num_seqs=1))
    for name in "ab":
        teller.engine.submit(request(name))
    teller.run()
    assert teller.ends["a"][0] is Finish.ERROR
    assert teller.ends["b"][0] is Finish.LENGTH
    assert teller.tokens["b"] == expected_tokens(request("b"))


def test_a_result_that_does_not_fit_its_plan_is_a_failed_step() -> None:
    made = components(depth=2)
    port = made.runner
    assert isinstance(port, OraclePort)
    wait: Callable[[], StepResult] = port.wait
    results: list[StepResult] = []

    def short() -> StepResult:
        results.append(wait())
        if len(results) == 2:
            return StepResult(np.empty((7, 1), np.int32), np.ones(7, np.int32))
        return results[-1]

    port.wait = short  # type: ignore[method-assign]
    teller = Teller(made)
    teller.engine.submit(request("a"))
    teller.run()
    assert teller.ends["a"][0] is Finish.ERROR
    assert "7" in teller.ends["a"][1]
    assert not port.results
    assert_nothing_left(teller.engine.scheduler)


def test_an_engine_may_stop_for_good() -> None:
    broken = components(lambda plan, at: plan.step == 2 and at == "wait", max_num_seqs=1)
    teller = Teller(broken, on_failure="stop")
    for name in "ab":
        teller.engine.submit(request(name))
    teller.run()
    assert teller.ends["a"][0] is teller.ends["b"][0] is Finish.ERROR
    assert "step 2 failed" in teller.engine.broken
    known = teller.engine.scheduler.view.ended  # as a recording of the scheduler has it
    assert {one and one.finish for one in map(known, "ab")} == {Finish.ERROR}
    with pytest.raises(EngineFailed, match="step 2 failed"):
        teller.engine.submit(request("c"))
    assert_nothing_left(teller.engine.scheduler)


def test_what_no_runner_applies_is_refused_and_not_ignored() -> None:
    teller = Teller(components())
    teller.engine.submit(request("a", adapter="mine"))
    teller.engine.submit(request("b", images=(ImageInput("cat", 0, 2),)))
    teller.engine.submit(request("c"))
    teller.run()
    assert {name: str(error) for name, error in teller.refused.items()} == {
        "a": "request 'a' names adapter 'mine'; this engine runs no adapters: remove `adapter`",
        "b": "request 'b' has 1 images; this engine reads text alone: remove `images`",
    }
    assert teller.ends.keys() == {"c"}


@pytest.mark.parametrize("is_lost", [True, False])
def test_an_engine_stops_when_its_device_is_lost(
    is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = components(lambda plan, at: plan.step == 2 and at == "wait", max_num_seqs=1)
    monkeypatch.setattr(broken.runner, "is_lost", lambda: is_lost)
    teller = Teller(broken)
    for name in "ab":
        teller.engine.submit(request(name))
    teller.run()
    assert teller.ends["a"][0] is Finish.ERROR
    assert (teller.ends["b"][0] is Finish.ERROR) == is_lost
    assert bool(teller.engine.broken) == is_lost
    assert_nothing_left(teller.engine.scheduler)


@pytest.mark.parametrize("running", [True, False])
def test_an_engine_stops_when_a_process_of_its_runner_is_gone(running: bool) -> None:
    teller = Teller(components())
    if running:
        teller.engine.submit(request("a"))
        teller.turn()
    for _ in range(2):
        teller.engine.lose_runner("rank 1 has died")
    teller.run()
    assert teller.engine.broken == "the engine has stopped: rank 1 has died"
    assert [finish for finish, _ in teller.ends.values()] == [Finish.ERROR] * running
    with pytest.raises(EngineFailed, match="rank 1 has died"):
        teller.engine.submit(request("b"))
    assert_nothing_left(teller.engine.scheduler)


def test_an_end_is_told_though_the_device_fails_on_an_empty_plan() -> None:
    teller = Teller(components(lambda plan, at: plan.empty and at == "launch"), on_failure="stop")
    teller.engine.submit(request("a", n=2))
    teller.turn()
    for child in (0, 1):
        assert teller.engine.scheduler.abort("a", 0.0, child)
    teller.run()
    assert teller.ends["a"][0] is Finish.ABORT
    assert_nothing_left(teller.engine.scheduler)


def test_a_mistake_of_ours_is_not_taken_for_the_devices() -> None:
    made = components()

    def plan(now: float) -> Plan:
        raise AssertionError("ours")

    made.scheduler.plan = plan  # type: ignore[method-assign]
    teller = Teller(made)
    teller.engine.submit(request("a"))
    with pytest.raises(AssertionError, match="ours"):
        teller.turn()


def test_a_refusal_is_for_one_alone() -> None:
    teller = Teller(components())
    teller.engine.submit(request("long", MAX_MODEL_LEN))
    teller.engine.submit(request("a"))
    teller.engine.submit(request("a"))
    teller.run()
    assert isinstance(teller.refused["long"], RequestError)
    assert "is in use" in str(teller.refused["a"])
    assert teller.tokens["a"] == expected_tokens(request("a"))


def test_the_inbox_is_bounded_in_requests() -> None:
    teller = Teller(components(), inbox_requests=2)
    teller.engine.submit(request("a"))
    teller.engine.submit(request("b"))
    teller.engine.abort("a")
    with pytest.raises(QueueFull, match="2 requests"):
        teller.engine.submit(request("c"))
    assert teller.engine.room == 0
    teller.turn()
    teller.engine.submit(request("c"))
    teller.run()
    assert set(teller.ends) == set("abc")


def test_long_turns_accept_more_of_a_burst() -> None:
    """A request behind it does not wait for a step for each few of them."""
    made, now = components(max_num_seqs=8, max_num_queued_reqs=2000), iter(range(1000))
    teller = Teller(made)
    teller.engine.clock = lambda: next(now) / 10  # at least 100 ms
    teller.engine.submit(request("early", 9, 60, ignore_eos=True))
    teller.turn()
    assert (teller.engine._arrivals or 0) >= 5 * ARRIVALS


def test_a_burst_does_not_hold_up_those_who_run() -> None:
    """Each turn accepts a part of it, in order, and steps go on in between."""
    made = components(max_num_seqs=8, max_num_queued_reqs=2000)
    teller, names = Teller(made), [f"late{number}" for number in range(1000)]
    teller.engine.clock = lambda: 0.0  # turns are short
    for number in range(8):
        teller.engine.submit(request(f"early{number}", 9, 60, ignore_eos=True))
    teller.turn()
    for name in names:
        teller.engine.submit(request(name, 2, 1))
    teller.engine.abort(names[500])
    question = PendingQuestion(Question("snapshot"), Future())
    teller.engine.ask(question)
    for turns in range(1, 1 + len(names) // ARRIVALS):
        before = len(teller.tokens["early0"])
        teller.turn()
        assert len(teller.tokens["early0"]) == before + 1
        waiting = made.scheduler.snapshot()["waiting"]
        assert waiting == names[: turns * ARRIVALS]
    assert not question.answer.done()  # it was asked after the burst
    teller.turn()
    assert question.answer.result()["waiting"] == [n for n in names if n != names[500]]
    teller.run()
    assert len(teller.ends) == 8 + len(names)
    assert teller.ends[names[500]][0] is Finish.ABORT
    assert_nothing_left(made.scheduler)


def test_requests_in_the_inbox_take_up_room_in_the_queue() -> None:
    engine = Engine(made := components(max_num_queued_reqs=9).scheduler, components().runner)
    assert engine.room == made.queue_room
    engine.submit(request("a"))
    assert engine.room == made.queue_room - 1


def test_a_paused_engine_rests() -> None:
    teller = Teller(components())
    teller.engine.answer(Question("pause", "all"))
    teller.engine.submit(request("a", 9, 3))
    for _ in range(4):
        teller.turn()
        assert teller.engine.resting
    teller.engine.answer(Question("resume"))
    teller.run()
    assert teller.ends["a"][0] is Finish.LENGTH


def test_timings_are_those_of_its_life() -> None:
    now = [0.0]

    def clock() -> float:
        return now[0]

    teller = Teller(components(max_num_seqs=1), clock=clock)
    teller.engine.submit(request("a", 5, 2, arrival=0.0))
    teller.engine.submit(request("b", 9, 3, arrival=0.0))
    while not teller.engine.idle or not teller.engine.resting:
        teller.turn()
        now[0] += 1.0
    told = {one.request_id: one for each in teller.deliveries for one in each.ended}
    first, second = told["a"].timings, told["b"].timings
    assert (first.queue_s, first.prefill_s, first.decode_s) == (0.0, 0.0, 1.0)
    assert (second.queue_s, second.prefill_s, second.decode_s) == (2.0, 0.0, 2.0)
    assert second.total_s == 4.0
    assert first.preemptions == second.preemptions == 0


def test_cached_tokens_and_preemptions_are_told() -> None:
    teller = Teller(components())
    teller.engine.submit(request("a", 13, 2))
    teller.run()
    teller.engine.submit(request("again", 13, 2))
    teller.run()
    told = {one.request_id: one for each in teller.deliveries for one in each.ended}
    assert (told["a"].cached, told["again"].cached) == (0, 12)
    tight = Teller(components(num_blocks=12))
    for name in "abcd":
        tight.engine.submit(request(name, 9 + ord(name) % 5, 12))
    tight.run()
    total = sum(one.timings.preemptions for each in tight.deliveries for one in each.ended)
    assert total == tight.engine.scheduler.stats.preemptions > 0


def test_more_may_end_at_once_than_the_journal_remembers() -> None:
    teller = Teller(components(journal_requests=1))
    for name in "abcd":
        teller.engine.submit(request(name, 5, 3, arrival=-50.0))
    teller.run()
    told = [one for each in teller.deliveries for one in each.ended]
    assert len(told) == 4
    assert all(one.timings.queue_s > 0 for one in told)


def test_log_probabilities_and_alternatives_stay_with_their_rows() -> None:
    made = components(depth=2)
    port = made.runner
    assert isinstance(port, OraclePort)
    wait: Callable[[], StepResult] = port.wait

    def marked() -> StepResult:
        result = wait()
        values = result.ids.astype(np.float32)
        return StepResult(result.ids, result.count, values, Candidates(result.ids, values))

    port.wait = marked  # type: ignore[method-assign]
    teller = Teller(made)
    for name in "abcde":
        teller.engine.submit(request(name, 6 + ord(name) % 7, 12))
    for _ in range(5):
        teller.turn()
    teller.engine.abort("b")
    teller.engine.abort("d")
    teller.run()
    assert teller.engine.scheduler.stats.stale_rows > 0
    told = [one for one in teller.deliveries if one.logprob is not None]
    assert told
    for one in told:
        assert one.candidates is not None
        np.testing.assert_array_equal(one.candidates.ids, one.ids)
        for values in (one.logprob, one.candidates.logprob):
            np.testing.assert_array_equal(values, one.ids.astype(np.float32))


def ask(teller: Teller, verb: Any, argument: str = "") -> Future[Any]:
    answer: Future[Any] = Future()
    teller.engine.ask(PendingQuestion(Question(verb, argument), answer))
    return answer


def test_questions_are_answered_in_the_next_turn() -> None:
    teller = Teller(components())
    teller.engine.submit(request("a"))
    gauges, unknown = ask(teller, "gauges"), ask(teller, "explain", "nobody")
    life, wrong = ask(teller, "explain", "a"), ask(teller, "pause", "half")
    given_up = ask(teller, "snapshot")
    given_up.cancel()
    teller.turn()
    assert gauges.result(0)["waiting"] == 1
    assert "a" in life.result(0)
    for one in (unknown, wrong):
        with pytest.raises(RequestError):
            one.result(0)
    for verb in ("snapshot", "drain", "reset_prefix_cache"):
        answer = ask(teller, verb)
        teller.turn()
        assert answer.done()
    teller.engine.submit(request("late"))
    teller.run()
    assert isinstance(teller.refused["late"], QueueFull)


def test_a_deadline_that_passed_in_the_queue_is_told() -> None:
    now = [0.0]
    made = components(policy="deadline", refuse_late=True, max_num_seqs=1)
    teller = Teller(made, clock=lambda: now[0])
    teller.engine.submit(request("a", 9, 20, deadline=1.0))
    teller.engine.submit(request("b", 9, 20, deadline=3.0))
    while not teller.engine.idle or not teller.engine.resting:
        teller.turn()
        now[0] += 1.0
    assert teller.ends["b"][0] is Finish.TIMEOUT
    assert "deadline" in teller.ends["b"][1]


def test_prompts_that_wait_are_bounded_in_tokens() -> None:
    teller = Teller(components(max_num_seqs=1, max_queued_tokens=20))
    for name in "abcd":
        teller.engine.submit(request(name, 9))
    teller.turn()
    assert sorted(teller.refused) == ["c", "d"]
    assert isinstance(teller.refused["c"], QueueFull)
    teller.engine.submit(request("e", 9))  # the place of the one that was begun
    teller.engine.abort("b")
    teller.engine.submit(request("f", 9))
    teller.run()
    assert sorted(teller.ends) == ["a", "b", "e", "f"]


@pytest.mark.parametrize("n", [1, 2])
def test_a_request_that_waits_too_long_ends_with_a_reason_of_its_own(n: int) -> None:
    now = [0.0]
    teller = Teller(components(max_num_seqs=2, queue_timeout_s=5.0), clock=lambda: now[0])
    teller.engine.submit(request("a", 9, 30, n=2))
    teller.turn()
    teller.engine.submit(request("b", 9, 30, n=n))
    while not teller.engine.idle or not teller.engine.resting:
        teller.turn()
        now[0] += 1.0
    assert teller.ends["a"][0] is Finish.LENGTH
    assert teller.ends["b"] == (Finish.TIMEOUT, "it was not started within queue_timeout_s (5 s)")
    late = [one for told in teller.deliveries for one in told.ended if one.child < 0]
    (waited,) = [one.timings.queue_s for one in late if one.request_id == "b"]
    assert 5.0 < waited < 8.0
    assert_nothing_left(teller.engine.scheduler)


@pytest.mark.parametrize(
    "wrong",
    [
        {"depth": 0},
        {"inbox_requests": 0},
        {"stall_s": 0.0},
        {"on_failure": "pray"},
        {"max_queued_tokens": -1},
        {"queue_timeout_s": -1.0},
        {"queue_timeout_s": "soon"},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        components(**wrong).engine()


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_row_that_fails_ends_its_request_alone(depth: int) -> None:
    teller = Teller(components(depth=depth), on_failure="stop")
    asked = [request("a"), request("spoiled", 5), request("b", 12)]
    for one in asked:
        teller.engine.submit(one)
    teller.run()
    assert teller.ends["spoiled"] == (Finish.ERROR, "the row of 'spoiled' has no numbers")
    for one in (asked[0], asked[2]):
        assert teller.tokens[one.id] == expected_tokens(one)
    assert not teller.engine.broken
    assert teller.engine.answer(Question("gauges"))["failed_rows"] == 1
    assert "no numbers" in teller.engine.answer(Question("explain", "spoiled"))
    assert_nothing_left(teller.engine.scheduler)


def test_a_search_has_no_choices_to_let_go_of_one_by_one() -> None:
    teller = Teller(components())
    teller.engine.submit(request("a", n=2, beam_width=2, most=4))
    teller.turn()
    teller.engine.abort("a", 0)
    teller.run()
    assert teller.ends["a"][0] is not Finish.ABORT


def test_closing_waits_for_the_steps_in_flight() -> None:
    teller = Teller(components(depth=3))
    teller.engine.submit(request("a"))
    teller.turn()
    assert teller.port.results
    teller.engine.close()
    assert not teller.port.results
    assert teller.port.closed


def test_a_family_runs_as_one_request_and_has_one_life() -> None:
    teller = Teller(components())
    teller.engine.submit(request("a", n=3, ignore_eos=True))
    for _ in range(3):
        teller.turn()
    assert teller.engine.answer(Question("gauges"))["running"] == 1
    teller.run()
    told = [one for each in teller.deliveries for one in each.ended]
    assert {one.timings for one in told if one.child >= 0} == {NO_TIMINGS}
    (whole,) = [one for one in told if one.child < 0]
    assert whole.timings.total_s > 0


def test_an_engine_is_patient_as_long_as_nothing_can_go_on() -> None:
    teller = Teller(components())
    assert teller.engine.patience_s is None
    teller.engine.submit(request("a"), parked="grammar")
    assert teller.engine.patience_s is not None
    teller.turn()
    parked = teller.engine.patience_s
    teller.engine.wake("a")
    teller.turn()
    assert teller.engine.patience_s == 0
    teller.engine.answer(Question("pause", "all"))
    teller.turn()
    paused = teller.engine.patience_s
    assert paused is not None
    assert parked is not None
    assert 0 < paused < parked
    teller.engine.answer(Question("resume"))
    teller.run()
    assert teller.engine.patience_s is None


def test_news_of_transfers_wake_an_engine_without_requests() -> None:
    """Blocks that were kept for another engine are free then, and metrics say so."""
    built, rung = components(), list[str]()
    engine = built.engine()
    engine.call_for_messages(lambda: rung.append("rung"))
    engine.turn()
    before = built.scheduler.snapshot()["step"]
    engine.nudge()
    assert rung == ["rung"]
    engine.turn()
    assert built.scheduler.snapshot()["step"] == before + 1  # which asks the connector
    engine.turn()
    assert built.scheduler.snapshot()["step"] == before + 1
    engine.close()

"""Requests arrive at their times, steps take theirs, and the depth changes no output."""

from collections.abc import Callable, Iterable
from itertools import islice, pairwise
from typing import Any

import pytest

from paceline.core.errors import RequestError, StepError
from paceline.core.plan import Outputs, Plan, StepResult
from paceline.core.request import Request
from paceline.engine.loop.ports import StepObserver
from paceline.sched.scheduler import Scheduler
from paceline.testing.loop import Loop, SimulatedTurn
from paceline.testing.oracle import OracleRunner
from paceline.testing.reference import reference
from paceline.testing.runner import SimulatedDevice, one_second

VOCAB, LENGTH, BLOCKS, SIZE = 11, 32, 20, 4
PLENTY = 500  # turns, more than any of these runs may take


def scheduler(**settings: Any) -> Scheduler:
    defaults: dict[str, Any] = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "max_model_len": LENGTH,
        "num_blocks": BLOCKS,
        "block_size": SIZE,
    }
    return Scheduler.create(**defaults | settings)


def loop(
    depth: int = 1,
    execute: Callable[[Plan], StepResult] | None = None,
    step_s: Callable[[Plan], float] = one_second,
    **settings: Any,
) -> Loop:
    made = scheduler(**settings)
    execute = execute or OracleRunner(made.config.cache.num_blocks, SIZE, VOCAB).run
    return Loop(made, SimulatedDevice(execute, step_s), depth)


def ask(name: str, length: int = 6, **fields: Any) -> Request:
    prompt = [(7 * place + len(name)) % VOCAB for place in range(length)]
    return Request(name, prompt, **{"max_tokens": 5} | fields)  # pyright: ignore


def mixed() -> list[Request]:
    """Requests of all kinds that come in a scattered order, more than fit at once."""
    kinds: list[dict[str, Any]] = [
        {"length": 20, "max_tokens": 12},
        {"length": 20, "max_tokens": 3, "cache_salt": "pepper"},
        {"length": 1, "max_tokens": None},
        {"length": 9, "max_tokens": 20, "stop_token_ids": (3,)},
        {"length": 16, "max_tokens": 9, "min_tokens": 9, "eos_token_ids": (1, 2)},
        {"length": 21, "max_tokens": 11, "seed": 12345},
    ]
    return [
        ask(f"r{number}", arrival=float(number * 5 % 7), **kinds[number % len(kinds)])
        for number in range(18)
    ]


def gathered(turns: Iterable[SimulatedTurn]) -> dict[str, tuple[list[int], str | None]]:
    """The tokens and the end of every request."""
    got: dict[str, list[int]] = {}
    ends: dict[str, str | None] = {}
    for turn in turns:
        for name, told in (turn.outputs.to_dict() if turn.outputs else {}).items():
            assert ends.get(name) is None, f"{name} got something after its end"
            got.setdefault(name, []).extend(told["tokens"])
            ends[name] = told["finish"]
    return {name: (tokens, ends[name]) for name, tokens in got.items()}


def works(turn: SimulatedTurn) -> bool:
    """Was a step with rows planned in this turn?"""
    return turn.plan is not None and len(turn.plan.rows) > 0


def all_turns(made: Loop, requests: Iterable[Request]) -> list[SimulatedTurn]:
    """Every turn of a run, which must end by itself."""
    turns = list(islice(made.run(requests), PLENTY))
    assert len(turns) < PLENTY, "the loop does not end"
    return turns


# -- outputs ----------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("policy", ["fcfs", "shortest"])
def test_outputs_are_the_same_at_every_depth(depth: int, drafts: int, policy: str) -> None:
    made = loop(depth, num_speculative_tokens=drafts, policy=policy)
    got = gathered(all_turns(made, mixed()))
    assert got == {request.id: reference(request, VOCAB, LENGTH) for request in mixed()}
    assert made.scheduler.idle
    made.scheduler.check()


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_memory_pressure_changes_no_output_either(depth: int) -> None:
    made = loop(depth, num_blocks=9)
    got = gathered(all_turns(made, mixed()))
    assert got == {request.id: reference(request, VOCAB, LENGTH) for request in mixed()}
    assert made.scheduler.stats.preemptions > 0


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_same_run_gives_the_same_turns(depth: int) -> None:
    def told() -> list[tuple[float, Any, Any]]:
        return [
            (turn.time, turn.plan and turn.plan.to_dict(), turn.outputs and turn.outputs.to_dict())
            for turn in all_turns(loop(depth), mixed())
        ]

    assert told() == told()


def test_no_request_is_no_turn() -> None:
    assert all_turns(loop(), []) == []


# -- time -------------------------------------------------------------------


def admissions(turns: list[SimulatedTurn]) -> dict[str, float]:
    """When the host had planned the first step of each request."""
    return {name: turn.time for turn in turns if turn.plan for name in turn.plan.to_dict()["new"]}


def test_a_step_takes_a_second_and_results_come_when_it_is_done() -> None:
    made = loop()
    turns = all_turns(made, [ask("a", max_tokens=3)])
    assert [turn.time for turn in turns] == [1.0, 2.0, 3.0]
    assert all(turn.plan and turn.outputs for turn in turns)


def test_the_time_of_a_step_may_depend_on_its_plan() -> None:
    made = loop(step_s=lambda plan: 0.5 * plan.total)
    turns = all_turns(made, [ask("a", length=6, max_tokens=3)])
    assert [turn.time for turn in turns] == [3.0, 3.5, 4.0]


def test_a_deeper_loop_plans_ahead_of_the_results_it_has_seen() -> None:
    turns = all_turns(loop(depth=3), [ask("a", max_tokens=5)])
    planned = [turn.plan.step if turn.plan else None for turn in turns]
    times = [turn.time for turn in turns]
    assert planned[:3] == [1, 2, 3]
    assert times[:3] == [0.0, 0.0, 1.0]
    assert [turn.outputs is not None for turn in turns[:3]] == [False, False, True]
    assert times[-1] == 5.0  # five steps, one after another, whoever plans ahead


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_no_more_steps_are_in_flight_than_the_depth_allows(depth: int) -> None:
    flying, most = 0, 0
    for turn in all_turns(loop(depth), mixed()):
        flying += works(turn)
        most = max(most, flying)
        flying -= turn.committed is not None and not turn.committed.empty
    assert (flying, most) == (0, depth)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_nobody_is_planned_before_arrival_or_much_later_while_there_is_room(depth: int) -> None:
    planned_at = dict[str, float]()
    oracle = OracleRunner(BLOCKS, SIZE, VOCAB)

    def execute(plan: Plan) -> StepResult:
        for new in plan.admitted:
            planned_at[new.request.id] = made.clock()
        return oracle.run(plan)

    made = loop(depth, execute, max_num_seqs=10)
    requests = [ask(f"r{at}", max_tokens=2, arrival=0.75 * at) for at in range(6)]
    all_turns(made, requests)
    for request in requests:
        assert request.arrival is not None
        assert 0.0 <= planned_at[request.id] - request.arrival <= 1.0  # a step at most


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_time_never_runs_backwards(depth: int) -> None:
    times = [turn.time for turn in all_turns(loop(depth), mixed())]
    assert times == sorted(times)


def test_requests_come_in_the_order_of_arrival_whatever_the_order_of_the_list() -> None:
    requests = [ask("a", arrival=2.0), ask("c", arrival=0.0), ask("b", arrival=1.0)]
    turns = all_turns(loop(max_num_seqs=1), requests)
    assert list(admissions(turns)) == ["c", "b", "a"]


def test_the_clock_jumps_to_the_next_arrival_when_there_is_nothing_to_do() -> None:
    turns = all_turns(loop(), [ask("a", max_tokens=2), ask("b", max_tokens=2, arrival=1000.0)])
    assert [turn.time for turn in turns] == [1.0, 2.0, 1001.0, 1002.0]


def test_a_request_that_arrives_during_a_step_is_admitted_after_it() -> None:
    requests = [ask("a", max_tokens=4), ask("b", arrival=0.5, max_tokens=1)]
    turns = all_turns(loop(), requests)
    assert [turn.plan.to_dict()["new"] for turn in turns if turn.plan] == [["a"], ["b"], [], []]


def test_a_request_without_an_arrival_is_there_from_the_start() -> None:
    made = loop()
    made.clock.advance_to(7.0)
    turns = all_turns(made, [ask("a", max_tokens=1)])
    assert [turn.time for turn in turns] == [8.0]


def test_a_loop_can_be_run_again_and_its_clock_goes_on() -> None:
    made = loop()
    all_turns(made, [ask("a", max_tokens=2)])
    turns = all_turns(made, [ask("b", max_tokens=2)])
    assert [turn.time for turn in turns] == [3.0, 4.0]


def test_the_device_runs_steps_one_after_another_with_no_time_between() -> None:
    seen: list[float] = []

    def step_s(plan: Plan) -> float:
        return 2.0 if plan.step % 2 else 0.25

    for turn in all_turns(loop(depth=2, step_s=step_s), [ask("a", max_tokens=6)]):
        if turn.outputs:
            seen.append(turn.time)
    assert [later - earlier for earlier, later in pairwise(seen)] == [0.25, 2.0, 0.25, 2.0, 0.25]


def test_a_request_that_can_never_run_ends_the_loop_with_the_reason() -> None:
    with pytest.raises(RequestError, match="leaves no room"):
        all_turns(loop(), [ask("a", length=LENGTH)])


# -- nothing to do ----------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_parked_request_does_not_hang_the_loop(depth: int) -> None:
    made = loop(depth)
    made.scheduler.submit(ask("parked"), 0.0, parked="grammar")
    got = gathered(all_turns(made, [ask("a")]))
    assert got == {"a": reference(ask("a"), VOCAB, LENGTH)}
    assert made.scheduler.snapshot()["parked"] == {"parked": "grammar"}


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_parked_request_that_is_woken_between_two_turns_runs(depth: int) -> None:
    made = loop(depth)
    made.scheduler.submit(ask("p", max_tokens=2), 0.0, parked="grammar")
    turns: list[SimulatedTurn] = []
    for turn in islice(made.run([]), PLENTY):
        turns.append(turn)
        made.scheduler.wake("p", made.clock())
    assert gathered(turns) == {"p": reference(ask("p", max_tokens=2), VOCAB, LENGTH)}
    assert made.scheduler.idle


@pytest.mark.parametrize("mode", ["new", "all"])
@pytest.mark.parametrize("depth", [1, 3])
def test_a_paused_scheduler_does_not_hang_the_loop(mode: Any, depth: int) -> None:
    made = loop(depth)
    made.scheduler.pause(mode)
    turns = all_turns(made, [ask("a")])
    assert gathered(turns) == {}
    assert made.scheduler.snapshot()["waiting"] == ["a"]
    made.scheduler.resume()
    assert gathered(all_turns(made, [])) == {"a": reference(ask("a"), VOCAB, LENGTH)}


def test_time_goes_on_a_little_while_there_is_nothing_to_do() -> None:
    made = loop()
    made.scheduler.pause("all")
    made.scheduler.submit(ask("a"), 0.0)
    first, second = made.turn(), made.turn()
    assert not works(first)
    assert first.outputs is None or first.outputs.to_dict() == {}
    assert 0.0 < first.time < second.time < 0.1


@pytest.mark.parametrize("depth", [1, 2])
def test_pausing_with_steps_in_flight_still_brings_their_results(depth: int) -> None:
    made = loop(depth)
    turns: list[SimulatedTurn] = []
    for turn in islice(made.run([ask("a")]), PLENTY):
        turns.append(turn)
        if len(turns) == 2:
            made.scheduler.pause("all")
    got = gathered(turns)["a"]
    assert got == (reference(ask("a"), VOCAB, LENGTH)[0][:2], None)


def test_an_abort_between_two_turns_ends_the_request() -> None:
    made = loop(depth=2)
    turns: list[SimulatedTurn] = []
    for turn in islice(made.run([ask("a", max_tokens=20), ask("b")]), PLENTY):
        turns.append(turn)
        if len(turns) == 3:
            assert made.scheduler.abort("a", made.clock())
    got = gathered(turns)
    assert got["b"] == reference(ask("b"), VOCAB, LENGTH)
    assert got["a"][1] is None  # the one who aborts knows
    assert made.scheduler.idle


# -- the runner -------------------------------------------------------------


class KeepsPlans:
    """An oracle that keeps the plans it ran."""

    def __init__(self) -> None:
        self.oracle = OracleRunner(BLOCKS, SIZE, VOCAB)
        self.plans: list[Plan] = []

    def run(self, plan: Plan) -> StepResult:
        self.plans.append(plan)
        return self.oracle.run(plan)


def test_the_runner_gets_every_plan_once_and_in_order() -> None:
    runner = KeepsPlans()
    turns = all_turns(loop(3, runner.run), mixed())
    steps = [plan.step for plan in runner.plans]
    assert steps == sorted(set(steps))
    assert [plan for plan in runner.plans if len(plan.rows)] == [t.plan for t in turns if works(t)]


def test_the_runner_is_told_of_slots_given_up_also_by_plans_without_rows() -> None:
    runner = KeepsPlans()
    made = loop(execute=runner.run)
    made.scheduler.submit(ask("parked"), 0.0, parked="grammar")  # so that the loop goes on
    all_turns(made, [ask("a")])
    empty = [plan for plan in runner.plans if not len(plan.rows)]
    assert [plan.to_dict()["finished"] for plan in empty if plan.finished] == [["a"]]
    assert runner.oracle.tracks == {}


@pytest.mark.parametrize("depth", [1, 2])
def test_an_error_of_the_device_is_raised_and_not_told_to_clients(depth: int) -> None:
    def broken(plan: Plan) -> StepResult:
        assert plan.step < 3, "stale KV"
        return oracle.run(plan)

    oracle = OracleRunner(BLOCKS, SIZE, VOCAB)
    with pytest.raises(AssertionError, match="stale KV"):
        all_turns(loop(depth, broken), [ask("a")])


def test_a_result_that_does_not_fit_its_plan_is_raised() -> None:
    with pytest.raises(StepError):
        all_turns(loop(execute=lambda plan: StepResult.of(empty, {})), [ask("a")])


empty = Scheduler.create().plan(0.0)


class KeepsSteps(StepObserver):
    """Keeps the steps that an engine plans and commits, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def planned(self, plan: Plan) -> None:
        self.calls.append(("planned", plan.step))

    def committed(self, plan: Plan, outputs: Outputs) -> None:
        self.calls.append(("committed", plan.step))


def test_an_observer_sees_every_step_in_the_order_of_the_engine() -> None:
    oracle, seen = OracleRunner(BLOCKS, SIZE, VOCAB), KeepsSteps()
    made = Loop(scheduler(), SimulatedDevice(oracle.run), depth=2, observer=seen)
    all_turns(made, [ask("a", max_tokens=3)])
    assert seen.calls == [
        ("planned", 1),
        ("planned", 2),
        ("committed", 1),
        ("planned", 3),
        ("committed", 2),
        ("planned", 4),
        ("committed", 3),
    ]


def test_an_idle_engine_plans_an_empty_step_only_if_it_is_told_to() -> None:
    made = loop()
    all_turns(made, [ask("a", max_tokens=1)])
    assert made.turn().plan is not None  # which tells the device that the slot is free
    assert made.turn().plan is None
    turn = made.turn(while_idle=True)
    assert turn.plan is not None
    assert turn.plan.empty


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_request_that_is_refused_while_nothing_runs_is_told(depth: int) -> None:
    made = loop(depth, policy="deadline", refuse_late=True, max_num_seqs=1)
    requests = [ask("a", max_tokens=1, deadline=0.1), ask("b", max_tokens=1, deadline=0.5)]
    assert gathered(all_turns(made, requests))["b"] == ([], "timeout")


def test_the_clock_jumps_to_the_next_arrival_beside_a_parked_request() -> None:
    made = loop()
    made.scheduler.submit(ask("parked"), 0.0, parked="grammar")
    got = gathered(islice(made.run([ask("a", arrival=100.0)]), PLENTY))
    assert got == {"a": reference(ask("a"), VOCAB, LENGTH)}

"""Requests and their life as a caller sees it: submit, plan, commit, abort, pause, fail."""

from collections.abc import Callable

import numpy as np
import pytest

from paceline import (
    ConfigError,
    Finish,
    PacelineError,
    QueueFull,
    Request,
    RequestError,
    Scheduler,
    StepError,
    StepResult,
)
from paceline.core.plan import Failed
from paceline.core.request import Sequence
from paceline.sched.policy import Policy
from paceline.sched.slots import Idle
from paceline.sim.reference import reference
from tests.sched import constant_steps as steps
from tests.sched.support import (
    Pipeline,
    answer,
    ask,
    commit,
    counters,
    findable,
    finish_all,
    preempt,
    sequence,
    small,
    state,
    step,
    tokens_of_steps,
)

PROMPT = list(range(100, 113))


# -- settings ----------------------------------------------------------------


def test_any_setting_by_name() -> None:
    scheduler = Scheduler.create(max_num_seqs=3, block_size=8, policy="priority", watermark=0.5)
    told = scheduler.config.to_dict()
    assert [told[name] for name in ("max_num_seqs", "block_size", "policy", "watermark")] == [
        3,
        8,
        "priority",
        0.5,
    ]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"max_num_seq": 3}, "unknown setting 'max_num_seq'; did you mean 'max_num_seqs'"),
        ({"colour": "red"}, "unknown setting 'colour'"),
        ({"policy": "nepotism"}, "no policy 'nepotism'"),
        ({"speculation": "wild"}, "no speculation 'wild'"),
        ({"discipline": "none"}, "no discipline 'none'"),
        ({"preemption_mode": "swap"}, "preemption_mode 'swap' needs a swap_space"),
        ({"block_size": 0}, "block_size is 0"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        small(**settings)


class NewestFirst(Policy):
    """A policy of one's own."""

    def rank(self, sequence: Sequence) -> tuple[float, ...]:
        return (-sequence.serial,)


def test_a_policy_of_ones_own_is_found_by_its_path() -> None:
    scheduler = small(policy=f"{__name__}.{NewestFirst.__name__}", max_num_seqs=1)
    for name in "abc":
        scheduler.submit(ask(name, 5), 0.0)
    assert scheduler.snapshot()["waiting"] == ["c", "b", "a"]
    assert step(scheduler)["new"] == ["c"]


def test_a_policy_must_be_one() -> None:
    with pytest.raises(ConfigError, match="not a subclass of Policy"):
        small(policy="paceline.core.request.Request")


# -- fit ---------------------------------------------------------------------


def test_a_request_that_could_never_finish_is_refused_with_the_numbers() -> None:
    scheduler = small(num_blocks=3)
    with pytest.raises(RequestError) as refused:
        scheduler.submit(ask("a", 8, max_tokens=6), 0.0)
    complaint = str(refused.value)
    for number in ("'a'", "8 prompt tokens", "6 new", "4 blocks of 4", "pool has 3"):
        assert number in complaint
    assert scheduler.unfinished == 0
    assert scheduler.snapshot()["requests"] == {}


def test_the_last_token_needs_no_block() -> None:
    """8 + 5 tokens are 13, but the thirteenth is never computed: 12 positions, 3 blocks."""
    scheduler = small(num_blocks=3)
    scheduler.submit(ask("a", 8, max_tokens=5), 0.0)
    assert finish_all(scheduler) == {"a": [9] * 5}


def test_a_request_without_max_tokens_must_fit_up_to_the_model_length() -> None:
    with pytest.raises(RequestError, match="16 blocks"):
        small(num_blocks=15).submit(ask("a", 8, max_tokens=None), 0.0)
    small(num_blocks=16).submit(ask("a", 8, max_tokens=None), 0.0)


@pytest.mark.parametrize("length", [64, 65, 200])
def test_a_prompt_that_leaves_no_room_for_one_token_is_refused(length: int) -> None:
    with pytest.raises(RequestError, match=f"{length} tokens .* max_model_len 64"):
        small(num_blocks=99).submit(ask("a", length, max_tokens=1), 0.0)


def test_a_prompt_that_leaves_room_for_one_token_gets_one() -> None:
    scheduler = small(max_num_batched_tokens=64)
    scheduler.submit(ask("a", 63, max_tokens=9), 0.0)
    plan = scheduler.plan(0.0)
    assert commit(scheduler, plan) == {"a": {"tokens": [9], "finish": "length"}}


def test_max_tokens_are_clamped_to_the_model_length() -> None:
    scheduler = small(max_model_len=8)
    scheduler.submit(ask("a", 5, max_tokens=1000), 0.0)
    assert finish_all(scheduler) == {"a": [9] * 3}


def test_min_tokens_beyond_the_model_length_make_no_endless_request() -> None:
    scheduler = small(max_model_len=8)
    scheduler.submit(ask("a", 5, max_tokens=50, min_tokens=50, eos_token_ids=(9,)), 0.0)
    scheduler.submit(ask("b", 5, max_tokens=None, min_tokens=50, stop_token_ids=(9,)), 0.0)
    assert finish_all(scheduler) == {"a": [9] * 3, "b": [9] * 3}


def test_a_refused_request_may_come_again_in_another_form() -> None:
    scheduler = small(num_blocks=3)
    with pytest.raises(RequestError):
        scheduler.submit(ask("a", 8, max_tokens=6), 0.0)
    scheduler.submit(ask("a", 8, max_tokens=5), 0.0)
    assert scheduler.unfinished == 1


# -- identity and the queue --------------------------------------------------


@pytest.mark.parametrize("where", ["waiting", "parked", "running", "preempted"])
def test_an_id_that_is_here_is_refused(where: str) -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0, parked="grammar" if where == "parked" else "")
    if where in ("running", "preempted"):
        step(scheduler)
    if where == "preempted":
        scheduler.reset_prefix_cache(reset_running_requests=True)
    before = scheduler.snapshot()
    with pytest.raises(RequestError, match="'a' is already here"):
        scheduler.submit(ask("a", 7), 0.0)
    assert scheduler.snapshot() == before


def test_an_id_is_free_again_after_its_end() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5, max_tokens=1), 0.0)
    assert finish_all(scheduler) == {"a": [9]}
    scheduler.submit(ask("a", 5, max_tokens=2), 0.0)
    assert finish_all(scheduler) == {"a": [9, 9]}


def test_an_id_that_ends_and_comes_back_within_a_step_is_not_confused() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0)
    late = scheduler.plan(0.0)
    scheduler.abort("a", 0.0)
    scheduler.submit(ask("a", 3, max_tokens=2), 0.0)
    plan = scheduler.plan(0.0)
    assert (plan.to_dict()["finished"], plan.to_dict()["new"]) == (["a"], ["a"])
    assert commit(scheduler, late, a=[1]) == {}
    assert commit(scheduler, plan, a=[2]) == {"a": {"tokens": [2], "finish": None}}


def test_the_queue_is_bounded_and_says_so() -> None:
    scheduler = small(max_num_queued_reqs=2)
    scheduler.submit(ask("a", 5), 0.0)
    scheduler.submit(ask("b", 5), 0.0, parked="grammar")
    with pytest.raises(QueueFull, match="2 requests are already waiting"):
        scheduler.submit(ask("c", 5), 0.0)
    step(scheduler)  # "a" runs now
    scheduler.submit(ask("c", 5), 0.0)


def test_a_full_queue_is_a_fault_of_the_moment_and_of_the_client() -> None:
    assert issubclass(QueueFull, RequestError)
    assert issubclass(RequestError, PacelineError)
    assert not issubclass(StepError, RequestError)


def test_arrival_is_the_time_of_submission_unless_the_request_says_otherwise() -> None:
    scheduler = small(policy="priority", max_num_seqs=1)
    scheduler.submit(ask("now", 5), 5.0)
    scheduler.submit(ask("before", 5, arrival=3.0), 6.0)
    assert scheduler.snapshot()["waiting"] == ["before", "now"]


# -- parking -----------------------------------------------------------------


def test_only_the_waiting_can_be_parked() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0)
    assert not scheduler.park("nobody", "grammar", 0.0)
    assert not scheduler.park("a", "", 0.0)
    assert scheduler.park("a", "grammar", 0.0)
    assert not scheduler.park("a", "grammar", 0.0)
    assert scheduler.wake("a", 0.0)
    step(scheduler)
    assert not scheduler.park("a", "grammar", 0.0)
    assert state(scheduler, "a")["state"] == "RUNNING"


def test_only_the_parked_can_be_woken() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0)
    assert not scheduler.wake("a", 0.0)
    assert not scheduler.wake("nobody", 0.0)


def test_the_parked_keep_their_order() -> None:
    scheduler = small(max_num_seqs=1)
    for name in "abcd":
        scheduler.submit(ask(name, 5), 0.0)
    for name in "ba":
        scheduler.park(name, "grammar", 0.0)
    assert scheduler.snapshot()["waiting"] == ["c", "d"]
    for name in "ab":
        scheduler.wake(name, 0.0)
    assert scheduler.snapshot()["waiting"] == ["a", "b", "c", "d"]


def test_a_parked_request_takes_neither_slot_nor_blocks() -> None:
    scheduler = small(max_num_seqs=1)
    scheduler.submit(ask("a", 5), 0.0, parked="grammar")
    assert step(scheduler)["tokens"] == {}
    assert scheduler.snapshot()["free_blocks"] == 16
    assert not scheduler.idle


def test_a_preempted_request_can_be_parked_and_comes_back_to_the_front() -> None:
    scheduler = small(max_num_seqs=1)
    scheduler.submit(ask("a", 5), 0.0)
    scheduler.submit(ask("b", 5), 0.0)
    step(scheduler)
    scheduler.reset_prefix_cache(reset_running_requests=True)
    assert scheduler.park("a", "grammar", 0.0)
    assert step(scheduler)["new"] == ["b"]
    scheduler.wake("a", 0.0)
    scheduler.submit(ask("c", 5), 0.0)
    assert scheduler.snapshot()["waiting"] == ["a", "c"]


# -- abort -------------------------------------------------------------------


def waiting(scheduler: Scheduler) -> None:
    scheduler.submit(ask("a", PROMPT), 0.0)


def parked(scheduler: Scheduler) -> None:
    scheduler.submit(ask("a", PROMPT), 0.0, parked="grammar")


def prefilling(scheduler: Scheduler) -> None:
    scheduler.submit(ask("a", PROMPT), 0.0)
    step(scheduler)
    assert counters(scheduler, "a")[1] < 13


def decoding(scheduler: Scheduler) -> None:
    scheduler.submit(ask("a", PROMPT, max_tokens=9), 0.0)
    for _ in range(4):
        step(scheduler)
    assert counters(scheduler, "a") == (13 + 3, 15, 15)


def in_flight(scheduler: Scheduler) -> None:
    decoding(scheduler)
    scheduler.plan(0.0)
    scheduler.plan(0.0)


def preempted(scheduler: Scheduler) -> None:
    decoding(scheduler)
    scheduler.reset_prefix_cache(reset_running_requests=True)


def preempted_and_parked(scheduler: Scheduler) -> None:
    preempted(scheduler)
    assert scheduler.park("a", "grammar", 0.0)


PLACES = [waiting, parked, prefilling, decoding, in_flight, preempted, preempted_and_parked]


@pytest.mark.parametrize("bring", PLACES)
def test_an_abort_works_everywhere_once_and_frees_everything(
    bring: Callable[[Scheduler], None],
) -> None:
    scheduler = small(max_num_batched_tokens=8)
    bring(scheduler)
    assert scheduler.abort("a", 0.0)
    scheduler.check()
    assert not scheduler.abort("a", 0.0)
    taken = scheduler.snapshot()
    assert (taken["waiting"], taken["parked"], taken["running"]) == ([], {}, [])
    assert taken["free_blocks"] == 16
    assert taken["requests"]["a"]["state"] == "FINISHED_ABORTED"
    assert (scheduler.unfinished, scheduler.stats.finished) == (0, 1)
    assert scheduler.plan(0.0).to_dict()["finished"] == ["a"]
    assert not scheduler.abort("a", 0.0)
    assert scheduler.plan(0.0).to_dict()["finished"] == []


def test_an_abort_of_nobody_is_no_fault() -> None:
    assert not small().abort("nobody", 0.0)


def test_an_abort_in_flight_yields_no_token() -> None:
    scheduler = small()
    for name in "ab":
        scheduler.submit(ask(name, 5), 0.0)
    plans = [scheduler.plan(0.0), scheduler.plan(0.0)]
    scheduler.abort("a", 0.0)
    for plan in plans:
        assert commit(scheduler, plan) == {"b": {"tokens": [9], "finish": None}}


def test_a_scheduler_with_work_in_flight_is_not_idle_though_nobody_is_here() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0)
    plan = scheduler.plan(0.0)
    scheduler.abort("a", 0.0)
    assert (scheduler.unfinished, scheduler.idle) == (0, False)
    commit(scheduler, plan)
    assert scheduler.idle


def test_blocks_of_an_aborted_request_may_be_taken_while_its_step_still_runs() -> None:
    """The device runs steps in order, so the next owner writes after the last one."""
    scheduler = small(num_blocks=4)
    pipeline = Pipeline(scheduler, depth=2)
    scheduler.submit(ask("a", 13, max_tokens=4), 0.0)
    pipeline.launch()
    scheduler.abort("a", 0.0)
    other = ask("b", 14, max_tokens=3)
    scheduler.submit(other, 0.0)
    assert len(pipeline.launch().admitted[0].blocks) == 4
    assert pipeline.run().got == {"b": reference(other, 50, 64)[0]}


# -- pause, resume, drain ----------------------------------------------------


def test_a_pause_lets_nobody_in_and_residents_go_on() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5, max_tokens=3), 0.0)
    step(scheduler)
    scheduler.pause()
    scheduler.submit(ask("b", 5), 0.0)
    assert tokens_of_steps(scheduler, 3) == [{"a": 1}, {"a": 1}, {}]
    scheduler.resume()
    assert step(scheduler)["tokens"] == {"b": 5}


def test_a_pause_keeps_out_the_preempted_too() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0)
    step(scheduler)
    scheduler.pause("new")
    scheduler.reset_prefix_cache(reset_running_requests=True)
    assert step(scheduler)["tokens"] == {}
    scheduler.resume()
    assert step(scheduler)["resumed"] == ["a"]


def test_a_pause_of_everything_plans_nothing_and_takes_results() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5, max_tokens=3), 0.0)
    plan = scheduler.plan(0.0)
    scheduler.pause("all")
    assert scheduler.plan(0.0).to_dict()["tokens"] == {}
    assert commit(scheduler, plan)["a"]["tokens"] == [9]
    assert tokens_of_steps(scheduler, 2) == [{}, {}]
    assert state(scheduler, "a")["state"] == "RUNNING"
    scheduler.resume()
    assert finish_all(scheduler) == {"a": [9, 9]}


def test_a_plan_made_while_everything_is_paused_still_tells_who_left() -> None:
    """The runner frees what it keeps of a request when it is told, not when work resumes."""
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0)
    step(scheduler)
    scheduler.pause("all")
    scheduler.abort("a", 0.0)
    plan = scheduler.plan(0.0)
    assert plan.finished == ("a",)
    assert plan.released == (0,)
    assert scheduler.plan(0.0).finished == ()


def test_there_are_two_kinds_of_pause() -> None:
    with pytest.raises(ConfigError, match="'everything'"):
        small().pause("everything")  # type: ignore[arg-type]


def test_a_drain_takes_nobody_new_and_ends_everybody_here() -> None:
    scheduler = small(max_num_seqs=1)
    scheduler.submit(ask("a", 5), 0.0)
    scheduler.submit(ask("b", 5), 0.0)
    step(scheduler)
    scheduler.drain()
    with pytest.raises(QueueFull, match="draining"):
        scheduler.submit(ask("c", 5), 0.0)
    assert finish_all(scheduler) == {"a": [9] * 3, "b": [9] * 4}
    assert scheduler.idle


# -- the prefix cache --------------------------------------------------------


def test_a_reset_forgets_all_content() -> None:
    scheduler = small()
    scheduler.submit(ask("a", PROMPT, max_tokens=1), 0.0)
    finish_all(scheduler)
    assert findable(scheduler, PROMPT) == 12
    assert scheduler.reset_prefix_cache()
    assert findable(scheduler, PROMPT) == 0
    scheduler.check()


def test_a_reset_is_refused_while_blocks_are_held_and_changes_nothing() -> None:
    scheduler = small()
    scheduler.submit(ask("a", PROMPT), 0.0)
    step(scheduler)
    before = scheduler.snapshot()
    assert not scheduler.reset_prefix_cache()
    assert scheduler.snapshot() == before
    assert findable(scheduler, PROMPT) == 12


def test_a_reset_may_preempt_residents_who_come_back_in_order() -> None:
    scheduler = small()
    for name in "abc":
        scheduler.submit(ask(name, PROMPT, max_tokens=9), 0.0)
    step(scheduler)
    scheduler.submit(ask("d", 5), 0.0)
    assert scheduler.reset_prefix_cache(reset_running_requests=True)
    scheduler.check()
    assert findable(scheduler, PROMPT) == 0
    assert scheduler.snapshot()["waiting"] == ["a", "b", "c", "d"]
    plan = step(scheduler)
    assert (plan["preempted"], plan["resumed"]) == (["c", "b", "a"], ["a", "b", "c"])
    assert plan["tokens"] == {"a": 14, "b": 2, "c": 2, "d": 5}


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_reset_with_steps_in_flight_costs_no_token_and_doubles_none(depth: int) -> None:
    scheduler = small()
    asked = [ask(name, PROMPT, max_tokens=9, seed=seed) for seed, name in enumerate("ab")]
    for one in asked:
        scheduler.submit(one, 0.0)
    pipeline = Pipeline(scheduler, depth)
    for _ in range(2):
        while len(pipeline.flight) < depth:
            pipeline.launch()
        assert scheduler.reset_prefix_cache(reset_running_requests=True)
        pipeline.land()
    pipeline.run()
    assert pipeline.got == {one.id: reference(one, 50, 64)[0] for one in asked}


# -- a step that fails -------------------------------------------------------


def test_a_failed_step_ends_those_in_it_with_an_error_once() -> None:
    scheduler = small(max_num_seqs=2)
    for name in "abc":
        scheduler.submit(ask(name, 5), 0.0)
    plan = scheduler.plan(0.0)
    ends = scheduler.fail(plan, 0.0, "the device is on fire").finished
    assert [(end.request_id, end.finish, end.message) for end in ends] == [
        ("a", Finish.ERROR, "the device is on fire"),
        ("b", Finish.ERROR, "the device is on fire"),
    ]
    scheduler.check()
    assert scheduler.fail(plan, 0.0).finished == ()
    assert scheduler.commit(plan, answer(plan), 0.0).to_dict() == {}
    assert scheduler.snapshot()["free_blocks"] == 16
    assert scheduler.plan(0.0).to_dict()["finished"] == ["a", "b"]


def test_those_who_were_not_in_it_go_on() -> None:
    scheduler = small(max_num_seqs=1)
    for name in "ab":
        scheduler.submit(ask(name, 5, max_tokens=2), 0.0)
    scheduler.fail(scheduler.plan(0.0), 0.0)
    assert finish_all(scheduler) == {"b": [9, 9]}


def test_a_failed_step_takes_those_behind_it_along() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5, max_tokens=9), 0.0)
    first = scheduler.plan(0.0)
    scheduler.submit(ask("b", 5, max_tokens=9), 0.0)
    second = scheduler.plan(0.0)
    ends = scheduler.fail(first, 0.0).to_dict()
    assert ends == {name: {"tokens": [], "finish": "error"} for name in "ab"}
    assert scheduler.commit(second, answer(second), 0.0).to_dict() == {}
    assert scheduler.fail(second, 0.0).to_dict() == {}
    assert scheduler.idle


def test_no_block_is_findable_that_a_failed_step_was_to_compute() -> None:
    scheduler = small()
    for name in "ab":
        scheduler.submit(ask(name, PROMPT), 0.0)
    plan = scheduler.plan(0.0)
    assert findable(scheduler, PROMPT) == 12
    scheduler.fail(plan, 0.0)
    assert findable(scheduler, PROMPT) == 0


def test_what_earlier_steps_computed_is_still_there() -> None:
    scheduler = small(max_num_batched_tokens=8)
    scheduler.submit(ask("a", PROMPT), 0.0)
    step(scheduler)
    scheduler.fail(scheduler.plan(0.0), 0.0)
    assert findable(scheduler, PROMPT) == 8


def test_a_block_of_a_request_aborted_in_a_step_that_fails_is_forgotten_too() -> None:
    scheduler = small()
    for name in "ab":
        scheduler.submit(ask(name, 8 if name == "b" else PROMPT), 0.0)
    plan = scheduler.plan(0.0)
    scheduler.abort("a", 0.0)
    scheduler.fail(plan, 0.0)
    assert findable(scheduler, PROMPT) == 0
    scheduler.check()


def test_a_step_that_is_not_in_flight_cannot_fail() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0)
    plan = scheduler.plan(0.0)
    commit(scheduler, plan)
    for give_up in (scheduler.fail, scheduler.retry):
        with pytest.raises(StepError, match="step 1 is not in flight"):
            give_up(plan, 0.0)
    assert state(scheduler, "a")["state"] == "RUNNING"


def test_a_lost_step_is_computed_again_with_the_same_tokens() -> None:
    scheduler = small()
    asked = [ask(name, PROMPT, max_tokens=9, seed=seed) for seed, name in enumerate("abc")]
    for one in asked:
        scheduler.submit(one, 0.0)
    pipeline = Pipeline(scheduler, depth=2)
    pipeline.launch()
    pipeline.launch()
    pipeline.land()
    lost = pipeline.launch()
    pipeline.flight.clear()
    scheduler.retry(pipeline.plans[1], 0.0)
    scheduler.retry(lost, 0.0)  # has gone with the first
    scheduler.check()
    assert scheduler.snapshot()["waiting"] == ["a", "b", "c"]
    pipeline.run()
    assert pipeline.got == {one.id: reference(one, 50, 64)[0] for one in asked}
    assert pipeline.ends == {one.id: ["length"] for one in asked}


def test_a_lost_first_step_leaves_nothing_to_find() -> None:
    scheduler = small()
    scheduler.submit(ask("a", PROMPT), 0.0)
    scheduler.retry(scheduler.plan(0.0), 0.0)
    assert findable(scheduler, PROMPT) == 0
    plan = step(scheduler)
    assert (plan["preempted"], plan["resumed"], plan["tokens"]) == (["a"], ["a"], {"a": 13})


def test_the_result_of_a_lost_step_may_still_come_and_is_ignored() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0)
    lost = scheduler.plan(0.0)
    scheduler.retry(lost, 0.0)
    plan = scheduler.plan(0.0)
    assert scheduler.commit(lost, answer(lost), 0.0).to_dict() == {}
    assert commit(scheduler, plan, a=[5]) == {"a": {"tokens": [5], "finish": None}}


# -- ends that no commit made ------------------------------------------------


def test_a_request_whose_deadline_passed_in_the_queue_ends_with_an_error_once() -> None:
    scheduler = small(max_num_seqs=1, policy="deadline", refuse_late=True)
    scheduler.submit(ask("a", 5, max_tokens=9), 0.0)
    step(scheduler, 0.0)
    scheduler.submit(ask("late", 5, deadline=2.0), 0.0)
    step(scheduler, 2.0)
    assert state(scheduler, "late")["state"] == "WAITING"
    plan = scheduler.plan(2.5)
    assert plan.to_dict()["finished"] == ["late"]
    outputs = scheduler.commit(plan, answer(plan), 2.5)
    (end,) = outputs.finished
    assert (end.request_id, end.finish) == ("late", Finish.TIMEOUT)
    assert "deadline" in end.message
    assert outputs.to_dict()["late"] == {"tokens": [], "finish": "timeout"}
    assert "late" not in commit(scheduler, scheduler.plan(3.0), 3.0)


def test_an_end_is_told_even_if_there_is_nothing_to_compute() -> None:
    scheduler = small(policy="deadline", refuse_late=True)
    scheduler.submit(ask("late", 5, deadline=2.0), 0.0)
    plan = scheduler.plan(9.0)
    assert len(plan.rows) == 0
    told = scheduler.commit(plan, StepResult.of(plan, {}), 9.0).to_dict()
    assert told == {"late": {"tokens": [], "finish": "timeout"}}


def test_a_scheduler_with_an_end_to_tell_is_not_idle() -> None:
    """A loop that runs until nothing is left must not stop before it told the last end."""
    scheduler = small(policy="deadline", refuse_late=True)
    scheduler.submit(ask("late", 5, deadline=2.0), 0.0)
    plan = scheduler.plan(9.0)
    assert (scheduler.unfinished, scheduler.idle) == (0, False)
    scheduler.commit(plan, StepResult.of(plan, {}), 9.0)
    assert scheduler.idle


# -- time --------------------------------------------------------------------


def test_a_clock_that_goes_backwards_stands_still_here() -> None:
    scheduler = small(max_num_seqs=1)
    scheduler.submit(ask("a", 5, max_tokens=9), 10.0)
    scheduler.submit(ask("b", 5), 10.0)
    step(scheduler, 4.0)
    step(scheduler, 12.0)
    step(scheduler, -3.0)
    scheduler.abort("b", 11.0)
    assert scheduler.state.now == 12.0
    assert "waited 2.0 s: 2.0 s for a slot" in scheduler.explain("b")
    assert "2.0 s: ended (abort)" in scheduler.explain("b")
    assert finish_all(scheduler) == {"a": [9] * 6}


def test_a_clock_that_jumps_ages_the_waiting() -> None:
    scheduler = small(max_num_seqs=1, policy="priority", ageing_s=60.0)
    scheduler.submit(ask("old", 5, max_tokens=1, priority=9), 0.0)
    scheduler.submit(ask("new", 5, max_tokens=1, priority=0), 1e6)
    assert step(scheduler, 1e6)["new"] == ["old"]


def test_the_same_calls_give_the_same_plans() -> None:
    def run() -> list[dict[str, object]]:
        scheduler = small(num_blocks=6, max_num_batched_tokens=9)
        for number, name in enumerate("abcde"):
            scheduler.submit(ask(name, 3 + number, max_tokens=9), 0.0)
        return [step(scheduler, float(now)) for now in range(40)]

    first = run()
    assert first == run()
    assert any(plan["preempted"] for plan in first)


# -- plain data --------------------------------------------------------------


def test_a_plan_as_plain_data_has_exactly_these_keys() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0)
    plan = scheduler.plan(0.0)
    assert plan.to_dict() == {
        "step": 1,
        "tokens": {"a": 5},
        "new": ["a"],
        "resumed": [],
        "preempted": [],
        "finished": [],
        "total": 5,
        "drafts": {},
        "encoder": {},
        "blocks": {"a": [[0, 1]]},
        "copies": [],
        "swap_out": [],
        "swap_in": [],
    }


def test_the_heart_alone_as_a_notebook_uses_it() -> None:
    scheduler = Scheduler.create(
        max_num_seqs=8,
        max_num_batched_tokens=64,
        max_model_len=1024,
        num_blocks=128,
        block_size=16,
        policy="fcfs",
        discipline="unified",
    )
    scheduler.submit(Request(id="a", prompt=[5, 6, 7], max_tokens=4), now=0.0)
    plan = scheduler.plan(now=0.0)
    outputs = scheduler.commit(plan, StepResult.of(plan, {"a": [17]}), now=0.1)
    assert outputs.to_dict() == {"a": {"tokens": [17], "finish": None}}
    assert scheduler.abort("a", now=0.2)
    assert "ended (abort)" in scheduler.explain("a")


def test_a_slot_forgets_how_often_its_last_sequence_got_nothing() -> None:
    scheduler = small(max_num_seqs=1)
    scheduler.submit(ask("a", 3, max_tokens=2), 0.0)
    step(scheduler)
    slot = np.array([sequence(scheduler, "a").slot])
    scheduler.state.table.idle(slot, step=1, cause=np.array([Idle.BUDGET]))
    assert "1 step without a position" in scheduler.explain("a")
    finish_all(scheduler)
    scheduler.submit(ask("b", 3), 0.0)
    step(scheduler)
    assert "without a position" not in scheduler.explain("b")


def test_a_row_that_failed_has_no_negative_number() -> None:
    scheduler = small()
    for name in "ab":
        scheduler.submit(ask(name, 3), 0.0)
    plan = scheduler.plan(0.0)
    good = answer(plan)
    count = good.count.copy()
    count[-1] = 0
    with pytest.raises(StepError, match="of them \\[-1\\] failed"):
        scheduler.commit(plan, StepResult(good.ids, count, failed=(Failed(-1, "lost"),)), 0.0)


def test_who_was_swapped_last_comes_back_first() -> None:
    scheduler = small(preemption_mode="swap", swap_space=16)
    for name in "ab":
        scheduler.submit(ask(name, 5, max_tokens=9), 0.0)
    step(scheduler)
    for name in "ab":
        preempt(scheduler, name)
    assert scheduler.snapshot()["swapped"] == ["b", "a"]


def test_a_family_whose_first_child_ended_in_the_prompt_waits_in_front_of_its_equals() -> None:
    scheduler = small(policy="priority", max_num_seqs=3, max_num_batched_tokens=8)
    scheduler.submit(ask("a", 20, n=3), 0.0)
    step(scheduler)
    scheduler.submit(ask("other", 3, arrival=-5.0), 0.0)
    scheduler.abort("a", 0.0, child=0)
    assert scheduler.snapshot()["waiting"] == ["a", "other"]


def test_a_search_for_the_best_that_failed_has_no_choices() -> None:
    """Though one of its sequences had come to its end."""
    scheduler = small()
    asked = ask("a", 3, max_tokens=9, n=1, best_of=2, stop_token_ids=(5,))
    scheduler.submit(asked, 0.0)
    step(scheduler)
    plan = scheduler.plan(0.0)
    tokens, scores = {"0_a": [5], "1_a": [6]}, {"0_a": [-1.0], "1_a": [-1.0]}
    assert scheduler.commit(plan, StepResult.of(plan, tokens, scores), 0.0).finished == ()
    (end,) = scheduler.fail(scheduler.plan(0.0), 0.0).finished
    assert (end.request_id, end.finish, end.choices) == ("a", Finish.ERROR, ())


def test_the_swapped_count_among_those_who_wait_when_one_comes() -> None:
    scheduler = small(preemption_mode="swap", swap_space=16)
    scheduler.submit(ask("a", 5, max_tokens=9), 0.0)
    step(scheduler)
    preempt(scheduler, "a")
    scheduler.submit(ask("b", 5), 0.0)
    assert "submitted, with 1 request waiting" in scheduler.explain("b")


def test_ranks_of_the_swapped_are_asked_for_again_in_every_step() -> None:
    scheduler = steps.make(policy="shortest")
    swapped = scheduler.state.swapped
    swapped._asks_left = 0
    scheduler.plan(0.0)
    assert swapped._asks_left > 0

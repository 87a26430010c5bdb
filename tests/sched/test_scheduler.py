"""Requests and their life as a caller sees it: submit, plan, commit, abort, pause, fail."""

import pytest

from paceline import ConfigError, QueueFull, Request, RequestError, Scheduler, StepResult
from paceline.testing.reference import reference
from tests.sched.support import (
    PROMPT,
    Pipeline,
    ask,
    commit,
    findable,
    finish_all,
    small,
    state,
    step,
    tokens_of_steps,
)

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
    with pytest.raises(RequestError, match="'a' is in use"):
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


# -- ends that no commit made ------------------------------------------------


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
        "states": {},
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

"""What code outside `sched` may read of a scheduler."""

from paceline.core.capabilities import StepTimes
from paceline.core.events import BlockStored, Happened
from paceline.sched.view import Gauges
from tests.sched.support import TOKEN, answer, ask, crowded, finish_all, small, step


def test_a_request_is_live_from_submission_to_its_end() -> None:
    scheduler = small()
    view = scheduler.view
    for name in "ba":
        scheduler.submit(ask(name, 4, max_tokens=1), 0.0)
    assert view.live_ids() == ["b", "a"]
    assert view.is_live("a")
    assert (view.leader_serial("b"), view.leader_serial("a")) == (0, 1)
    assert view.ended("a") is None
    finish_all(scheduler)
    assert view.live_ids() == []
    assert not view.is_live("a")
    assert view.leader_serial("a") is None


def test_a_request_that_ended_is_found_before_and_after_the_next_plan() -> None:
    scheduler = small(journal_requests=1)
    for name in "ab":
        scheduler.submit(ask(name, 4, max_tokens=1), 0.0)
    step(scheduler)
    found = [scheduler.view.ended(name) for name in "ab"]
    assert [one and one.id for one in found] == ["a", "b"]
    scheduler.plan(0.0)
    assert scheduler.view.ended("a") is None, "the journal has room for one"
    assert scheduler.view.ended("b") is found[1]


def test_the_life_of_a_live_request_can_be_read() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 4), 1.0, parked="grammar")
    turns = [Happened.SUBMITTED, Happened.PARKED]
    assert [one.happened for one in scheduler.view.life("a")] == turns


def test_children_are_those_that_have_not_ended() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 4, n=3), 0.0)
    scheduler.submit(ask("b", 4), 0.0)
    assert scheduler.view.children("a") == [0, 1, 2]
    assert scheduler.view.children("b") == []
    scheduler.abort("a", 0.0, child=0)
    assert scheduler.view.children("a") == [1, 2]
    scheduler.abort("a", 0.0)
    assert scheduler.view.children("a") == []


def test_only_families_that_report_at_their_end_are_silent() -> None:
    scheduler = small()
    scheduler.submit(ask("best", 4, best_of=2), 0.0)
    scheduler.submit(ask("all", 4, n=2), 0.0)
    scheduler.submit(ask("one", 4), 0.0)
    view = scheduler.view
    assert [view.is_silent(name) for name in ("best", "all", "one", "?")] == [True, *[False] * 3]


def test_the_tokens_of_a_resident_child() -> None:
    scheduler = small()
    scheduler.submit(ask("a", range(4), n=2), 0.0)
    step(scheduler)
    plan = scheduler.plan(0.0)
    scheduler.commit(plan, answer(plan, {"0_a": [7], "1_a": [8]}), 0.0)
    assert scheduler.view.child_tokens("a", 0).tolist() == [0, 1, 2, 3, 7]
    assert scheduler.view.child_tokens("a", 1).tolist() == [0, 1, 2, 3, 8]


def test_queued_counts_the_waiting_and_the_parked() -> None:
    scheduler = small(max_num_seqs=1)
    for name in "abc":
        scheduler.submit(ask(name, 4), 0.0)
    scheduler.submit(ask("d", 4), 0.0, parked="grammar")
    step(scheduler)
    assert scheduler.view.queued == 3
    assert scheduler.view.gauges() == Gauges(
        running=1,
        waiting=2,
        parked=1,
        swapped=0,
        kv_usage=scheduler.usage,
        total_blocks=16,
        block_size=4,
        drafting_paused=False,
    )


def test_drafting_is_paused_where_a_draft_takes_as_long_as_a_step() -> None:
    scheduler = small(num_speculative_tokens=3)
    scheduler.measure_steps(StepTimes(((1, 1.0), (9, 9.0)), ((1, 1.0), (9, 9.0))))
    scheduler.submit(ask("a", 4, max_tokens=9), 0.0)
    step(scheduler)
    assert not scheduler.view.gauges().drafting_paused
    step(scheduler)
    assert scheduler.view.gauges().drafting_paused


def test_a_family_runs_as_one_request() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 4, n=3), 0.0)
    step(scheduler)
    step(scheduler)
    assert scheduler.view.gauges().running == 1


def test_swapped_requests_are_queued() -> None:
    scheduler = crowded(swap_space=8, preemption_mode="swap")
    while not scheduler.view.gauges().swapped:
        step(scheduler)
    assert scheduler.view.queued == 1


def test_free_cached_counts_found_blocks_without_a_holder() -> None:
    scheduler = small(enable_kv_cache_events=True)
    scheduler.submit(ask("a", 9, max_tokens=2), 0.0)
    step(scheduler)
    keys = [one.key for one in scheduler.cache_events() if isinstance(one, BlockStored)]
    assert len(keys) == 2
    assert scheduler.view.free_cached(keys) == 0
    finish_all(scheduler)
    assert scheduler.view.free_cached(keys) == 2
    assert scheduler.view.free_cached([b"unknown"]) == 0


def test_the_open_spell_is_that_of_the_latest_step() -> None:
    scheduler = small(max_num_seqs=1)
    scheduler.submit(ask("a", 4, max_tokens=2), 0.0)
    scheduler.submit(ask("b", 4), 0.0)
    step(scheduler)
    spell = scheduler.view.open_spell
    assert spell is not None
    assert (spell.gate.reason, spell.gate.request_id) == ("seqs", "b")
    step(scheduler, a=[TOKEN])
    step(scheduler)
    assert scheduler.view.open_spell is None


def test_a_scheduler_with_parked_requests_alone_has_nothing_to_run() -> None:
    scheduler = small()
    assert not scheduler.view.is_runnable
    scheduler.submit(ask("a", 4, n=2), 0.0, parked="grammar")
    assert not scheduler.view.is_runnable
    scheduler.wake("a", 0.0)
    assert scheduler.view.is_runnable

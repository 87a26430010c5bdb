"""The state of a scheduler, and what the next plan tells the runner about it."""

from collections.abc import Callable

import pytest

from paceline import StepResult
from paceline.core.plan import Admitted
from paceline.sched.state import Changes, SchedulerState
from tests.sched import constant_steps as steps
from tests.sched.support import PROMPT, ask, commit, sequence, small, step

# -- work in flight ----------------------------------------------------------


def test_work_in_flight_is_counted_oldest_first() -> None:
    scheduler = small()
    for name in "ab":
        scheduler.submit(ask(name, 5), 0.0)
    assert scheduler.state.in_flight() == []
    plan = scheduler.plan(0.0)
    assert scheduler.state.in_flight() == [0, 1]
    commit(scheduler, plan)
    assert scheduler.state.in_flight() == []


# -- what a preemption would cost --------------------------------------------


def test_the_loss_of_a_resident_is_what_it_computed_and_nobody_else_holds() -> None:
    scheduler = small()
    for name in "ab":
        scheduler.submit(ask(name, PROMPT), 0.0)
    scheduler.submit(ask("c", 7), 0.0)
    step(scheduler)
    assert [scheduler.state.loss(slot) for slot in (0, 1, 2)] == [13 - 12, 13 - 12, 7]


def test_uncached_is_what_a_waiting_sequence_would_have_to_compute() -> None:
    scheduler = small(max_num_seqs=1)
    for name in "ab":
        scheduler.submit(ask(name, PROMPT), 0.0)
    assert scheduler.state.uncached(sequence(scheduler, "b")) == 13
    step(scheduler)
    assert scheduler.state.uncached(sequence(scheduler, "b")) == 1


# -- the check ---------------------------------------------------------------


@pytest.mark.parametrize(
    "spoil",
    [
        lambda at: at.live.pop("b"),
        lambda at: at.live.update(c=at.live.pop("b")),
        lambda at: at.cache.pool.drop([at.cache.tables.blocks(0)[0]]),
        lambda at: at.queue.remove(at.live["b"]),
        lambda at: at.cache.release(0, at.live["a"]),
    ],
)
def test_the_check_notices_what_is_lost(spoil: Callable[[SchedulerState], object]) -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0)
    step(scheduler)
    scheduler.pause()
    scheduler.submit(ask("b", 5), 0.0)
    scheduler.check()
    spoil(scheduler.state)
    with pytest.raises(AssertionError):
        scheduler.check()


def test_what_comes_back_without_a_row_is_in_flight() -> None:
    swapping = {"preemption_mode": "swap", "swap_space": 32, "reserve_full_prompt": False}
    sizes = {"num_blocks": 8, "max_model_len": 24, "max_num_batched_tokens": 8, "max_num_seqs": 3}
    scheduler = steps.make(discipline="prefill_first", max_wait=0.0, **sizes, **swapping)
    for name, (prompt, most) in enumerate([(16, 5), (3, 5), (11, 1)]):
        scheduler.submit(steps.request(str(name), [name] * prompt, max_tokens=most), 0.0)
    for now in range(200):
        plan = scheduler.plan(float(now))
        rows = plan.rows.slot.tolist()
        if plan.swap_in and (back := [new for new in plan.admitted if new.slot not in rows]):
            assert back[0].slot in scheduler.state.in_flight()
            return
        result = StepResult.of(plan, {label: [5] for label in steps.sampling(plan)})
        scheduler.commit(plan, result, float(now))
    raise AssertionError("it never came back without a row")


def newcomer(slot: int) -> Admitted:
    request = ask("a", 3)
    return Admitted(slot, request, request.prompt, 0, (1,), resumed=False)


def gathered() -> Changes:
    """A fork into each of slots 1 and 2."""
    news = Changes()
    for slot in (1, 2):
        news.admitted.append(newcomer(slot))
        news.copies.append((slot, ((0, slot),)))
        news.chosen[slot] = 70 + slot
    return news


def test_there_is_no_news_at_first_and_none_is_shared() -> None:
    news = Changes()
    assert (news.released, news.preempted, list(news.finished)) == ([], [], [])
    assert (news.admitted, news.copies, news.chosen) == ([], [], {})
    assert (news.swap_out, news.swap_in) == ((), ())
    news.released.append(3)
    assert Changes().released == []


def test_what_was_to_be_told_of_a_slot_is_void_when_it_is_given_up() -> None:
    news = gathered()
    news.release(1)
    assert news.released == [1]
    assert [new.slot for new in news.admitted] == [2]
    assert news.copies == [(2, ((0, 2),))]
    assert news.chosen == {2: 72}


def test_a_slot_of_which_nothing_was_to_be_told_is_just_given_up() -> None:
    news = gathered()
    news.release(5)
    assert (news.released, len(news.admitted), len(news.copies)) == ([5], 2, 2)
    empty = Changes()
    empty.release(5)
    assert empty.released == [5]


def test_copies_for_one_that_goes_to_the_host_are_still_done() -> None:
    """What it was to begin with is what is kept of it."""
    news = gathered()
    news.copies.append((1, ((0, 9),)))
    assert news.keep_copies([1]) == [((0, 1),), ((0, 9),)]
    news.release(1)
    assert [pairs for _, pairs in news.copies] == [((0, 1),), ((0, 2),), ((0, 9),)]
    assert [slot for slot, _ in news.copies] == [-1, 2, -1]
    assert [new.slot for new in news.admitted] == [2]


def test_no_copies_are_kept_for_one_that_has_none() -> None:
    news = gathered()
    assert news.keep_copies([7]) == []
    assert [slot for slot, _ in news.copies] == [1, 2]


def test_the_ends_told_by_a_plan_stay_told() -> None:
    """Edge case 9: A later end is in the next plan and not in one that was handed out before."""
    scheduler = small()
    for name in "ab":
        scheduler.submit(ask(name, 3), 0.0)
    step(scheduler)
    scheduler.abort("a", 0.0)
    first = scheduler.plan(0.0)
    scheduler.abort("b", 0.0)
    second = scheduler.plan(0.0)
    assert (first.finished, second.finished) == (("a",), ("b",))


def test_an_empty_step_tells_who_ended() -> None:
    """Edge case 10: The last end of all still reaches the runner."""
    scheduler = small()
    scheduler.submit(ask("a", 3, max_tokens=1), 0.0)
    step(scheduler)
    plan = scheduler.plan(0.0)
    assert (len(plan.rows), plan.finished, plan.released) == (0, ("a",), (0,))


def test_a_resumed_sequence_tells_all_its_blocks_and_a_running_one_the_new_ones() -> None:
    """Edge case 30: And one that needs no new block tells none."""
    scheduler = small()
    scheduler.submit(ask("a", 4, max_tokens=9), 0.0)
    assert len(step(scheduler)["blocks"]["a"][0]) == 1
    assert len(step(scheduler)["blocks"]["a"][0]) == 1
    assert step(scheduler)["blocks"] == {}
    scheduler.reset_prefix_cache(reset_running_requests=True)
    assert len(step(scheduler)["blocks"]["a"][0]) == 2


def test_a_resumed_sequence_brings_all_its_tokens() -> None:
    """Edge case 31: The runner keeps nothing of a sequence that left its slot."""
    scheduler = small()
    scheduler.submit(ask("a", PROMPT, max_tokens=9), 0.0)
    step(scheduler, a=[1])
    step(scheduler, a=[2])
    scheduler.retry(scheduler.plan(0.0), 0.0)
    (again,) = scheduler.plan(0.0).admitted
    assert again.tokens.tolist() == [*PROMPT, 1, 2]


def test_a_resumed_sequence_is_told_as_resumed_with_all_its_tokens() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5, max_tokens=9), 0.0)
    step(scheduler, a=[1])
    scheduler.reset_prefix_cache(reset_running_requests=True)
    plan = scheduler.plan(0.0)
    told = plan.to_dict()
    assert (told["new"], told["resumed"], told["preempted"]) == ([], ["a"], ["a"])
    assert plan.admitted[0].tokens.tolist() == [*ask("a", 5).prompt.tolist(), 1]
    assert plan.released == (0,)

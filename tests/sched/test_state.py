"""What can be asked of the state: work in flight, the cost of a preemption, the invariants."""

from collections.abc import Callable

import pytest

from paceline import StepResult
from paceline.sched.state import SchedulerState
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

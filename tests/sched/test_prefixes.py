"""Full blocks of residents get keys when something needs them, and not before."""

import pytest

from paceline import Scheduler
from paceline.core.events import BlockStored
from paceline.core.request import Item
from paceline.sim.oracle import OracleRunner
from tests.sched import constant_steps as steps
from tests.sched.support import ask, commit, findable, sequence, small, step

PROMPT = list(range(100, 110))  # two full blocks and half of a third


def keys(scheduler: Scheduler, name: str) -> int:
    return len(sequence(scheduler, name).keys)


def test_a_resident_has_few_keys_until_a_lookup_reaches_its_blocks() -> None:
    scheduler = small()
    scheduler.submit(ask("a", PROMPT), 0.0)
    step(scheduler)
    assert keys(scheduler, "a") == 1  # of the block that its own lookup looked for
    assert findable(scheduler, PROMPT) == 8
    assert keys(scheduler, "a") == 2


def test_what_a_step_in_flight_fills_is_found_until_the_step_fails() -> None:
    scheduler = small()
    scheduler.submit(ask("a", PROMPT), 0.0)
    plan = scheduler.plan(0.0)
    assert findable(scheduler, PROMPT) == 8
    scheduler.fail(plan, 0.0)
    assert findable(scheduler, PROMPT) == 0


def test_positions_that_were_not_handed_out_are_not_found() -> None:
    scheduler = small(max_num_batched_tokens=7)
    scheduler.submit(ask("a", PROMPT), 0.0)
    scheduler.plan(0.0)
    assert findable(scheduler, PROMPT) == 4


def test_positions_whose_tokens_are_not_known_yet_are_not_found() -> None:
    scheduler = small()
    scheduler.submit(ask("a", PROMPT[:7], max_tokens=8), 0.0)
    first, second = scheduler.plan(0.0), scheduler.plan(0.0)  # the second writes position 7
    assert findable(scheduler, PROMPT[:7]) == 4
    commit(scheduler, first, a=[107])
    assert findable(scheduler, PROMPT[:8]) == 8
    commit(scheduler, second, a=[108])


def test_of_two_that_compute_the_same_in_one_step_the_second_waits_for_the_first() -> None:
    scheduler = small()
    scheduler.submit(ask("a", PROMPT), 0.0)
    scheduler.submit(ask("b", PROMPT), 0.0)
    plan = scheduler.plan(0.0)
    assert plan.to_dict()["tokens"] == {"a": 10, "b": 2}


@pytest.mark.parametrize("listening", [True, False])
def test_only_with_events_is_everything_sealed_as_it_is_computed(listening: bool) -> None:
    scheduler = small(enable_kv_cache_events=listening)
    scheduler.submit(ask("a", PROMPT), 0.0)
    step(scheduler)
    stored = [event for event in scheduler.cache_events() if isinstance(event, BlockStored)]
    assert [event.tokens for event in stored] == (
        [(100, 101, 102, 103), (104, 105, 106, 107)] if listening else []
    )


def test_equal_tokens_with_and_without_an_image_share_nothing_behind_it() -> None:
    items = {"text": (), "cat": (Item("cat", 4, 8),), "dog": (Item("dog", 4, 8),)}
    for order in (("text", "cat"), ("cat", "text"), ("cat", "dog"), ("cat", "text", "dog")):
        scheduler, runner = steps.make(), OracleRunner(32, 4, 50)
        for name in order:
            prompt = [9] * 4 + [7] * 8 + [1]
            scheduler.submit(steps.request(name, prompt, max_tokens=2, items=items[name]), 0.0)
            while not scheduler.idle:
                plan = scheduler.plan(0.0)
                scheduler.commit(plan, runner.run(plan), 0.0)
        assert scheduler.stats.prefix_hits == 4 * (len(order) - 1)

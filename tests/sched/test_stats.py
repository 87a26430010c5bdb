"""Running totals: what is counted, and when."""

import pytest

from paceline.sched.service.promises import CAUSES
from paceline.sched.stats import Stats
from tests.sched.support import ask, finish_all, small, step


def test_plain_data_names_every_total() -> None:
    told = Stats(steps=3, sampled=2).to_dict()
    assert (told["steps"], told["sampled"], told["planned"]) == (3, 2, 0)
    assert set(told) == {
        "steps",
        "planned",
        "sampled",
        "admissions",
        "preemptions",
        "swapped_out_blocks",
        "swapped_in_blocks",
        "swaps_refused",
        "forks",
        "copied_blocks",
        "finished",
        "stale_rows",
        "failed_rows",
        "drafted",
        "accepted",
        "prefix_queries",
        "prefix_hits",
        "resumed_queries",
        "resumed_hits",
        "external_queries",
        "external_hits",
        "encoder_queries",
        "encoder_hits",
        "encoded",
        "slo_attained",
        *(f"slo_missed_{cause}" for cause in CAUSES),
    }


def test_one_life_is_counted_once() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5, max_tokens=3), 0.0)
    finish_all(scheduler)
    stats = scheduler.stats
    assert (stats.steps, stats.planned, stats.sampled) == (3, 5 + 2, 3)
    assert (stats.admissions, stats.finished, stats.preemptions) == (1, 1, 0)


def test_a_prefix_is_asked_for_at_admission_and_not_while_waiting() -> None:
    """A request blocked for many steps is looked up in each of them and counted in none."""
    scheduler = small(max_num_seqs=1)
    scheduler.submit(ask("a", range(10), max_tokens=5), 0.0)
    scheduler.submit(ask("b", range(9), max_tokens=1), 0.0)
    for _ in range(4):
        step(scheduler)
    assert (scheduler.stats.prefix_queries, scheduler.stats.prefix_hits) == (10, 0)
    finish_all(scheduler)
    assert (scheduler.stats.prefix_queries, scheduler.stats.prefix_hits) == (10 + 9, 8)


def test_a_resumed_request_is_counted_apart() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 9, max_tokens=5), 0.0)
    step(scheduler)
    step(scheduler)
    plan = scheduler.plan(0.0)
    scheduler.retry(plan, 0.0)  # "a" knows 11 tokens, of which 10 were computed
    step(scheduler)
    stats = scheduler.stats
    assert (stats.prefix_queries, stats.prefix_hits) == (9, 0)
    assert (stats.resumed_queries, stats.resumed_hits) == (11, 8)
    assert (stats.admissions, stats.preemptions) == (2, 1)


def test_without_a_prefix_cache_nobody_asks_it() -> None:
    scheduler = small(enable_prefix_caching=False)
    for name in "ab":
        scheduler.submit(ask(name, range(9)), 0.0)
    finish_all(scheduler)
    assert (scheduler.stats.prefix_queries, scheduler.stats.prefix_hits) == (0, 0)
    assert scheduler.stats.admissions == 2


def test_drafts_count_as_drafted_whether_accepted_or_not() -> None:
    scheduler = small(num_speculative_tokens=3, speculation="fixed")
    scheduler.submit(ask("a", 4, max_tokens=20), 0.0)
    step(scheduler)
    step(scheduler, a=[1, 2, 3])  # two of three drafts were right
    step(scheduler, a=[4])  # none was
    assert (scheduler.stats.drafted, scheduler.stats.accepted) == (6, 2)
    assert scheduler.stats.sampled == 1 + 3 + 1


@pytest.mark.parametrize("blocks_held", [0, 4])
def test_usage_is_the_share_of_blocks_held(blocks_held: int) -> None:
    scheduler = small(num_blocks=16)
    if blocks_held:
        scheduler.submit(ask("a", 4 * blocks_held), 0.0)
        scheduler.plan(0.0)
    assert scheduler.usage == blocks_held / 16


def test_cached_blocks_that_nobody_holds_are_not_usage() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 12, max_tokens=1), 0.0)
    finish_all(scheduler)
    assert scheduler.usage == 0.0

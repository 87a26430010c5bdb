"""Least uncached work first, and what happens to that order while the cache changes."""

from typing import Any

from paceline import Scheduler
from paceline.sched.queue import REFRESHED_PER_STEP
from tests.sched.support import ask, finish_all, order, small, step

COMMON = range(32)


def shortest(**settings: Any) -> Scheduler:
    return small(**{"policy": "shortest", "max_num_seqs": 1} | settings)


def warmed(scheduler: Scheduler) -> Scheduler:
    """COMMON is in the cache, and nobody is here."""
    scheduler.submit(ask("warm", [*COMMON, 0], 1), now=0.0)
    finish_all(scheduler)
    return scheduler


def test_the_shortest_prompt_goes_first_then_the_earliest() -> None:
    scheduler = shortest()
    for name, prompt in (("long", 30), ("short", 3), ("middle", 10), ("equal", 3)):
        scheduler.submit(ask(name, prompt, 1), now=0.0)
    assert order(scheduler) == ["short", "equal", "middle", "long"]


def test_what_it_may_generate_does_not_count() -> None:
    scheduler = shortest()
    scheduler.submit(ask("talkative", 3, 30), now=0.0)
    scheduler.submit(ask("terse", 4, 1), now=0.0)
    assert order(scheduler) == ["talkative", "terse"]


def test_a_long_prompt_that_is_mostly_cached_goes_before_a_short_one_that_is_not() -> None:
    scheduler = warmed(shortest())
    scheduler.submit(ask("short", 8, 1), now=0.0)
    scheduler.submit(ask("long", [*COMMON, 5, 6, 7], 1), now=0.0)
    assert order(scheduler) == ["long", "short"]


def test_without_a_cache_only_length_counts() -> None:
    scheduler = warmed(shortest(enable_prefix_caching=False))
    scheduler.submit(ask("short", 8, 1), now=0.0)
    scheduler.submit(ask("long", [*COMMON, 5, 6, 7], 1), now=0.0)
    assert order(scheduler) == ["short", "long"]


def test_another_salt_has_nothing_cached() -> None:
    scheduler = warmed(shortest())
    scheduler.submit(ask("long", [*COMMON, 5, 6, 7], 1, cache_salt="pepper"), now=0.0)
    scheduler.submit(ask("short", 8, 1), now=0.0)
    assert order(scheduler) == ["short", "long"]


def test_one_moves_ahead_when_its_prefix_is_computed_while_it_waits() -> None:
    scheduler = shortest(long_prefill_token_threshold=8)
    scheduler.submit(ask("first", [*COMMON, 0], 4), now=0.0)
    step(scheduler)  # two blocks of it
    scheduler.submit(ask("long", [*COMMON, 5, 6, 7], 1), now=0.0)
    scheduler.submit(ask("short", 12, 1), now=0.0)
    assert scheduler.snapshot()["waiting"] == ["short", "long"]
    assert order(scheduler) == ["long", "short"]


def test_one_falls_back_when_its_prefix_is_forgotten_while_it_waits() -> None:
    scheduler = warmed(shortest())
    scheduler.pause()
    scheduler.submit(ask("long", [*COMMON, 5, 6, 7], 1), now=0.0)
    scheduler.submit(ask("short", 12, 1), now=0.0)
    assert scheduler.snapshot()["waiting"] == ["long", "short"]
    assert scheduler.reset_prefix_cache()
    scheduler.resume()
    assert order(scheduler) == ["short", "long"]


def test_every_rank_is_asked_for_again_within_a_round() -> None:
    """With n requests waiting a round takes n / REFRESHED_PER_STEP steps, rounded up."""
    others = 3 * REFRESHED_PER_STEP
    scheduler = shortest(long_prefill_token_threshold=4)
    scheduler.submit(ask("first", [*COMMON, *range(100, 128)], 1), now=0.0)
    step(scheduler)
    for number in range(others):
        scheduler.submit(ask(f"other {number}", 12, 1), now=0.0)
    scheduler.submit(ask("lucky", [*COMMON, 5, 6], 1), now=0.0)
    assert scheduler.snapshot()["waiting"][-1] == "lucky"
    for _ in range(len(COMMON) // 4 - 1):
        step(scheduler)  # now all of COMMON is there
    for _ in range(-(-(others + 1) // REFRESHED_PER_STEP)):
        step(scheduler)
    assert scheduler.snapshot()["waiting"][0] == "lucky"


def test_after_ageing_s_a_long_one_goes_first() -> None:
    scheduler = shortest(ageing_s=10.0)
    scheduler.submit(ask("long", 30, 1), now=0.0)
    scheduler.submit(ask("short", 3, 1), now=0.0)
    assert step(scheduler, now=9.9)["new"] == ["short"]
    scheduler.submit(ask("shorter", 2, 1), now=10.0)
    assert step(scheduler, now=10.0)["new"] == ["long"]


def test_a_preempted_one_counts_what_is_left_of_its_blocks() -> None:
    scheduler = shortest(max_num_seqs=3, num_blocks=16, max_num_batched_tokens=64)
    scheduler.submit(ask("a", 28, 30), now=0.0)
    scheduler.submit(ask("b", 30, 20), now=0.0)
    while "b" not in (step(scheduler)["preempted"]):
        pass
    scheduler.submit(ask("newcomer", 20, 1), now=0.0)
    assert scheduler.snapshot()["waiting"] == ["b", "newcomer"]  # most of b is still there


def test_the_newest_gives_way_however_short_it_is() -> None:
    scheduler = shortest(max_num_seqs=4, max_num_batched_tokens=64)
    scheduler.submit(ask("long", 40, 20), now=0.0)
    step(scheduler)
    scheduler.submit(ask("short", 17, 20), now=0.0)
    gone: list[str] = []
    while not gone:
        gone = step(scheduler)["preempted"]
    assert gone == ["short"]

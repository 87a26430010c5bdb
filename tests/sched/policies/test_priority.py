"""Smaller first; the worst gives way; who may push out whom; and how age protects."""

from collections import Counter
from random import Random
from typing import Any

import pytest

from paceline import Request, Scheduler
from tests.sched.support import ask, by_priority, finish_all, preempt, small, step


def pushy(**settings: Any) -> Scheduler:
    return small(**{"policy": "priority", "preempt_on_arrival": True} | settings)


def running(scheduler: Scheduler) -> list[str]:
    return scheduler.snapshot()["running"]


def waiting(scheduler: Scheduler) -> list[str]:
    return scheduler.snapshot()["waiting"]


# -- order ------------------------------------------------------------------


def test_the_smaller_goes_first_then_the_earlier_arrival_then_the_earlier_submission() -> None:
    scheduler = small(policy="priority")
    for name, priority, arrival in (
        ("third", 1, 0.0),
        ("last", 2, -9.0),
        ("second", 1, -5.0),
        ("fourth", 1, 0.0),
        ("first", -3, 0.0),
    ):
        scheduler.submit(ask(name, 2, 1, priority=priority, arrival=arrival), now=0.0)
    assert waiting(scheduler) == ["first", "second", "third", "fourth", "last"]


def test_a_preempted_one_goes_to_the_front_of_its_rank_and_no_further() -> None:
    scheduler = small(policy="priority", num_blocks=14, max_num_batched_tokens=64)
    scheduler.submit(ask("good", 20, 30, priority=0), now=0.0)
    scheduler.submit(ask("bad", 20, 20, priority=5, arrival=7.0), now=0.0)
    step(scheduler)
    for name, priority, arrival in (("peer", 5, 0.0), ("worse", 6, 0.0), ("better", 4, 0.0)):
        scheduler.submit(ask(name, 20, 2, priority=priority, arrival=arrival), now=0.0)
    while "bad" in running(scheduler):
        step(scheduler)
    assert waiting(scheduler) == ["better", "bad", "peer", "worse"]
    scheduler.park("bad", "grammar", now=0.0)
    assert waiting(scheduler) == ["better", "peer", "worse"]
    scheduler.wake("bad", now=0.0)
    assert waiting(scheduler) == ["better", "bad", "peer", "worse"]


# -- who gives way ----------------------------------------------------------


def test_the_worst_of_all_residents_gives_way_not_the_newest() -> None:
    scheduler = small(policy="priority", max_num_batched_tokens=64)
    scheduler.submit(ask("worst", 20, 20, priority=7), now=0.0)
    step(scheduler)
    scheduler.submit(ask("middle", 19, 20, priority=5), now=0.0)
    scheduler.submit(ask("best", 18, 20, priority=1), now=0.0)
    assert running(scheduler) == ["worst"]
    step(scheduler)
    assert running(scheduler) == ["worst", "best", "middle"]
    gone: list[str] = []
    while not gone:
        gone = step(scheduler)["preempted"]
    assert gone == ["worst"]


@pytest.mark.parametrize(("victim", "gone"), [("newest", "newest"), ("cheapest", "cheap")])
def test_among_the_worst_the_victim_setting_decides(victim: str, gone: str) -> None:
    scheduler = small(policy="priority", victim=victim, num_blocks=14, max_num_batched_tokens=64)
    scheduler.submit(ask("precious", 4, 40, priority=1), now=0.0)
    for name, prompt in (("dear", 20), ("cheap", 8), ("newest", 16)):
        scheduler.submit(ask(name, prompt, 20, priority=5), now=0.0)
    while not (preempted := step(scheduler)["preempted"]):
        pass
    assert preempted[0] == gone


def test_one_old_enough_to_go_first_is_spared_while_others_are_there() -> None:
    """Otherwise it would come right back, be pushed out again, and never get anywhere."""
    scheduler = small(policy="priority", ageing_s=10.0, max_num_batched_tokens=64)
    scheduler.submit(ask("old and bad", 20, 20, priority=9), now=0.0)
    step(scheduler, now=0.0)
    scheduler.submit(ask("young and good", 19, 20, priority=1), now=11.0)
    scheduler.submit(ask("young and better", 18, 20, priority=0), now=11.0)
    gone: list[str] = []
    while not gone:
        gone = step(scheduler, now=12.0)["preempted"]
    assert gone == ["young and good"]


def test_where_all_are_old_enough_the_oldest_is_spared() -> None:
    scheduler = small(policy="priority", ageing_s=10.0, max_num_batched_tokens=64)
    for since, name in enumerate(("oldest", "middle", "youngest")):
        scheduler.submit(ask(name, 20 - since, 20, priority=9 - since), now=float(since))
    step(scheduler, now=3.0)
    gone: list[str] = []
    while not gone:
        gone = step(scheduler, now=50.0)["preempted"]
    assert gone == ["youngest"]


# -- preemption on arrival --------------------------------------------------


def test_nobody_is_displaced_unless_asked_for() -> None:
    scheduler = small(policy="priority", max_num_seqs=1)
    scheduler.submit(ask("bad", 2, 20, priority=9), now=0.0)
    step(scheduler)
    scheduler.submit(ask("good", 2, 2, priority=0), now=0.0)
    assert step(scheduler)["preempted"] == []


def test_a_strictly_better_one_takes_the_place_of_the_worst_in_the_same_step() -> None:
    scheduler = pushy(max_num_seqs=3)
    for name, priority in (("worst", 7), ("middle", 5), ("best", 3)):
        scheduler.submit(ask(name, 2, 20, priority=priority), now=0.0)
    step(scheduler)
    scheduler.submit(ask("arrival", 2, 2, priority=4), now=0.0)
    told = step(scheduler)
    assert told["preempted"] == ["worst"]
    assert told["new"] == ["arrival"]
    assert told["tokens"] == {"best": 1, "middle": 1, "arrival": 2}
    assert "preempted in step 2 with 3 tokens known, for 'arrival'" in scheduler.explain("worst")


@pytest.mark.parametrize("arrival", [0.0, -100.0])
def test_an_equal_never_displaces_an_equal(arrival: float) -> None:
    scheduler = pushy(max_num_seqs=1)
    scheduler.submit(ask("resident", 2, 8, priority=5), now=0.0)
    step(scheduler)
    scheduler.submit(ask("equal", 2, 8, priority=5, arrival=arrival), now=0.0)
    finish_all(scheduler)
    assert scheduler.stats.preemptions == 0


def test_displacing_never_turns_into_ping_pong() -> None:
    """An arrival displaces one resident at most, which is the worst, and so displaces nobody."""
    for seed in range(4):
        r, scheduler, level = Random(seed), pushy(max_num_seqs=3, num_blocks=64), dict[str, int]()
        displaced: Counter[str] = Counter()
        for number in range(200):
            if number < 60:
                name = f"r{number}"
                level[name] = r.randint(0, 2)
                scheduler.submit(ask(name, 2, r.randint(1, 9), priority=level[name]), now=0.0)
            told = step(scheduler)
            came = [*told["new"], *told["resumed"]]
            for gone in told["preempted"]:
                assert any(level[name] < level[gone] for name in came), "an equal or a worse one"
            displaced.update(told["preempted"])
        assert scheduler.idle
        assert 0 < displaced.total() <= len(level)


def test_one_old_enough_to_go_first_is_not_displaced() -> None:
    scheduler = pushy(max_num_seqs=1, ageing_s=10.0)
    scheduler.submit(ask("old", 2, 30, priority=9), now=0.0)
    step(scheduler, now=0.0)
    scheduler.submit(ask("good", 2, 2, priority=0), now=9.0)
    assert step(scheduler, now=9.0)["preempted"] == ["old"]
    while not scheduler.idle and "old" not in running(scheduler):
        step(scheduler, now=9.5)
    scheduler.submit(ask("better", 2, 2, priority=-5), now=10.0)
    for _ in range(5):
        assert step(scheduler, now=10.0)["preempted"] == []


def test_an_aged_one_at_the_head_displaces_only_what_is_worse_than_itself() -> None:
    scheduler = pushy(max_num_seqs=2, ageing_s=10.0)
    scheduler.submit(ask("aged", 2, 4, priority=5), now=0.0, parked="grammar")
    scheduler.submit(ask("good", 2, 30, priority=0), now=5.0)
    scheduler.submit(ask("equal", 2, 30, priority=5), now=5.0)
    step(scheduler, now=5.0)
    scheduler.wake("aged", now=11.0)
    assert step(scheduler, now=11.0)["preempted"] == []
    scheduler.abort("equal", now=11.0)
    scheduler.submit(ask("worse", 2, 30, priority=6), now=11.0)
    assert step(scheduler, now=11.0)["new"] == ["aged"]


def test_as_many_as_it_takes_are_displaced_and_no_more() -> None:
    scheduler = pushy()
    for name, priority in (("a", 5), ("b", 6), ("c", 7)):
        scheduler.submit(ask(name, 15, 20, priority=priority), now=0.0)
        step(scheduler)  # four blocks each, and one for the next output
    scheduler.submit(ask("arrival", 36, 4, priority=1), now=0.0)
    told = step(scheduler)
    assert told["preempted"] == ["c", "b"]  # the worst first
    assert told["new"] == ["arrival"]
    assert running(scheduler) == ["a", "arrival"]


def test_nobody_is_displaced_where_blocks_would_not_suffice_anyway() -> None:
    scheduler = pushy()
    scheduler.submit(ask("better", 40, 8, priority=0), now=0.0)
    scheduler.submit(ask("worse", 8, 8, priority=9), now=0.0)
    step(scheduler)
    step(scheduler)
    scheduler.submit(ask("large", 30, 4, priority=5), now=0.0)
    assert step(scheduler)["preempted"] == []
    assert waiting(scheduler) == ["large"]


def test_nobody_is_displaced_where_the_budget_would_not_suffice_anyway() -> None:
    scheduler = pushy(enable_chunked_prefill=False, max_num_batched_tokens=64, num_blocks=64)
    for name, priority in (("good", 0), ("fine", 1), ("worse", 9)):
        scheduler.submit(ask(name, 2, 20, priority=priority), now=0.0)
    step(scheduler)
    scheduler.submit(ask("large", 63, 1, priority=5), now=0.0)  # 62 without the worse one
    assert step(scheduler)["preempted"] == []
    scheduler.submit(ask("fits", 62, 1, priority=4), now=0.0)
    assert step(scheduler)["preempted"] == ["worse"]


def test_nobody_is_displaced_where_there_is_room_or_admission_is_paused() -> None:
    scheduler = pushy(max_num_seqs=2)
    scheduler.submit(ask("bad", 2, 20, priority=9), now=0.0)
    step(scheduler)
    scheduler.submit(ask("good", 2, 20, priority=1), now=0.0)
    assert step(scheduler)["preempted"] == []
    scheduler.pause()
    scheduler.submit(ask("best", 2, 2, priority=0), now=0.0)
    assert step(scheduler)["preempted"] == []
    scheduler.resume()
    assert step(scheduler)["preempted"] == ["bad"]


def test_what_it_shares_with_a_resident_it_does_not_need_to_push_out() -> None:
    scheduler = pushy(num_blocks=12)
    common = range(16)
    scheduler.submit(ask("worse", 8, 4, priority=9), now=0.0)
    scheduler.submit(ask("host", [*common, 1], 8, priority=0), now=0.0)
    step(scheduler)
    scheduler.submit(ask("guest", [*common, 2, 3], 4, priority=5), now=0.0)
    told = step(scheduler)
    assert told["preempted"] == []
    assert told["new"] == ["guest"]


def test_among_equals_the_cheapest_is_displaced_if_that_is_the_setting() -> None:
    for victim, gone in (("newest", "newest"), ("cheapest", "cheap")):
        scheduler = pushy(max_num_seqs=3, victim=victim)
        for name, prompt in (("dear", 12), ("cheap", 3), ("newest", 12)):
            scheduler.submit(ask(name, prompt, 8, priority=5), now=0.0)
        step(scheduler)
        scheduler.submit(ask("arrival", 2, 2, priority=0), now=0.0)
        assert step(scheduler)["preempted"] == [gone]


def test_a_displaced_one_loses_nothing_of_its_output() -> None:
    scheduler = pushy(max_num_seqs=1)
    scheduler.submit(ask("bad", 6, 10, priority=9), now=0.0)
    for _ in range(4):
        step(scheduler)
    scheduler.submit(ask("good", 2, 3, priority=0), now=0.0)
    got = finish_all(scheduler)
    assert len(got["bad"]) == 10 - 4
    assert len(got["good"]) == 3


# -- age --------------------------------------------------------------------


def test_after_ageing_s_the_oldest_goes_first_whatever_its_priority() -> None:
    scheduler = small(policy="priority", max_num_seqs=1, ageing_s=10.0)
    requests: list[tuple[Request, float]] = [
        (ask("oldest", 2, 1, priority=8), 0.0),
        (ask("old", 2, 1, priority=9), 1.0),
        (ask("young", 2, 1, priority=0), 5.0),
    ]
    for request, now in requests:
        scheduler.submit(request, now)
    order = [*step(scheduler, now=9.9)["new"], *step(scheduler, now=11.0)["new"]]
    assert order == ["young", "oldest"]
    scheduler.submit(ask("newest", 2, 1, priority=0), now=11.0)
    assert step(scheduler, now=11.0)["new"] == ["old"]


def test_explain_says_that_age_put_it_first() -> None:
    scheduler = small(policy="priority", max_num_seqs=1, ageing_s=10.0)
    scheduler.submit(ask("running", 2, 30, priority=0), now=0.0)
    step(scheduler, now=0.0)
    scheduler.submit(ask("aged", 2, 1, priority=9), now=0.0)
    scheduler.submit(ask("better", 2, 1, priority=0), now=12.0)
    step(scheduler, now=12.0)
    step(scheduler, now=14.0)
    told = scheduler.explain("better")
    assert "behind 'aged'" in told
    assert "because of its age" in told


def test_one_that_was_swapped_displaces_nobody() -> None:
    """Though it is better than the one that has taken its blocks."""
    scheduler = pushy(preemption_mode="swap", swap_space=16, num_blocks=4)
    scheduler.submit(ask("good", 5, 8, priority=0), 0.0)
    scheduler.submit(ask("bad", 7, 8, priority=5), 0.0)
    step(scheduler)
    preempt(scheduler, "good")
    for _ in range(3):
        assert step(scheduler)["preempted"] in (["good"], [])
    assert scheduler.snapshot()["running"] == ["bad"]


def test_where_all_are_displaced_no_watermark_is_spared() -> None:
    scheduler = pushy(num_blocks=4, watermark=0.5)
    scheduler.submit(ask("low", 5, 3, priority=5), now=0.0)
    step(scheduler)
    scheduler.submit(ask("high", 16, 1, priority=0), now=0.0)
    told = step(scheduler)
    assert (told["preempted"], told["new"]) == (["low"], ["high"])


def test_nobody_is_displaced_in_a_step_in_which_somebody_gave_way() -> None:
    """The second child takes the block of one, and then nobody is admitted for whom another
    would have to go."""
    scheduler = pushy(num_blocks=4)
    scheduler.submit(ask("family", 5, 2, priority=1, n=2), now=0.0)
    for name in ("low", "lower"):
        scheduler.submit(ask(name, 3, 2, priority=5), now=0.0)
    step(scheduler)
    scheduler.submit(ask("high", 3, 1, priority=0), now=0.0)
    assert step(scheduler)["preempted"] == ["lower"]


def test_the_victim_is_the_worst_of_all_residents_the_newest_among_equals() -> None:
    """Edge case 6: Neither the requester nor the last in the list, but the worst priority
    anywhere."""
    scheduler = by_priority(num_blocks=7, max_num_seqs=4)
    for name, priority in (("a", 3), ("b", 5), ("c", 5), ("d", 1)):
        scheduler.submit(ask(name, 4, max_tokens=8, priority=priority), 0.0)
    step(scheduler)
    assert step(scheduler)["preempted"] == ["c"]


def test_equal_priority_and_arrival_go_in_the_order_of_submission() -> None:
    """Edge case 72: Not in the order of their ids, and taking one out leaves the others in
    order."""
    scheduler = by_priority(max_num_seqs=1)
    for name in ("z", "m", "a", "k"):
        scheduler.submit(ask(name, 3, max_tokens=1, priority=1, arrival=0.0), 0.0)
    assert scheduler.snapshot()["waiting"] == ["z", "m", "a", "k"]
    scheduler.abort("m", 0.0)
    assert [step(scheduler)["new"] for _ in range(3)] == [["z"], ["a"], ["k"]]

"""Most tokens still to come first."""

from typing import Any

from paceline import Scheduler
from tests.sched.support import ask, order, small, step


def longest(**settings: Any) -> Scheduler:
    return small(**{"policy": "longest", "max_num_seqs": 1} | settings)


def test_who_may_generate_most_goes_first_then_the_earliest() -> None:
    scheduler = longest()
    for name, tokens in (("short", 2), ("long", 20), ("middle", 5), ("equal", 5)):
        scheduler.submit(ask(name, 3, tokens), now=0.0)
    assert order(scheduler) == ["long", "middle", "equal", "short"]


def test_the_length_of_a_prompt_does_not_count() -> None:
    scheduler = longest()
    scheduler.submit(ask("terse", 30, 1), now=0.0)
    scheduler.submit(ask("talkative", 3, 2), now=0.0)
    assert order(scheduler) == ["talkative", "terse"]


def test_without_a_limit_it_may_generate_what_the_model_takes() -> None:
    scheduler = longest(max_model_len=64)
    scheduler.submit(ask("bounded", 4, 40), now=0.0)
    scheduler.submit(ask("unbounded", 4, None), now=0.0)
    assert scheduler.snapshot()["waiting"] == ["unbounded", "bounded"]


def test_a_preempted_one_counts_what_it_has_left() -> None:
    scheduler = longest(max_num_seqs=3, num_blocks=16, max_num_batched_tokens=64)
    scheduler.submit(ask("a", 28, 30), now=0.0)
    scheduler.submit(ask("b", 30, 20), now=0.0)
    while "b" not in step(scheduler)["preempted"]:
        pass
    scheduler.submit(ask("more", 2, 20), now=0.0)
    scheduler.submit(ask("less", 2, 3), now=0.0)
    assert scheduler.snapshot()["waiting"] == ["more", "b", "less"]  # b has generated some


def test_after_ageing_s_a_short_one_goes_first() -> None:
    scheduler = longest(ageing_s=10.0)
    scheduler.submit(ask("short", 3, 1), now=0.0)
    scheduler.submit(ask("long", 3, 1 + 1), now=0.0)
    assert step(scheduler, now=9.9)["new"] == ["long"]
    step(scheduler, now=9.9)
    scheduler.submit(ask("longer", 3, 9), now=10.0)
    assert step(scheduler, now=10.0)["new"] == ["short"]


def test_a_batch_is_done_in_fewer_steps() -> None:
    """The longest request of a batch came last; with two slots it is the last one to run alone."""

    def steps(policy: str) -> int:
        scheduler = small(policy=policy, max_num_seqs=2)
        for number, tokens in enumerate((4, 4, 4, 4, 16)):
            scheduler.submit(ask(f"r{number}", 2, tokens), now=0.0)
        taken = 0
        while not scheduler.idle:
            step(scheduler)
            taken += 1
        return taken

    assert steps("longest") == 16
    assert steps("fcfs") == 8 + 16

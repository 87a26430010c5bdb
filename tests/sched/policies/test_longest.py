"""Most tokens still to come first."""

from collections import deque
from random import Random
from typing import Any

import pytest

from paceline import Plan, Scheduler
from tests.sched.support import ask, commit, finish_all, gate, order, small, step, tokens_of_steps
from tests.seeds import seeds


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


# -- prompts that can wait --------------------------------------------------


def filling(fill: int, **settings: Any) -> Scheduler:
    return longest(**{"max_num_seqs": 4, "fill_positions": fill} | settings)


def test_who_ends_before_others_fills_their_steps() -> None:
    scheduler = filling(4)
    scheduler.submit(ask("late", 8, 5), now=0.0)
    scheduler.submit(ask("first", 6, 20), now=0.0)
    assert tokens_of_steps(scheduler, 1) == [{"first": 6}]
    assert gate(scheduler) == ("room", "late", 0)
    assert tokens_of_steps(scheduler, 4) == [
        {"first": 1, "late": 3},
        {"first": 1, "late": 3},
        {"first": 1, "late": 2},
        {"first": 1, "late": 1},
    ]


def test_several_prompts_fill_a_step_and_a_cut_one_goes_on_first() -> None:
    scheduler = filling(8)
    for name, tokens in (("long", 20), ("b", 7), ("c", 6), ("d", 5)):
        scheduler.submit(ask(name, 4, tokens), now=0.0)
    assert tokens_of_steps(scheduler, 3) == [
        {"long": 4, "b": 4},
        {"long": 1, "b": 1, "c": 4, "d": 2},
        {"long": 1, "b": 1, "c": 1, "d": 2},
    ]


def test_who_would_end_last_begins_at_once_as_does_its_equal() -> None:
    scheduler = filling(4)
    for name in "abc":
        scheduler.submit(ask(name, 9, 12), now=0.0)
    assert tokens_of_steps(scheduler, 1) == [{"a": 9, "b": 9, "c": 9}]


def test_without_room_it_begins_when_it_can_wait_no_longer() -> None:
    """The longest has 9 tokens to come when the other one, with as many, begins."""
    scheduler = filling(1)
    scheduler.submit(ask("long", 4, 12), now=0.0)
    scheduler.submit(ask("short", 7, 9), now=0.0)
    assert tokens_of_steps(scheduler, 4) == [
        {"long": 4},
        {"long": 1},
        {"long": 1},
        {"long": 1, "short": 7},
    ]
    assert all(names == {"long": 1, "short": 1} for names in tokens_of_steps(scheduler, 8))
    assert scheduler.idle


def test_a_piece_is_finished_at_once_when_nobody_will_end_after_it() -> None:
    scheduler = filling(4)
    scheduler.submit(ask("long", 4, 20), now=0.0)
    scheduler.submit(ask("short", 12, 5), now=0.0)
    assert tokens_of_steps(scheduler, 2) == [{"long": 4}, {"long": 1, "short": 3}]
    scheduler.abort("long", now=0.0)
    assert tokens_of_steps(scheduler, 1) == [{"short": 9}]


def test_who_has_no_bound_does_not_wait() -> None:
    scheduler = filling(4)
    scheduler.submit(ask("long", 4, 20), now=0.0)
    step(scheduler)
    scheduler.submit(ask("unbounded", 50, None), now=0.0)
    assert step(scheduler)["tokens"] == {"long": 1, "unbounded": 31}


def test_who_is_old_does_not_wait() -> None:
    scheduler = filling(1, ageing_s=10.0)
    scheduler.submit(ask("long", 4, 20), now=0.0)
    scheduler.submit(ask("short", 9, 3), now=0.0)
    assert [step(scheduler, now)["new"] for now in (0.0, 9.9, 10.0)] == [["long"], [], ["short"]]


def test_who_has_no_bound_does_not_wait_behind_one_that_can() -> None:
    scheduler = filling(1, max_num_seqs=3)
    scheduler.submit(ask("long", 4, 50), now=0.0)
    step(scheduler)
    scheduler.submit(ask("bounded", 2, 40), now=0.0)
    scheduler.submit(ask("unbounded", 40, None), now=0.0)
    assert step(scheduler)["new"] == ["unbounded"]


def test_a_piece_that_waits_is_told_so() -> None:
    scheduler = filling(4, max_num_seqs=8, max_num_batched_tokens=64)
    scheduler.submit(ask("long", 4, 20), now=0.0)
    scheduler.submit(ask("short", 20, 5), now=0.0)
    tokens_of_steps(scheduler, 2)
    for name in "abcd":
        scheduler.submit(ask(name, 3, 30), now=0.0)
    tokens_of_steps(scheduler, 2)
    assert scheduler.why() == {"short": "room: its policy lets it wait"}


def test_those_without_a_bound_tell_nothing_of_the_end() -> None:
    """It may end with its next token, so nobody waits for it."""
    scheduler = filling(4)
    scheduler.submit(ask("unbounded", 4, None), now=0.0)
    scheduler.submit(ask("bounded", 9, 5), now=0.0)
    assert tokens_of_steps(scheduler, 1) == [{"unbounded": 4, "bounded": 9}]


def test_a_long_prompt_begins_in_time_for_all_its_steps() -> None:
    """It takes ten steps of the whole budget, and then as many tokens as the other has left."""

    def steps(fill: int) -> int:
        scheduler = filling(fill, max_model_len=400, num_blocks=128)
        scheduler.submit(ask("long", 4, 60), now=0.0)
        scheduler.submit(ask("prompt", 300, 10), now=0.0)
        taken = 0
        while not scheduler.idle:
            step(scheduler)
            taken += 1
        return taken

    assert [steps(fill) for fill in (0, 1, 2, 20)] == [60, 60, 60, 60]


def test_explain_says_that_it_could_wait() -> None:
    scheduler = filling(1)
    scheduler.submit(ask("long", 4, 12), now=0.0)
    scheduler.submit(ask("short", 7, 9), now=0.0)
    for second in range(4):
        waits = scheduler.why() if second else {}
        assert waits == ({"short": "for room, since its policy lets it wait"} if second else {})
        step(scheduler, now=float(second))
    assert "waited 3.0 s: 3.0 s for room, since its policy lets it wait" in scheduler.explain(
        "short"
    )


@pytest.mark.no_cover
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("seed", seeds(3))
def test_nobody_ends_later_than_the_last_for_having_waited(seed: int, depth: int) -> None:
    """With slots, blocks and budget for all, a batch takes as many steps, and they are smaller."""
    draw = Random(seed)
    batch = [(draw.randint(1, 20), draw.randint(1, 30)) for _ in range(24)]

    def sizes(fill: int) -> list[int]:
        scheduler = longest(
            max_num_seqs=24, max_num_batched_tokens=512, num_blocks=512, fill_positions=fill
        )
        for number, (prompt, tokens) in enumerate(batch):
            scheduler.submit(ask(f"r{number}", prompt, tokens), now=0.0)
        found: list[int] = []
        flight: deque[Plan] = deque()
        while not scheduler.idle:
            plan = scheduler.plan(now=0.0)
            if not plan.empty:
                found.append(plan.total)
                flight.append(plan)
            if plan.empty or len(flight) == depth:
                commit(scheduler, flight.popleft())
        return found

    at_once = sizes(0)
    for fill in (1, 24, 40):
        filled = sizes(fill)
        assert len(filled) == len(at_once)
        assert sum(filled) == sum(at_once)
        assert max(filled) < max(at_once)


def test_a_prompt_that_goes_on_fills_a_step_no_further_than_its_budget() -> None:
    scheduler = filling(100, max_num_batched_tokens=8)
    scheduler.submit(ask("long", 4, 40), now=0.0)
    scheduler.submit(ask("short", 20, 5), now=0.0)
    assert tokens_of_steps(scheduler, 2) == [{"long": 4, "short": 4}, {"long": 1, "short": 7}]


def test_those_who_do_not_wait_share_the_budget_of_a_step() -> None:
    scheduler = filling(4, max_num_batched_tokens=8)
    scheduler.submit(ask("unbounded", 20, None), now=0.0)
    assert tokens_of_steps(scheduler, 3) == [{"unbounded": n} for n in (8, 8, 4)]


def test_a_long_prompt_begins_in_time_for_the_budget_that_others_leave() -> None:
    """Two decode, so a step has room for two positions of the prompt, which takes twelve steps."""

    def steps(fill: int) -> int:
        scheduler = filling(fill, max_num_batched_tokens=4, num_blocks=64)
        for name, prompt, tokens in (("a", 2, 30), ("b", 2, 30), ("prompt", 24, 10)):
            scheduler.submit(ask(name, prompt, tokens), now=0.0)
        taken = 0
        while not scheduler.idle:
            step(scheduler)
            taken += 1
        return taken

    assert [steps(fill) for fill in (0, 2)] == [30, 30]


def test_what_is_cached_of_a_prompt_takes_no_steps() -> None:
    """With 41 tokens to compute it would have to begin at once."""
    scheduler = filling(1, max_num_batched_tokens=8)
    prompt = range(41)
    scheduler.submit(ask("earlier", prompt, 1), now=0.0)
    finish_all(scheduler)
    scheduler.submit(ask("long", 4, 20), now=0.0)
    scheduler.submit(ask("cached", prompt, 15), now=0.0)
    assert tokens_of_steps(scheduler, 1) == [{"long": 4}]
    assert gate(scheduler) == ("room", "cached", 0)

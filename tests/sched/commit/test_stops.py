"""Which sampled token ends its request, and in which order the rules apply."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

from paceline import Finish, StepResult
from paceline.core.arrays import I32
from paceline.core.request import Sequence
from paceline.sched.commit.stops import StopWatch
from paceline.sched.slots import SlotTable
from tests.sched.support import (
    PROMPT,
    TOKEN,
    answer,
    ask,
    commit,
    drafting,
    findable,
    finish_all,
    small,
    state,
    step,
)

EOS, STOP = 2, 7


def ids(*rows: list[int]) -> I32:
    return np.array(rows, np.int32)


class Watched:
    """A watch over a table with one resident per request."""

    def __init__(self, *asked: dict[str, Any]) -> None:
        self.table, self.watch = SlotTable(len(asked), 64), StopWatch()
        for serial, more in enumerate(asked):
            request = ask(f"r{serial}", 3, max_tokens=20, **more)
            self.table.admit(Sequence(request, serial, 23, 0.0, request.prompt), 0, 0)
            self.watch.watch(request)

    def cut(self, sampled: I32, *counts: int) -> tuple[list[int], dict[int, int]]:
        count = np.array(counts, np.int32)
        stops = self.watch.cut(self.table, self.table.order, sampled, count)
        return count.tolist(), stops


def test_nobody_watching_costs_no_lookup() -> None:
    assert StopWatch().suspects(ids([EOS])) is None
    assert Watched({}).cut(ids([EOS]), 1) == ([1], {})


def test_a_row_is_cut_after_its_first_stop() -> None:
    watched = Watched({"stop_token_ids": (STOP, 8)})
    assert watched.cut(ids([TOKEN, STOP, 8, TOKEN]), 4) == ([2], {0: STOP})


def test_another_rows_stop_token_is_only_a_suspect() -> None:
    watched = Watched({"stop_token_ids": (STOP,)}, {"stop_token_ids": (8,)})
    assert watched.cut(ids([8], [STOP]), 1, 1) == ([1, 1], {})
    assert watched.cut(ids([STOP], [STOP]), 1, 1) == ([1, 1], {0: STOP})


def test_what_lies_behind_the_count_of_a_row_was_not_sampled() -> None:
    watched = Watched({"stop_token_ids": (STOP,)})
    assert watched.cut(ids([TOKEN, STOP]), 1) == ([1], {})


def test_tokens_outside_the_watched_range_are_no_suspects() -> None:
    watch = StopWatch()
    watch.watch(ask("a", 1, stop_token_ids=(5,)))
    found = watch.suspects(ids([-1, 4, 5, 6, 2**20]))
    assert found is not None
    assert found.tolist() == [[False, False, True, False, False]]


def test_the_first_token_id_of_all_can_be_watched() -> None:
    """Ids below the range are clipped to 0, which a watch on 0 must not make a stop."""
    watched = Watched({"stop_token_ids": (0,)})
    assert watched.cut(ids([0, TOKEN]), 2) == ([1], {0: 0})
    assert watched.cut(ids([TOKEN, -1]), 1) == ([1], {})


def test_a_token_is_watched_until_its_last_watcher_leaves() -> None:
    watch, one = StopWatch(), ask("a", 1, stop_token_ids=(5,))
    other = ask("b", 1, eos_token_ids=(5,))
    watch.watch(one)
    watch.watch(other)
    watch.unwatch(one)
    still = watch.suspects(ids([5]))
    assert still is not None
    assert still.all()
    watch.unwatch(other)
    assert watch.suspects(ids([5])) is None


def test_a_token_id_beyond_any_vocabulary_costs_no_memory() -> None:
    """Clients choose stop tokens; a large one must not size anything."""
    watch = StopWatch()
    tracemalloc.start()
    watch.watch(ask("a", 1, stop_token_ids=(2**31 - 1, 5)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 * 2**20
    found = watch.suspects(ids([5, 6]))
    assert found is not None
    assert found.tolist() == [[True, False]]
    assert Watched({"stop_token_ids": (2**31 - 1,)}).cut(ids([2**31 - 1]), 1) == (
        [1],
        {0: 2**31 - 1},
    )


def test_an_unwatched_token_is_forgotten_while_others_are_watched() -> None:
    watch, one = StopWatch(), ask("a", 1, stop_token_ids=(5,))
    watch.watch(one)
    watch.watch(ask("b", 1, stop_token_ids=(6,)))
    watch.unwatch(one)
    found = watch.suspects(ids([5, 6]))
    assert found is not None
    assert found.tolist() == [[False, True]]


def test_an_ignored_eos_is_not_even_watched() -> None:
    assert Watched({"eos_token_ids": (EOS,), "ignore_eos": True}).watch.suspects(ids([EOS])) is None


# -- through the scheduler ---------------------------------------------------


def life(*sampled: int, max_tokens: int | None = 4, **asked: Any) -> tuple[list[int], str | None]:
    """The tokens a request got of those sampled for it, and how it ended."""
    scheduler = small()
    scheduler.submit(ask("a", 3, max_tokens=max_tokens, **asked), 0.0)
    got: list[int] = []
    for token in sampled:
        told = commit(scheduler, scheduler.plan(0.0), a=[token])["a"]
        got += told["tokens"]
        if told["finish"]:
            assert scheduler.unfinished == 0
            return got, told["finish"]
    return got, None


def test_eos_ends_it() -> None:
    assert life(TOKEN, EOS, TOKEN, eos_token_ids=(EOS,)) == ([TOKEN, EOS], "stop")


def test_an_ignored_eos_does_not() -> None:
    asked = {"eos_token_ids": (EOS,), "ignore_eos": True}
    assert life(EOS, EOS, EOS, EOS, **asked) == ([EOS] * 4, "length")


def test_a_stop_token_ends_it_even_if_eos_is_ignored() -> None:
    asked = {"eos_token_ids": (EOS,), "ignore_eos": True, "stop_token_ids": (STOP,)}
    assert life(EOS, STOP, **asked) == ([EOS, STOP], "stop")


def test_an_eos_that_is_also_a_stop_token_ends_it_even_if_ignored() -> None:
    asked = {"eos_token_ids": (EOS,), "ignore_eos": True, "stop_token_ids": (EOS,)}
    assert life(EOS, **asked) == ([EOS], "stop")


def test_below_min_tokens_neither_eos_nor_stop_tokens_end_it() -> None:
    asked = {"eos_token_ids": (EOS,), "stop_token_ids": (STOP,), "min_tokens": 3}
    assert life(EOS, STOP, EOS, **asked) == ([EOS, STOP, EOS], "stop")


def test_a_stop_on_the_last_allowed_token_is_a_stop_and_not_the_length() -> None:
    assert life(TOKEN, EOS, max_tokens=2, eos_token_ids=(EOS,)) == ([TOKEN, EOS], "stop")


def test_max_tokens_end_it_whatever_they_are() -> None:
    assert life(TOKEN, TOKEN, max_tokens=2) == ([TOKEN, TOKEN], "length")


def test_min_tokens_equal_to_max_tokens_leave_the_length_alone() -> None:
    asked = {"eos_token_ids": (EOS,), "min_tokens": 3}
    assert life(EOS, EOS, EOS, max_tokens=3, **asked) == ([EOS] * 3, "stop")
    assert life(EOS, EOS, TOKEN, max_tokens=3, **asked) == ([EOS, EOS, TOKEN], "length")


def test_the_token_that_ended_it_is_told() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 3, stop_token_ids=(STOP,)), 0.0)
    plan = scheduler.plan(0.0)
    (end,) = scheduler.commit(plan, answer(plan, {"a": [STOP]}), 0.0).finished
    assert (end.request_id, end.finish, end.stop_token) == ("a", Finish.STOP, STOP)


def test_an_end_by_length_names_no_token() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 3, max_tokens=1), 0.0)
    plan = scheduler.plan(0.0)
    (end,) = scheduler.commit(plan, answer(plan), 0.0).finished
    assert (end.finish, end.stop_token) == (Finish.LENGTH, None)


def test_min_tokens_count_across_a_preemption() -> None:
    """Outputs from before a preemption are part of the known tokens and still count."""
    scheduler = small()
    scheduler.submit(ask("a", 3, max_tokens=9, min_tokens=3, eos_token_ids=(EOS,)), 0.0)
    step(scheduler, a=[TOKEN])
    step(scheduler, a=[EOS])
    assert scheduler.reset_prefix_cache(reset_running_requests=True)
    told = commit(scheduler, scheduler.plan(0.0), a=[EOS])
    assert told["a"] == {"tokens": [EOS], "finish": "stop"}


@pytest.mark.parametrize("stop_at", [1, 2, 3])
def test_in_a_step_of_several_tokens_what_follows_the_stop_is_dropped(stop_at: int) -> None:
    scheduler = small(num_speculative_tokens=3, speculation="fixed")
    scheduler.submit(ask("a", 3, max_tokens=20, eos_token_ids=(EOS,)), 0.0)
    step(scheduler)
    sampled = [TOKEN] * stop_at + [EOS] + [TOKEN] * (3 - stop_at)
    told = commit(scheduler, scheduler.plan(0.0), a=sampled)
    assert told["a"] == {"tokens": [TOKEN] * stop_at + [EOS], "finish": "stop"}
    assert state(scheduler, "a")["known"] == 3 + 1 + stop_at + 1


def test_a_stop_below_min_tokens_does_not_hide_a_later_one_in_the_same_step() -> None:
    scheduler = small(num_speculative_tokens=3, speculation="fixed")
    asked = {"min_tokens": 4, "eos_token_ids": (EOS,), "max_tokens": 20}
    scheduler.submit(ask("a", 3, **asked), 0.0)
    step(scheduler)
    told = commit(scheduler, scheduler.plan(0.0), a=[EOS, EOS, EOS, TOKEN])
    assert told["a"] == {"tokens": [EOS, EOS, EOS], "finish": "stop"}


def test_a_stop_among_steady_rows_ends_only_its_own() -> None:
    scheduler = small()
    for name in "abc":
        scheduler.submit(ask(name, 3, max_tokens=9, eos_token_ids=(EOS,)), 0.0)
    for _ in range(3):
        step(scheduler)
    told = commit(scheduler, scheduler.plan(0.0), b=[EOS])
    assert {name: one["finish"] for name, one in told.items()} == {
        "a": None,
        "b": "stop",
        "c": None,
    }
    assert scheduler.snapshot()["running"] == ["a", "c"]


def test_a_suspect_among_steady_rows_that_is_no_stop_changes_nothing() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 3, max_tokens=6, eos_token_ids=(EOS,), min_tokens=6), 0.0)
    scheduler.submit(ask("b", 3, max_tokens=6), 0.0)
    for _ in range(3):
        step(scheduler, a=[EOS], b=[EOS])
    plan = scheduler.plan(0.0)
    assert commit(scheduler, plan, a=[EOS], b=[EOS])["b"] == {"tokens": [EOS], "finish": None}
    assert finish_all(scheduler) == {"a": [9, 9], "b": [9, 9]}


def test_a_result_that_may_not_be_written_to_is_read_all_the_same() -> None:
    """A runner may hand out read-only views of its buffers, also in a steady decode."""
    scheduler = small()
    scheduler.submit(ask("a", 3, max_tokens=9, eos_token_ids=(EOS,)), 0.0)
    for _ in range(4):
        plan = scheduler.plan(0.0)
        result = answer(plan)
        scheduler.commit(plan, result, 0.0)
    plan = scheduler.plan(0.0)
    result = StepResult(np.array([[EOS]], np.int32), np.array([1], np.int32))
    result.ids.flags.writeable = result.count.flags.writeable = False
    assert scheduler.commit(plan, result, 0.0).to_dict()["a"]["finish"] == "stop"


def test_min_tokens_never_make_an_endless_request() -> None:
    """Edge case 21: At the model length it ends, whatever the least number of tokens was to be."""
    scheduler = small(max_model_len=8)
    scheduler.submit(ask("a", 5, max_tokens=None, min_tokens=99, eos_token_ids=(TOKEN,)), 0.0)
    assert finish_all(scheduler) == {"a": [TOKEN] * 3}


def test_a_stop_on_the_last_allowed_token_is_a_stop() -> None:
    """Edge case 22: And the token that did it is named, an end token as well as a stop token."""
    for asked in ({"eos_token_ids": (EOS,)}, {"stop_token_ids": (EOS,)}):
        scheduler = small()
        scheduler.submit(ask("a", 3, max_tokens=1, **asked), 0.0)
        plan = scheduler.plan(0.0)
        (end,) = scheduler.commit(plan, answer(plan, {"a": [EOS]}), 0.0).finished
        assert (end.finish.value, end.stop_token) == ("stop", EOS)


def test_tokens_after_the_stop_in_a_step_of_several_are_dropped() -> None:
    """Edge case 23: The client never sees them, and the block they would have filled has no
    content."""
    scheduler = drafting(6)
    scheduler.submit(ask("a", PROMPT[:6], max_tokens=20, stop_token_ids=(STOP,)), 0.0)
    step(scheduler, a=[1])
    told = commit(scheduler, scheduler.plan(0.0), a=[STOP, 3, 4, 5, 6, 8, 8])
    assert told == {"a": {"tokens": [STOP], "finish": "stop"}}
    assert state(scheduler, "a")["known"] == 8
    assert findable(scheduler, [*PROMPT[:6], 1, STOP, 3, 4, 5, 6]) == 8

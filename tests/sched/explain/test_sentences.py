"""The life of a request in sentences: how long it waited and for what."""

import numpy as np
import pytest

from paceline import Request, RequestError, Scheduler
from paceline.core.arrays import I32, Index
from paceline.core.capabilities import StepTimes
from paceline.sched.explain.sentences import plural, seconds, tokens
from paceline.sched.policy import Policy, within_budget
from tests.sched.support import ask, commit, crowded, finish_all, small, step


def line(scheduler: Scheduler, name: str, word: str) -> str:
    """The one sentence of an explanation that has a word in it."""
    lines = [one.strip() for one in scheduler.explain(name).splitlines() if word in one]
    assert len(lines) == 1, scheduler.explain(name)
    return lines[0]


def steps(scheduler: Scheduler, first: int, last: int) -> None:
    """One step in each second from `first` to `last`."""
    for now in range(first, last + 1):
        step(scheduler, float(now))


@pytest.mark.parametrize(
    ("value", "told"), [(0.0, "0 ms"), (0.0125, "12 ms"), (0.6, "600 ms"), (1.0, "1.0 s")]
)
def test_times_are_told_in_milliseconds_or_seconds(value: float, told: str) -> None:
    assert seconds(value) == told


def test_counts_are_told_as_people_say_them() -> None:
    assert (tokens(1), tokens(12_000)) == ("1 token", "12,000 tokens")
    assert (plural(1, "request"), plural(0, "request")) == ("1 request", "0 requests")


def test_an_unknown_request_is_an_error_that_names_it() -> None:
    with pytest.raises(RequestError, match="'nobody'"):
        small().explain("nobody")


# -- where it is now ---------------------------------------------------------


def test_a_request_that_just_came() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5, max_tokens=3), 0.0)
    assert scheduler.explain("a").splitlines() == [
        "'a': 5 tokens of prompt, at most 3 new; waiting.",
        "  0 ms: submitted, with 0 requests waiting.",
    ]


def test_a_running_request() -> None:
    scheduler = small(max_num_batched_tokens=8)
    scheduler.submit(ask("a", 12, max_tokens=3), 0.0)
    step(scheduler, 0.5)
    assert scheduler.explain("a").splitlines() == [
        "'a': 12 tokens of prompt, at most 3 new; running.",
        "  0 ms: submitted, with 0 requests waiting.",
        "  waited 500 ms.",
        "  500 ms: admitted in step 1; 0 tokens came from the prefix cache.",
        "  now: 8 of 12 tokens computed.",
    ]


def test_the_drafts_of_a_request_are_counted() -> None:
    scheduler = small(num_speculative_tokens=3, speculation="fixed")
    scheduler.submit(ask("a", 5, max_tokens=7), 0.0)
    assert "draft" not in scheduler.explain("a")
    step(scheduler)
    step(scheduler, a=[1, 2, 3])
    assert line(scheduler, "a", "draft") == "drafts: 2 of 3 accepted."
    scheduler.reset_prefix_cache(reset_running_requests=True)
    assert line(scheduler, "a", "draft") == "0 ms: 2 of 3 drafts were accepted."
    step(scheduler)
    step(scheduler, a=[4, 5])
    assert "2 of 3 drafts were accepted." in scheduler.explain("a")
    assert "1 of 1 drafts were accepted." in scheduler.explain("a")


def test_a_pause_of_drafting_is_explained() -> None:
    scheduler = small(num_speculative_tokens=3)
    scheduler.measure_steps(StepTimes(((1, 1.0), (9, 9.0)), ((1, 1.0), (9, 9.0))))
    for name, drafts in (("a", None), ("b", 0)):
        scheduler.submit(ask(name, 4, max_tokens=9, drafts=drafts), 0.0)
    step(scheduler)
    step(scheduler)
    assert line(scheduler, "a", "draft") == (
        "drafts: 0 of 0 accepted; drafting is paused, "
        "because it would cost more time than it saves."
    )
    assert "draft" not in scheduler.explain("b")


def test_an_ended_request() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5, max_tokens=2), 1.0)
    steps(scheduler, 1, 2)
    assert scheduler.explain("a").splitlines() == [
        "'a': 5 tokens of prompt, at most 2 new; finished: reached max_tokens.",
        "  0 ms: submitted, with 0 requests waiting.",
        "  0 ms: admitted in step 1; 0 tokens came from the prefix cache.",
        "  0 ms: first token, from step 1.",
        "  1.0 s: ended (length) with 7 tokens known.",
    ]


def test_a_request_may_end_at_the_length_of_the_model() -> None:
    scheduler = small(max_model_len=8)
    for most in (None, 6):
        scheduler.submit(Request("a", [5] * 6, max_tokens=most), 0.0)
        finish_all(scheduler)
        assert "at most 2 new; finished: reached max_model_len." in scheduler.explain("a")


def test_a_wait_that_would_read_as_0_ms_is_left_out() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0)
    step(scheduler, 0.0004)
    assert "waited" not in scheduler.explain("a")
    assert "0 ms: admitted in step 1" in scheduler.explain("a")


def test_a_cause_that_would_read_as_0_ms_is_left_out() -> None:
    scheduler = small(max_num_seqs=1)
    scheduler.submit(ask("a", 5), 0.0)
    step(scheduler, 0.0)
    scheduler.submit(ask("b", 5), 0.0)
    scheduler.pause()
    step(scheduler, 0.0)
    scheduler.resume()
    step(scheduler, 0.0004)
    step(scheduler, 3.0)
    assert line(scheduler, "b", "waited") == "waited 3.0 s: 3.0 s for a slot (max_num_seqs)."


def test_a_waiting_request_has_waited_until_now() -> None:
    scheduler = small(max_num_seqs=1)
    scheduler.submit(ask("a", 5, max_tokens=20), 0.0)
    scheduler.submit(ask("b", 5), 0.0)
    steps(scheduler, 0, 3)
    assert "'b': 5 tokens of prompt, at most 4 new; waiting." in scheduler.explain("b")
    assert line(scheduler, "b", "waited") == "waited 3.0 s: 3.0 s for a slot (max_num_seqs)."


def test_those_ahead_at_submission_are_told() -> None:
    scheduler = small()
    for name in "abc":
        scheduler.submit(ask(name, 5), 0.0)
    assert "submitted, with 2 requests waiting" in scheduler.explain("c")


def test_the_tokens_found_in_the_cache_are_told() -> None:
    scheduler = small()
    scheduler.submit(ask("a", range(9)), 0.0)
    step(scheduler)
    scheduler.submit(ask("b", range(9)), 0.0)
    step(scheduler)
    assert "admitted in step 2; 8 tokens came from the prefix cache" in scheduler.explain("b")


def test_ended_requests_are_remembered_until_too_many_came_after() -> None:
    scheduler = small(journal_requests=2)
    for name in "abc":
        scheduler.submit(ask(name, 5, max_tokens=1), 0.0)
        finish_all(scheduler)
    assert "finished: reached max_tokens" in scheduler.explain("b")
    with pytest.raises(RequestError) as caught:
        scheduler.explain("a")
    assert str(caught.value) == (
        "no request 'a' is known: the id is wrong, or it is older than the last 2 finished "
        "requests: raise journal_requests"
    )


def test_an_id_used_again_is_explained_by_its_present_life() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5, max_tokens=1), 0.0)
    finish_all(scheduler)
    scheduler.submit(ask("a", 7), 5.0)
    assert scheduler.explain("a").startswith("'a': 7 tokens of prompt, at most 4 new; waiting.")


# -- what it waited for ------------------------------------------------------


def test_a_wait_for_blocks_says_how_many_were_short() -> None:
    scheduler = small(num_blocks=4)
    scheduler.submit(ask("a", 12, max_tokens=4), 0.0)  # 3 blocks and then 4, until it ends at 3 s
    scheduler.submit(ask("b", 9), 0.0)  # 3 blocks
    steps(scheduler, 0, 4)
    assert line(scheduler, "b", "waited") == "waited 4.0 s: 4.0 s for blocks, 2 short at first."


def test_a_wait_for_the_token_budget() -> None:
    scheduler = small(max_num_batched_tokens=8)
    scheduler.submit(ask("a", 16, max_tokens=4), 0.0)  # 8 tokens, 8 tokens, and then 1 at a time
    scheduler.submit(ask("b", 5), 0.0)
    steps(scheduler, 0, 2)
    assert line(scheduler, "b", "waited") == "waited 2.0 s: 2.0 s for the token budget."


def test_a_wait_has_a_part_behind_others_and_a_part_of_its_own() -> None:
    scheduler = small(max_num_seqs=2)
    scheduler.submit(ask("a", 4, max_tokens=6), 0.0)
    scheduler.submit(ask("b", 4, max_tokens=3), 0.0)  # its slot is free in the step at 3 s
    scheduler.submit(ask("c", 20, max_tokens=9), 0.0)
    scheduler.submit(ask("d", 4), 0.0)  # gets the slot of "a" in the step at 6 s
    steps(scheduler, 0, 6)
    told = line(scheduler, "d", "waited")
    assert told.startswith("waited 6.0 s: ")
    assert "3.0 s for a slot (max_num_seqs)" in told
    assert "3.0 s behind 3 requests of 28 tokens in all" in told


def test_a_wait_behind_one_that_waits_for_blocks() -> None:
    scheduler = small(num_blocks=4)
    scheduler.submit(ask("a", 12, max_tokens=4), 0.0)  # until 3 s
    scheduler.submit(ask("b", 9, max_tokens=1), 0.0)
    scheduler.submit(ask("c", 2, max_tokens=1), 0.0)
    steps(scheduler, 0, 4)
    told = line(scheduler, "c", "waited")
    assert told.startswith("waited 4.0 s: 4.0 s behind 2 requests of 21 tokens in all ")
    assert "4.0 s for blocks" in told


def test_of_many_who_stood_ahead_and_never_got_in_a_few_are_named() -> None:
    scheduler = small(max_num_seqs=1)
    scheduler.submit(ask("a", 5, max_tokens=30), 0.0)
    step(scheduler, 0.0)
    for number in range(4):
        scheduler.submit(ask(f"x{number}", 5), 0.5)
    scheduler.submit(ask("b", 5), 0.5)
    for number in range(4):
        steps(scheduler, 2 * number + 1, 2 * number + 2)
        scheduler.abort(f"x{number}", 2 * number + 2.0)
    assert "4.0 s behind 'x0', 'x1', 'x2' and 1 more" in line(scheduler, "b", "waited")


def test_those_behind_in_the_queue_are_not_those_it_waited_behind() -> None:
    """Three get in with one step; the second of them was behind one, not behind two."""
    scheduler = small(max_num_seqs=3)
    for name in "xyz":
        scheduler.submit(ask(name, 4, max_tokens=3), 0.0)
    step(scheduler, 0.0)
    for name in "abc":
        scheduler.submit(ask(name, 4, max_tokens=3), 0.5)
    steps(scheduler, 1, 3)
    assert "behind 1 request of 4 tokens in all" in line(scheduler, "b", "waited")
    assert "behind 2 requests of 8 tokens in all" in line(scheduler, "c", "waited")


def test_those_who_ran_before_it_came_are_not_those_it_waited_behind() -> None:
    """Also if it came at the very time at which they were admitted."""
    scheduler = small(max_num_seqs=1)
    scheduler.submit(ask("a", 5, max_tokens=3), 0.0)
    step(scheduler, 0.0)
    scheduler.submit(ask("x", 5, max_tokens=2), 0.0)
    scheduler.submit(ask("b", 5), 0.0)
    steps(scheduler, 1, 5)
    assert "behind 1 request of 5 tokens in all" in line(scheduler, "b", "waited")


def test_a_wait_while_admission_is_paused() -> None:
    scheduler = small()
    scheduler.pause()
    scheduler.submit(ask("a", 5), 0.0)
    steps(scheduler, 0, 2)
    scheduler.resume()
    step(scheduler, 4.0)
    assert line(scheduler, "a", "waited") == "waited 4.0 s: 4.0 s while admission was paused."


def test_a_wait_while_everything_is_paused() -> None:
    scheduler = small()
    scheduler.pause("all")
    scheduler.submit(ask("a", 5), 0.0)
    steps(scheduler, 0, 2)
    scheduler.resume()
    step(scheduler, 4.0)
    assert "paused" in line(scheduler, "a", "waited")


def test_a_pause_of_everything_is_not_mistaken_for_what_came_before_it() -> None:
    scheduler = small(max_num_seqs=1)
    scheduler.submit(ask("a", 5, max_tokens=9), 0.0)
    scheduler.submit(ask("b", 5), 0.0)
    steps(scheduler, 0, 1)
    scheduler.pause("all")
    steps(scheduler, 2, 10)
    scheduler.resume()
    step(scheduler, 11.0)
    told = line(scheduler, "b", "waited")
    assert "2.0 s for a slot" in told
    assert "9.0 s while" in told
    assert "paused" in told


def test_a_request_that_was_parked_is_not_what_others_waited_behind() -> None:
    scheduler = small(max_num_seqs=1)
    scheduler.submit(ask("a", 5, max_tokens=3), 0.0)
    scheduler.submit(ask("x", 5), 0.0)
    steps(scheduler, 0, 2)
    scheduler.park("x", "grammar", 3.0)
    scheduler.submit(ask("b", 5), 4.0)
    step(scheduler, 6.0)
    assert line(scheduler, "b", "waited") == "waited 2.0 s."


def test_a_request_that_was_aborted_is_not_what_others_waited_behind() -> None:
    scheduler = small(max_num_seqs=1)
    scheduler.submit(ask("a", 5, max_tokens=3), 0.0)
    scheduler.submit(ask("x", 5), 0.0)
    steps(scheduler, 0, 2)
    scheduler.abort("x", 3.0)
    scheduler.submit(ask("b", 5), 4.0)
    step(scheduler, 6.0)
    assert line(scheduler, "b", "waited") == "waited 2.0 s."


def test_who_comes_back_to_a_shut_gate_is_told_what_it_waits_for() -> None:
    """Also if nothing else happened meanwhile and the step is the same as before."""
    scheduler = small(max_num_seqs=1)
    scheduler.submit(ask("a", 5, max_tokens=30), 0.0)
    scheduler.submit(ask("b", 5), 0.0)
    steps(scheduler, 0, 3)
    scheduler.park("b", "grammar", 3.0)
    scheduler.wake("b", 4.0)
    steps(scheduler, 4, 8)
    waits = [one.strip() for one in scheduler.explain("b").splitlines() if "waited" in one]
    assert waits == [
        "waited 3.0 s: 3.0 s for a slot (max_num_seqs).",
        "waited 4.0 s: 4.0 s for a slot (max_num_seqs).",
    ]


def test_time_in_the_parking_place_is_not_a_wait() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0, parked="grammar")
    steps(scheduler, 0, 2)
    assert "parked for grammar" in scheduler.explain("a")
    assert "new; waiting for grammar." in scheduler.explain("a")
    assert "waited" not in scheduler.explain("a")
    scheduler.wake("a", 3.0)
    step(scheduler, 3.5)
    assert "3.0 s: woken: grammar is ready." in scheduler.explain("a")
    assert line(scheduler, "a", "waited") == "waited 500 ms."


def test_ageing_is_the_reason_when_a_worse_one_stands_first() -> None:
    scheduler = small(max_num_seqs=1, policy="priority", ageing_s=5.0)
    scheduler.submit(ask("a", 5, max_tokens=20), 0.0)
    step(scheduler, 0.0)
    scheduler.submit(ask("old", 5, priority=9), 0.0)
    scheduler.submit(ask("new", 5, priority=0), 4.0)
    steps(scheduler, 4, 8)
    told = line(scheduler, "new", "waited")
    assert "1.0 s for a slot" in told
    assert "3.0 s behind 'old'" in told
    assert "because of its age" in told
    assert "by one" not in line(scheduler, "old", "waited")  # it is the one


# -- preemption and ends -----------------------------------------------------


def test_a_preemption_names_its_cause_and_the_wait_that_followed() -> None:
    scheduler = small(num_blocks=4, max_num_seqs=2)
    scheduler.submit(ask("a", 8, max_tokens=4), 0.0)  # 2 blocks, 3 from 1 s on; ends at 3 s
    scheduler.submit(ask("b", 4, max_tokens=8), 0.0)  # 1 block, 2 at 1 s: one too many
    steps(scheduler, 0, 1)
    told = line(scheduler, "b", "preempted in")
    assert told.startswith("1.0 s: preempted in step 2 with 5 tokens known, for ")
    assert told.endswith("for want of 1 block for itself.")
    assert "new; preempted." in scheduler.explain("b")
    steps(scheduler, 2, 4)
    assert "4.0 s: resumed in step 5; 4 tokens were still in the cache." in scheduler.explain("b")
    waited = line(scheduler, "b", "waited")
    assert waited.startswith("waited 3.0 s: 2.0 s for blocks, 1 short at first, 1.0 s ")
    assert "preempt" in waited


def test_a_preemption_names_the_one_who_needed_the_blocks() -> None:
    scheduler = small(num_blocks=3, max_num_seqs=2)
    scheduler.submit(ask("a", 8, max_tokens=4), 0.0)  # needs a third block at 1 s
    scheduler.submit(ask("b", 2, max_tokens=8), 0.0)  # has room, but is the newest
    steps(scheduler, 0, 1)
    told = line(scheduler, "b", "preempted in")
    assert told.endswith("for want of 1 block for 'a'.")


def test_a_step_whose_result_was_lost_is_a_cause() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0)
    scheduler.retry(scheduler.plan(0.0), 1.0)
    assert "a step whose result was lost" in line(scheduler, "a", "preempted in step 1")


def test_a_reset_of_the_cache_is_a_cause() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0)
    step(scheduler, 0.0)
    scheduler.reset_prefix_cache(reset_running_requests=True, now=1.0)
    assert "a reset of the prefix cache" in line(scheduler, "a", "preempted in step 1")


def test_a_failed_step_tells_what_went_wrong() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0)
    scheduler.fail(scheduler.plan(0.0), 1.0, "out of memory")
    assert line(scheduler, "a", "ended") == "1.0 s: ended (out of memory) with 5 tokens known."
    assert "finished: failed" in scheduler.explain("a")


def test_a_missed_deadline_tells_that_it_was_refused() -> None:
    scheduler = small(max_num_seqs=1, policy="deadline", refuse_late=True)
    scheduler.submit(ask("a", 5, max_tokens=20), 0.0)
    step(scheduler, 0.0)
    scheduler.submit(ask("b", 5, deadline=2.0), 0.0)
    steps(scheduler, 1, 3)
    assert line(scheduler, "b", "ended") == (
        "3.0 s: ended (its deadline passed in the queue) with 5 tokens known."
    )
    assert line(scheduler, "b", "waited").startswith("waited 3.0 s: ")


def test_an_abort_while_waiting_ends_the_wait() -> None:
    scheduler = small(max_num_seqs=1)
    scheduler.submit(ask("a", 5, max_tokens=20), 0.0)
    scheduler.submit(ask("b", 5), 0.0)
    steps(scheduler, 0, 2)
    scheduler.abort("b", 2.0)
    steps(scheduler, 3, 9)
    assert line(scheduler, "b", "waited") == "waited 2.0 s: 2.0 s for a slot (max_num_seqs)."
    assert line(scheduler, "b", "ended") == "2.0 s: ended (abort) with 5 tokens known."


# -- why, right now ----------------------------------------------------------


def test_why_tells_the_reason_of_everyone_who_got_nothing() -> None:
    scheduler = small(max_num_seqs=1)
    for name in "abcd":
        scheduler.submit(ask(name, 5, max_tokens=9), 0.0)
    scheduler.park("d", "grammar", 0.0)
    step(scheduler)
    assert scheduler.why() == {
        "b": "for a slot (max_num_seqs)",
        "c": "behind 'b', which waits for a slot (max_num_seqs)",
        "d": "parked for grammar",
    }


def test_why_has_nothing_to_say_about_those_who_run() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0)
    step(scheduler)
    assert scheduler.why() == {}


def test_why_says_so_before_the_first_step() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0)
    assert scheduler.why() == {"a": "not considered yet"}


def test_why_tells_of_a_pause() -> None:
    scheduler = small()
    scheduler.pause("all")
    scheduler.submit(ask("a", 5), 0.0)
    scheduler.plan(0.0)
    assert "paused" in scheduler.why()["a"]


class OldestOnly(Policy):
    """Gives the whole budget to the oldest resident."""

    def share(self, slot: Index, want: I32, budget: int) -> I32:
        return np.where(np.arange(len(slot)) == 0, want, 0).astype(np.int32)


class NewestFirst(Policy):
    def share(self, slot: Index, want: I32, budget: int) -> I32:
        return within_budget(want[::-1], budget)[::-1]


def test_a_resident_is_told_that_the_budget_went_to_others() -> None:
    scheduler = small(policy=f"{__name__}.{NewestFirst.__name__}", num_blocks=32)
    scheduler.submit(ask("old", 20, max_tokens=9), 0.0)
    scheduler.submit(ask("new", 60, max_tokens=2), 0.0)
    assert step(scheduler)["tokens"] == {"old": 20, "new": 12}
    assert step(scheduler)["tokens"] == {"new": 32}
    assert scheduler.why() == {"old": "token budget: other requests used it"}


def test_a_resident_is_told_that_its_policy_left_it_out() -> None:
    scheduler = small(policy=f"{__name__}.{OldestOnly.__name__}")
    for name in "ab":
        scheduler.submit(ask(name, 2, max_tokens=9), 0.0)
    step(scheduler)
    assert step(scheduler)["tokens"] == {"a": 1}
    assert scheduler.why() == {"b": "room: its policy lets it wait"}
    assert "1 step without a position" in scheduler.explain("b")
    assert "without" not in scheduler.explain("a")


def test_a_resident_is_told_that_blocks_are_being_copied() -> None:
    settings = {"num_blocks": 4, "preemption_mode": "swap", "swap_space": 8}
    scheduler = small(max_num_seqs=2, max_model_len=16, **settings)
    for name, first in (("a", 1), ("b", 60)):
        scheduler.submit(ask(name, range(first, first + 6), max_tokens=8), 0.0)
    told: list[dict[str, str]] = []
    for _ in range(6):
        step(scheduler)
        told.append(scheduler.why())
    assert {"a": "blocks: some are still being copied"}.items() <= told[3].items()


# -- families and the host ---------------------------------------------------


def test_a_family_lives_one_life() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5, max_tokens=2, n=3), 0.0)
    steps(scheduler, 0, 2)
    assert scheduler.explain("a").splitlines() == [
        "'a': 5 tokens of prompt, at most 2 new; finished: reached max_tokens.",
        "  0 ms: submitted, with 0 requests waiting.",
        "  0 ms: admitted in step 1; 0 tokens came from the prefix cache.",
        "  1.0 s: forked into 3 sequences that share the prompt.",
        "  1.0 s: first token, from step 2.",
        "  2.0 s: ended (length) with 7 tokens known.",
    ]


def test_one_that_went_to_the_host_and_came_back() -> None:
    scheduler = crowded(preemption_mode="swap", swap_space=4, enable_prefix_caching=False)
    steps(scheduler, 1, 5)
    assert scheduler.explain("b").splitlines()[3:8] == [
        "  0 ms: first token, from step 1.",
        "  1.0 s: preempted in step 2 with 5 tokens known, for want of 1 block for itself.",
        "  1.0 s: swapped out: 1 block copied to the host.",
        "  waited 4.0 s: 3.0 s for blocks, 1 short at first, 1.0 s in steps that had to preempt.",
        "  5.0 s: swapped in at step 6: 1 block copied back.",
    ]


def test_a_wait_for_the_copy_to_the_host() -> None:
    scheduler = crowded(preemption_mode="swap", swap_space=4)
    plan = scheduler.plan(1.0)
    scheduler.abort("a", 1.0)
    scheduler.plan(2.0)
    scheduler.plan(3.0)
    commit(scheduler, plan, 4.0)
    assert "for its copy to the host" in line(scheduler, "b", "waited")


def test_a_wait_in_steps_that_decode() -> None:
    scheduler = small(discipline="prefill_first", max_wait=0.0)
    scheduler.submit(ask("a", 3, max_tokens=9), 0.0)
    steps(scheduler, 0, 0)
    scheduler.submit(ask("b", 3, max_tokens=9), 0.0)
    steps(scheduler, 1, 2)
    assert line(scheduler, "b", "waited") == "waited 2.0 s: 1.0 s in steps that decode."


def test_one_that_is_behind_one_on_the_host() -> None:
    scheduler = crowded(preemption_mode="swap", swap_space=4)
    scheduler.submit(ask("c", 1), 0.0)
    steps(scheduler, 1, 2)
    assert scheduler.why() == {
        "b": "for blocks, 1 short at first",
        "c": "behind 'b', which waits for blocks, 1 short at first",
    }

"""How many drafts a step verifies, and what accepted and rejected ones leave behind."""

from typing import Any

import numpy as np
import pytest

from paceline import ConfigError, RequestError, Scheduler
from paceline.core.arrays import F32, I32
from paceline.core.config import SpeculationConfig
from paceline.sched.speculation import Adaptive, Fixed, load
from paceline.sim.reference import reference
from tests.sched.support import (
    Pipeline,
    ask,
    commit,
    counters,
    findable,
    finish_all,
    sequence,
    small,
    state,
    step,
)


def drafting(drafts: int = 3, **settings: Any) -> Scheduler:
    return small(num_speculative_tokens=drafts, speculation="fixed", **settings)


# -- how many ----------------------------------------------------------------


def adaptive(free_tokens: int = 256) -> Adaptive:
    return Adaptive(SpeculationConfig(speculation_max_batch_tokens=free_tokens))


def drafts(speculation: Fixed | Adaptive, most: list[int], acceptance: list[float]) -> list[int]:
    found = speculation.drafts(np.array(most, np.int32), np.array(acceptance, np.float32))
    return found.tolist()


def test_fixed_is_always_as_many_as_allowed() -> None:
    assert drafts(Fixed(SpeculationConfig()), [0, 3, 5], [0.0, 0.0, 1.0]) == [0, 3, 5]


def test_adaptive_follows_acceptance() -> None:
    """The k-th draft is worth it while all k are right with even odds: 0.5, 0.8**3, 0.9**6."""
    most, acceptance = [10] * 5, [0.0, 0.51, 0.8, 0.9, 1.0]
    assert drafts(adaptive(), most, acceptance) == [1, 1, 3, 6, 10]


def test_adaptive_never_gives_more_than_allowed() -> None:
    assert drafts(adaptive(), [0, 1, 2], [1.0, 1.0, 1.0]) == [0, 1, 2]


def test_adaptive_goes_on_trying_one_so_that_it_can_recover() -> None:
    assert drafts(adaptive(), [5], [0.0]) == [1]


@pytest.mark.parametrize(
    ("residents", "each"), [(1, 7), (2, 3), (3, 1), (4, 1), (5, 0), (8, 0), (9, 0)]
)
def test_adaptive_shares_what_the_rows_leave_of_a_free_step(residents: int, each: int) -> None:
    found = drafts(adaptive(free_tokens=8), [10] * residents, [1.0] * residents)
    assert found == [each] * residents


def test_adaptive_has_nothing_to_say_about_nobody() -> None:
    assert drafts(adaptive(), [], []) == []


class OneEach:
    """A rule of one's own."""

    def __init__(self, config: SpeculationConfig) -> None:
        self.most = config.num_speculative_tokens

    def drafts(self, most: I32, acceptance: F32) -> I32:
        return np.minimum(most, 1)


def test_a_rule_of_ones_own_is_found_by_its_path() -> None:
    path = f"{__name__}.{OneEach.__name__}"
    found = load(SpeculationConfig(speculation=path, num_speculative_tokens=4))
    assert isinstance(found, OneEach)
    assert found.most == 4
    scheduler = small(num_speculative_tokens=4, speculation=path)
    scheduler.submit(ask("a", 5), 0.0)
    step(scheduler)
    assert scheduler.plan(0.0).to_dict()["drafts"] == {"a": 1}


@pytest.mark.parametrize("name", ["nope", "no.such.module", "paceline.sched.speculation.Nope"])
def test_a_rule_that_does_not_exist_is_an_error_that_names_it(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        load(SpeculationConfig(speculation=name))


# -- in a plan ---------------------------------------------------------------


def test_a_decode_row_is_one_token_and_its_drafts() -> None:
    scheduler = drafting(3)
    scheduler.submit(ask("a", 5, max_tokens=20), 0.0)
    step(scheduler)
    plan = scheduler.plan(0.0).to_dict()
    assert (plan["tokens"], plan["drafts"], plan["total"]) == ({"a": 4}, {"a": 3}, 4)


def test_an_unfinished_prompt_is_never_drafted_for() -> None:
    scheduler = drafting(3, max_num_batched_tokens=8)
    scheduler.submit(ask("a", 20, max_tokens=20), 0.0)
    found = [step(scheduler) for _ in range(4)]
    assert [(one["tokens"], one["drafts"]) for one in found] == [
        ({"a": 8}, {}),
        ({"a": 8}, {}),
        ({"a": 4}, {}),
        ({"a": 4}, {"a": 3}),
    ]


def test_recomputing_earlier_outputs_is_no_place_for_drafts_either() -> None:
    scheduler = drafting(3)
    scheduler.submit(ask("a", 5, max_tokens=20), 0.0)
    step(scheduler)
    step(scheduler, a=[1, 2, 3, 4])
    scheduler.reset_prefix_cache(reset_running_requests=True)
    resumed = step(scheduler)
    assert (resumed["tokens"], resumed["drafts"]) == ({"a": 10}, {})
    assert step(scheduler)["drafts"] == {"a": 3}


def test_a_request_may_expect_other_drafts_than_the_engine() -> None:
    scheduler = drafting(3)
    scheduler.submit(ask("none", 5, max_tokens=20, drafts=0), 0.0)
    scheduler.submit(ask("two", 5, max_tokens=20, drafts=2), 0.0)
    scheduler.submit(ask("usual", 5, max_tokens=20), 0.0)
    step(scheduler)
    assert step(scheduler)["drafts"] == {"two": 2, "usual": 3}


@pytest.mark.parametrize("expected", [100, 2**31 - 1, 2**40])
def test_a_request_that_expects_absurdly_many_drafts_does_no_harm(expected: int) -> None:
    """After one token 24 - 6 more may follow before its last; or it is refused at once."""
    scheduler = drafting(2)
    try:
        scheduler.submit(ask("a", 5, max_tokens=20, drafts=expected), 0.0)
    except RequestError:
        return
    step(scheduler)
    assert step(scheduler)["drafts"] == {"a": 18}


def test_the_budget_shortens_drafts() -> None:
    scheduler = drafting(3, max_num_batched_tokens=6, max_num_seqs=2)
    for name in "ab":
        scheduler.submit(ask(name, 3, max_tokens=20), 0.0)
    step(scheduler)
    plan = step(scheduler)
    assert (plan["tokens"], plan["drafts"]) == ({"a": 4, "b": 2}, {"a": 3, "b": 1})


def test_drafts_leave_the_budget_to_those_who_wait() -> None:
    """A waiting prompt is worth more than a guess."""
    scheduler = drafting(3, max_num_batched_tokens=8)
    scheduler.submit(ask("a", 3, max_tokens=20), 0.0)
    step(scheduler)
    scheduler.submit(ask("b", 12, max_tokens=20), 0.0)
    plans = [step(scheduler) for _ in range(3)]
    assert [(plan["tokens"], plan["drafts"]) for plan in plans] == [
        ({"a": 1, "b": 7}, {}),
        ({"a": 3, "b": 5}, {"a": 2}),
        ({"a": 4, "b": 4}, {"a": 3, "b": 3}),
    ]


def test_drafts_leave_the_blocks_to_those_who_wait() -> None:
    """The last free block goes to "b", and "a" computes without drafts."""
    scheduler = drafting(3, num_blocks=3)
    scheduler.submit(ask("a", 6, max_tokens=4), 0.0)
    step(scheduler)
    scheduler.submit(ask("b", 3, max_tokens=2), 0.0)
    plan = step(scheduler)
    assert (plan["tokens"], plan["drafts"]) == ({"a": 1, "b": 3}, {})


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_drafts_that_need_no_block_stay_when_others_find_none(order: str) -> None:
    """One has room for its draft; that of the other would need a block that is not there."""
    scheduler = drafting(1, num_blocks=3, max_num_seqs=2)
    for name in order:
        scheduler.submit(ask(name, 5 if name == "a" else 3, max_tokens=4), 0.0)
    step(scheduler)
    plan = step(scheduler)
    assert (plan["tokens"], plan["drafts"]) == ({"a": 2, "b": 1}, {"a": 1})


@pytest.mark.parametrize(("max_tokens", "drafts"), [(5, 3), (4, 2), (3, 1), (2, 0)])
def test_max_tokens_shorten_drafts(max_tokens: int, drafts: int) -> None:
    """After the first token `max_tokens - 1` may follow, one of which needs no draft."""
    scheduler = drafting(3)
    scheduler.submit(ask("a", 5, max_tokens=max_tokens), 0.0)
    step(scheduler)
    assert scheduler.plan(0.0).to_dict()["drafts"].get("a", 0) == drafts


def test_the_model_length_shortens_drafts() -> None:
    """Positions 0 to 6 are computed: the sample of position 6 is the eighth and last token."""
    scheduler = drafting(3, max_model_len=8)
    scheduler.submit(ask("a", 5, max_tokens=None), 0.0)
    step(scheduler)
    plan = scheduler.plan(0.0)
    assert plan.to_dict()["tokens"] == {"a": 2}
    told = commit(scheduler, plan, a=[1, 2])
    assert told["a"] == {"tokens": [1, 2], "finish": "length"}


def test_drafts_are_given_up_before_anybody_is_preempted() -> None:
    scheduler = drafting(3, num_blocks=4, max_num_seqs=2)
    for name in "ab":
        scheduler.submit(ask(name, 6, max_tokens=4), 0.0)  # 2 blocks each, with room for 2 more
    step(scheduler)
    plan = step(scheduler)
    assert (plan["tokens"], plan["drafts"], plan["preempted"]) == ({"a": 1, "b": 1}, {}, [])


def test_drafts_take_the_blocks_they_need_when_there_are_some() -> None:
    scheduler = drafting(3, num_blocks=6, max_num_seqs=2)
    for name in "ab":
        scheduler.submit(ask(name, 6, max_tokens=12), 0.0)
    step(scheduler)
    plan = step(scheduler)  # positions 6 to 9: a third block for each
    assert plan["drafts"] == {"a": 3, "b": 3}
    assert {name: len(blocks[0]) for name, blocks in plan["blocks"].items()} == {"a": 1, "b": 1}


def test_a_large_batch_drafts_nothing_under_the_adaptive_rule() -> None:
    scheduler = small(num_speculative_tokens=3, speculation_max_batch_tokens=6)
    scheduler.submit(ask("a", 3, max_tokens=20), 0.0)
    step(scheduler)
    assert step(scheduler)["drafts"] == {"a": 3}
    for name in "bcd":
        scheduler.submit(ask(name, 3, max_tokens=20), 0.0)
    step(scheduler)
    assert step(scheduler)["drafts"] == {}


def test_drafts_dwindle_when_they_are_rejected_and_return_when_they_are_not() -> None:
    scheduler = small(num_speculative_tokens=3, max_model_len=200, num_blocks=50)
    scheduler.submit(ask("a", 3, max_tokens=None), 0.0)
    step(scheduler)
    rejected = [step(scheduler, a=[1])["drafts"]["a"] for _ in range(12)]
    assert rejected[0] == 3
    assert rejected[-1] == 1
    accepted: list[int] = []
    for _ in range(20):
        plan = scheduler.plan(0.0)
        accepted.append(plan.to_dict()["drafts"]["a"])
        commit(scheduler, plan, a=range(1, 2 + accepted[-1]))
    assert accepted[0] == 1
    assert accepted[-1] == 3


# -- acceptance and rejection ------------------------------------------------


@pytest.mark.parametrize(
    ("sampled", "known", "planned"), [([1, 2, 3, 4], 10, 9), ([1, 2], 8, 7), ([1], 7, 6)]
)
def test_rejected_drafts_leave_the_counters_as_if_never_planned(
    sampled: list[int], known: int, planned: int
) -> None:
    scheduler = drafting(3)
    scheduler.submit(ask("a", 5, max_tokens=20), 0.0)
    step(scheduler)
    plan = scheduler.plan(0.0)
    assert counters(scheduler, "a") == (6, 9, 5)
    assert commit(scheduler, plan, a=sampled)["a"]["tokens"] == sampled
    assert counters(scheduler, "a") == (known, planned, planned)


def test_blocks_held_for_rejected_drafts_are_used_later_and_not_taken_twice() -> None:
    scheduler = drafting(3)
    scheduler.submit(ask("a", 4, max_tokens=20), 0.0)
    step(scheduler)
    grown = [len(step(scheduler, a=[1])["blocks"].get("a", [[]])[0]) for _ in range(6)]
    assert grown == [1, 1, 0, 0, 0, 1]  # positions 4-7, 5-8, 6-9, 7-10, 8-11, 9-12
    assert len(state(scheduler, "a")["blocks"][0]) == 4


def test_two_steps_of_drafts_in_flight_are_accounted_one_after_the_other() -> None:
    scheduler = drafting(2)
    scheduler.submit(ask("a", 5, max_tokens=20), 0.0)
    step(scheduler)
    first, second = scheduler.plan(0.0), scheduler.plan(0.0)
    assert (first.start.tolist(), second.start.tolist()) == ([5], [8])
    assert counters(scheduler, "a") == (6, 11, 5)
    commit(scheduler, first, a=[1])  # two rejected
    assert counters(scheduler, "a") == (7, 9, 6)
    commit(scheduler, second, a=[2, 3])  # one rejected
    assert counters(scheduler, "a") == (9, 8, 8)


def test_a_rejection_lets_a_sequence_go_on_that_had_planned_its_last_position() -> None:
    scheduler = drafting(3)
    scheduler.submit(ask("a", 5, max_tokens=5), 0.0)
    step(scheduler)
    plan = scheduler.plan(0.0)
    assert len(scheduler.plan(0.0).rows) == 0  # all 9 positions are handed out
    commit(scheduler, plan, a=[1])
    plan = scheduler.plan(0.0)
    assert plan.to_dict()["tokens"] == {"a": 3}
    assert commit(scheduler, plan, a=[2, 3, 4])["a"]["finish"] == "length"


def test_rejected_drafts_are_in_no_block_that_can_be_found() -> None:
    scheduler = drafting(3)
    prompt = list(range(50, 54))
    scheduler.submit(ask("a", prompt, max_tokens=20), 0.0)
    step(scheduler, a=[1])
    step(scheduler, a=[2])
    step(scheduler, a=[3])
    scheduler.abort("a", 0.0)
    assert findable(scheduler, [*prompt, 1, 2, 3, 9]) == 4
    assert findable(scheduler, prompt) == 4


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("rule", ["fixed", "adaptive"])
def test_output_is_the_same_with_drafts_as_without(depth: int, rule: str) -> None:
    scheduler = small(num_speculative_tokens=3, speculation=rule, num_blocks=8, max_num_seqs=3)
    asked = [ask(name, 5 + number, max_tokens=13) for number, name in enumerate("abc")]
    for one in asked:
        scheduler.submit(one, 0.0)
    pipeline = Pipeline(scheduler, depth).run()
    assert pipeline.got == {one.id: reference(one, 50, 64)[0] for one in asked}
    assert pipeline.ends == {one.id: ["length"] for one in asked}


def test_lookahead_slots_are_blocks_beyond_the_row() -> None:
    """A drafter writes two positions past the row, but none past the model length."""
    scheduler = small(lookahead_slots=2, max_model_len=12)
    scheduler.submit(ask("a", 7, max_tokens=5), 0.0)
    first = scheduler.plan(0.0).to_dict()
    assert len(first["blocks"]["a"][0]) == 3  # 7 positions and 2 more
    scheduler = small(lookahead_slots=2, max_model_len=8)
    scheduler.submit(ask("a", 6, max_tokens=2), 0.0)
    step(scheduler)
    assert "a" not in step(scheduler)["blocks"]  # position 6 and one more: the length is reached


def test_lookahead_slots_move_along_with_a_resident() -> None:
    """With two positions ahead the block of position 8 is taken when position 6 is computed."""
    scheduler = small(lookahead_slots=2)
    scheduler.submit(ask("a", 3, max_tokens=9), 0.0)
    held = [step(scheduler) and len(state(scheduler, "a")["blocks"][0]) for _ in range(6)]
    assert held == [2, 2, 2, 2, 3, 3]


def test_lookahead_slots_count_when_a_request_has_to_fit() -> None:
    with pytest.raises(ValueError, match="4 blocks"):
        small(num_blocks=3, lookahead_slots=2).submit(ask("a", 8, max_tokens=5), 0.0)
    small(num_blocks=3).submit(ask("a", 8, max_tokens=5), 0.0)


def test_one_that_returns_to_the_end_of_the_model_gets_no_block_behind_it() -> None:
    """The drafter would write further positions, but there are none."""
    scheduler = small(lookahead_slots=4, preemption_mode="swap", swap_space=16, num_blocks=32)
    scheduler.submit(ask("a", 61, max_tokens=3), 0.0)
    while len(sequence(scheduler, "a").tokens) and not scheduler.stats.sampled:
        step(scheduler)
    step(scheduler)
    scheduler.residency.preempt(sequence(scheduler, "a").slot, "a test")
    finish_all(scheduler)
    assert scheduler.stats.swapped_in_blocks + scheduler.stats.swapped_out_blocks > 0

"""How many drafts a step verifies, and what accepted and rejected ones leave behind."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from random import Random

import numpy as np
import pytest

from paceline import ConfigError
from paceline.core.arrays import I32
from paceline.core.capabilities import Points, StepTimes
from paceline.core.settings.features import SpeculationConfig
from paceline.sched.composition import FOREVER
from paceline.sched.speculation import (
    Adaptive,
    Curve,
    DraftedStep,
    DraftRows,
    Fixed,
    Speculation,
    expected,
    learned,
    load,
    missed,
    waits,
)
from tests.sched.support import ask, drafting, sequence, small, step

# -- how many ----------------------------------------------------------------


def adaptive(
    plain: Points | None = None, drafted: Points | None = None, most: int = 256
) -> Adaptive:
    """On a device that was measured, or on one that was not."""
    found = Adaptive(SpeculationConfig(speculation_max_batch_tokens=most))
    if plain is not None:
        found.measure(StepTimes(plain, drafted or plain))
    return found


def decodes(
    most: list[int],
    acceptance: list[float],
    misses: list[int] | None = None,
    wait: list[int] | None = None,
    step: int = 1,
) -> DraftRows:
    """Rows of one position each."""
    none = [0] * len(most)
    return DraftRows(
        step,
        len(most),
        len(most),
        np.array(most, np.int32),
        np.array(acceptance, np.float32),
        np.array(misses or none, np.int32),
        np.array(wait or none, np.int64),
    )


def by_trial(most: list[int], acceptance: list[float], seconds: Callable[[int], float]) -> float:
    """The most tokens per second that any choice of drafts is expected to yield."""
    best = 0.0
    for chosen in product(*(range(one + 1) for one in most)):
        gained = sum(
            sum(rate**place for place in range(1, number + 1))
            for number, rate in zip(chosen, acceptance, strict=True)
        )
        best = max(best, (len(most) + gained) / seconds(len(most) + sum(chosen)))
    return best


FLAT: Points = ((1, 1.0), (1000, 1.001))  # drafts cost nothing
STEEP: Points = ((1, 1.0), (1000, 1000.0))  # every position costs as much as any other
KNEE: Points = ((1, 1.0), (8, 1.1), (16, 4.0))  # up to 8 positions are cheap


def test_fixed_is_always_as_many_as_allowed() -> None:
    rows = decodes([0, 3, 5], [0.0, 0.0, 1.0], wait=[9, 9, 9])
    assert Fixed(SpeculationConfig()).drafts(rows).tolist() == [0, 3, 5]


def test_drafts_that_cost_nothing_are_all_taken() -> None:
    assert adaptive(FLAT).drafts(decodes([4, 2, 0], [0.9, 0.5, 0.9])).tolist() == [4, 2, 0]


def test_drafts_that_cost_as_much_as_tokens_are_not_taken_however_likely() -> None:
    found = adaptive(STEEP)
    found.verified(
        DraftedStep(2, 2, 2, 0, deepest=1, is_decode=True)
    )  # nothing is left to try with
    found.verified(DraftedStep(2, 2, 2, 0, deepest=1, is_decode=True))
    assert found.drafts(decodes([4, 4], [0.9, 0.99])).tolist() == [0, 0]


def test_the_likeliest_drafts_share_what_is_cheap() -> None:
    """Six more positions are cheap: the first row has the likelier drafts."""
    assert adaptive(KNEE).drafts(decodes([8, 8], [0.9, 0.6])).tolist() == [5, 1]


def test_many_rows_take_their_time_however_few_the_drafts_are() -> None:
    """Positions are free, but a step of three rows with a draft takes twice as long."""
    found = Adaptive(SpeculationConfig())
    found.measure(StepTimes(FLAT, FLAT, ((1, 1.0), (3, 2.0), (1000, 2.0))))
    found.verified(
        DraftedStep(3, 3, 1, 0, deepest=1, is_decode=True)
    )  # nothing is left to try with
    found.verified(DraftedStep(3, 3, 1, 0, deepest=1, is_decode=True))
    likely = [0.9, 0.2, 0.2]
    assert found.drafts(decodes([2, 0, 0], likely)).tolist() == [0, 0, 0]
    assert found.drafts(decodes([2], [0.9])).tolist() == [2]
    assert found.drafts(decodes([4, 4, 4], [0.9, 0.9, 0.9])).tolist() == [4, 4, 4]


@pytest.mark.parametrize("seconds", [FLAT, KNEE, ((1, 1.0), (12, 2.0), (40, 9.0))])
def test_no_other_choice_is_expected_to_yield_more(seconds: Points) -> None:
    curve, random = Curve(seconds), Random(3)
    for _ in range(20):
        most = [random.randint(1, 3) for _ in range(random.randint(1, 4))]
        acceptance = [random.choice([0.3, 0.6, 0.8, 0.95]) for _ in most]
        found = adaptive(seconds).drafts(decodes(most, acceptance)).tolist()
        gained = sum(
            sum(rate**place for place in range(1, number + 1))
            for number, rate in zip(found, acceptance, strict=True)
        )
        rate = (len(most) + gained) / curve.one(len(most) + sum(found))
        assert all(number <= one for number, one in zip(found, most, strict=True))
        assert rate * Adaptive.WORTH >= by_trial(most, acceptance, curve.one) * (1 - 1e-6)


def test_rows_share_drafts_where_each_further_one_of_a_row_takes_a_pass() -> None:
    """A pass takes as long as half a step without drafts, and positions are free: eight rows have
    one draft each, since a second one of any row is not worth a pass."""
    plain = tuple((rows, 1.0) for rows in (1, 2, 4, 8))
    drafted = tuple((5 * rows, 3.0) for rows in (1, 2, 4, 8))
    found = Adaptive(SpeculationConfig())
    found.measure(StepTimes(plain, drafted, tuple((rows, 1.5) for rows in (1, 2, 4, 8))))
    assert found.drafts(decodes([4] * 8, [0.7] * 8)).tolist() == [1] * 8
    assert found.drafts(decodes([4], [0.99])).tolist() == [4]
    found.measure(StepTimes(plain, tuple((size, 1.5) for size, _ in drafted)))
    assert found.drafts(decodes([4] * 8, [0.7] * 8)).tolist() == [4] * 8


def test_the_reason_names_drafts_that_pay_and_tries() -> None:
    found = adaptive(KNEE)
    found.drafts(decodes([8, 8], [0.9, 0.6]))
    assert found.reason == (
        "those of the latest step: 6 that promise 2.90 times the tokens per second"
    )
    found = adaptive(COSTLY)
    assert found.drafts(decodes([3], [0.5], step=0)).any()
    assert found.reason == "those of the latest step: 1 to learn whether drafts pay"
    assert not found.drafts(decodes([3], [0.5], wait=[5], step=0)).any()
    assert found.reason == ""


def test_a_gain_too_small_to_notice_is_no_gain() -> None:
    """One more position takes 49 % longer, and is right with even odds."""
    nearly: Points = ((1, 1.0), (2, 1.49), (3, 9.0))
    found = adaptive(nearly)
    found.verified(DraftedStep(1, 1, 2, 0, deepest=2, is_decode=True))
    assert found.drafts(decodes([1], [0.5])).tolist() == [0]
    assert adaptive(((1, 1.0), (2, 1.3), (3, 9.0))).drafts(decodes([1], [0.5])).tolist() == [1]


def test_drafts_of_a_step_that_computes_prompts_are_compared_with_that_step() -> None:
    """A step with drafts is slower from its first position on, and so is one with prompts."""
    found = adaptive(((1, 1.0), (2, 1.0)), ((1, 3.0), (100, 3.1)))
    found.verified(DraftedStep(1, 1, 2, 0, deepest=2, is_decode=True))
    assert found.drafts(decodes([1], [0.6])).tolist() == [0]
    beside = replace(decodes([1, 0], [0.6, 0.5]), positions=40)
    assert found.drafts(beside).tolist() == [1, 0]


@pytest.mark.parametrize(("residents", "each"), [(1, 7), (2, 3), (4, 1), (8, 0), (9, 0)])
def test_a_step_has_no_more_positions_than_the_setting_allows(residents: int, each: int) -> None:
    rows = decodes([10] * residents, [0.9] * residents)
    assert adaptive(FLAT, most=8).drafts(rows).tolist() == [each] * residents


def test_without_a_measurement_a_large_batch_wants_likelier_drafts() -> None:
    """A step is assumed to take as long as 256 positions and its own."""
    assert adaptive().drafts(decodes([3], [0.4])).tolist() == [3]
    assert adaptive(most=40).drafts(decodes([1] * 20, [0.9] * 20)).tolist() == [1] * 20
    poor = adaptive(most=40)
    for _ in range(6):
        poor.verified(DraftedStep(20, 20, 20, 0, deepest=1, is_decode=True))
    assert poor.drafts(decodes([1] * 20, [0.3] * 20, step=0)).tolist() == [0] * 20


def test_rows_that_wait_draft_nothing() -> None:
    rows = decodes([3, 3], [0.9, 0.9], misses=[2, 2], wait=[1, 0])
    assert adaptive(FLAT).drafts(rows).tolist() == [0, 3]


def test_nobody_drafts_nothing() -> None:
    assert adaptive(FLAT).drafts(decodes([], [])).tolist() == []


# -- the allowance -----------------------------------------------------------

COSTLY: Points = ((1, 1.0), (2, 1.8), (3, 9.0))  # pays if a draft is nearly always right


def test_a_row_that_is_not_worth_it_tries_one_while_the_allowance_pays() -> None:
    """A try costs 0.8 steps, and the first allowance is 2."""
    found, rows = adaptive(COSTLY), decodes([3], [0.5], step=0)
    for _ in range(2):
        assert found.drafts(rows).tolist() == [1]
        found.verified(DraftedStep(1, 1, 1, 0, deepest=1, is_decode=True))
    assert found.drafts(rows).tolist() == [0]


def test_the_allowance_grows_by_a_hundredth_of_a_step_each_step() -> None:
    """0.4 steps are left, and 0.4 are missing: after 40 steps, or one more, it may try again."""
    found = adaptive(COSTLY)
    for _ in range(2):
        found.verified(DraftedStep(1, 1, 1, 0, deepest=1, is_decode=True))
    assert found.drafts(decodes([3], [0.5], step=0)).tolist() == [0]
    assert found.quiet in (40, 41)
    assert found.drafts(decodes([3], [0.5], step=39)).tolist() == [0]
    assert found.drafts(decodes([3], [0.5], step=found.quiet + 39)).tolist() == [1]


def test_drafts_that_were_right_pay_for_further_tries() -> None:
    found = adaptive(COSTLY)
    for _ in range(2):
        found.verified(DraftedStep(1, 1, 1, 0, deepest=1, is_decode=True))
    for _ in range(3):
        found.verified(DraftedStep(1, 1, 1, 1, deepest=1, is_decode=True))
    assert found.drafts(decodes([3], [0.5], step=0)).tolist() == [1]


def test_a_proposer_that_has_nothing_costs_the_time_of_proposing() -> None:
    """A step with drafts takes half a step more, whether there were any or not."""
    found = adaptive(((1, 1.0), (2, 1.0)), ((1, 1.5), (3, 1.5)))
    for _ in range(4):
        assert found.drafts(decodes([1], [0.5], step=0)).tolist() == [1]
        found.verified(DraftedStep(1, 1, 0, 0, deepest=0, is_decode=True))
    assert found.drafts(decodes([1], [0.5], step=0)).tolist() == [0]
    assert found.drafts(decodes([1], [0.5], step=51)).tolist() == [1]


def test_below_zero_nobody_drafts_however_likely() -> None:
    cheap: Points = ((1, 1.0), (2, 1.5), (3, 2.0))
    found = adaptive(cheap)
    assert found.drafts(decodes([2], [0.95], step=0)).tolist() == [2]
    for _ in range(4):
        found.verified(DraftedStep(1, 1, 2, 0, deepest=2, is_decode=True))
    assert found.drafts(decodes([2], [0.95], step=0)).tolist() == [0]
    assert found.drafts(decodes([2], [0.95], step=199)).tolist() == [0]
    assert found.drafts(decodes([2], [0.95], step=201)).tolist() == [2]


def test_a_try_that_could_not_pay_is_not_made() -> None:
    """Even a draft that is right costs nearly as much as a step."""
    found = adaptive(((1, 1.0), (2, 1.9), (3, 9.0)))
    assert found.drafts(decodes([1], [0.99])).tolist() == [0]
    assert found.quiet == FOREVER


@pytest.mark.no_cover
@pytest.mark.parametrize("slope", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("rows", [1, 12])
def test_drafts_that_are_always_wrong_cost_a_hundredth_of_the_time(rows: int, slope: float) -> None:
    """And twice the first allowance at most."""
    points: Points = ((1, 1.0), (1000, 1.0 + 999 * slope))
    found, curve = adaptive(points), Curve(points)
    spent, steps = 0.0, 2000
    acceptance, misses = np.full(rows, 0.5, np.float32), np.zeros(rows, np.int32)
    draft_at = np.zeros(rows, np.int64)
    for number in range(steps):
        asked = decodes([4] * rows, acceptance.tolist(), step=number)
        drafts = found.drafts(replace(asked, misses=misses, wait=draft_at - number))
        spent += curve.one(rows + int(drafts.sum()))
        tried, none = drafts > 0, np.zeros(rows, np.int32)
        if tried.any():
            found.verified(
                DraftedStep(rows, rows, int(drafts.sum()), 0, int(drafts.max()), is_decode=True)
            )
        acceptance = np.where(tried, learned(acceptance, none, drafts), acceptance)
        misses = np.where(tried, missed(misses, none, drafts, acceptance), misses)
        draft_at = np.where(tried, number + waits(misses), draft_at)
    assert spent <= curve.one(rows) * (1.01 * steps + 2 * Adaptive.FIRST)


def test_drafting_is_paused_while_no_row_that_could_draft_does() -> None:
    found = adaptive(((1, 1.0), (2, 1.9), (3, 9.0)))
    assert not found.is_paused
    found.drafts(decodes([0], [0.9]))
    assert not found.is_paused  # no row may have drafts
    found.drafts(decodes([1], [0.9]))
    assert found.is_paused
    found.measure(StepTimes(FLAT, FLAT))
    found.drafts(decodes([1], [0.9]))
    assert not found.is_paused


# -- how long an answer holds ------------------------------------------------


def test_an_answer_with_drafts_holds_for_no_other_step() -> None:
    found = adaptive(FLAT)
    assert found.drafts(decodes([1, 1], [0.9, 0.9], wait=[0, 5])).any()
    assert found.quiet == 0
    assert Fixed(SpeculationConfig()).quiet == 0


def test_no_drafts_hold_until_the_next_row_may_try() -> None:
    found = adaptive(FLAT)
    assert not found.drafts(decodes([1, 0, 1], [0.5] * 3, misses=[4, 1, 7], wait=[8, 2, 64])).any()
    assert found.quiet == 8


def test_no_drafts_hold_forever_where_nobody_may_have_any() -> None:
    found = adaptive(FLAT)
    assert not found.drafts(decodes([0, 0], [0.5, 0.5])).any()
    assert found.quiet == FOREVER


# -- what a sequence teaches -------------------------------------------------


def column(*values: int) -> I32:
    return np.array(values, np.int32)


def test_acceptance_moves_towards_the_share_of_drafts_that_were_judged() -> None:
    """One that is judged weighs a ninth; what follows the first wrong one is not judged."""
    before = np.full(4, 0.5, np.float32)
    found = learned(before, column(0, 1, 4, 1), column(4, 1, 4, 4))
    judged_two = 0.5 + 2 / 10 * (0.5 - 0.5)
    assert found.tolist() == pytest.approx([4 / 9, 5 / 9, 2 / 3, judged_two])


def test_what_was_not_computed_teaches_nothing_of_acceptance() -> None:
    assert learned(np.full(1, 0.5, np.float32), column(0), column(0)).tolist() == [0.5]


def test_a_new_sequence_begins_with_the_acceptance_of_all_before_it() -> None:
    """Of 64 judged drafts half were right before; a sequence of 8 moves that by a ninth."""
    assert expected(0.5, 0, 8) == pytest.approx(0.5 * 8 / 9)
    assert expected(0.5, 8, 8) == pytest.approx(0.5 + 0.5 / 9)
    assert expected(0.5, 0, 0) == 0.5
    scheduler = drafting(3, max_num_seqs=2)
    scheduler.submit(ask("a", 5, max_tokens=40), 0.0)
    step(scheduler)
    for _ in range(4):
        step(scheduler, a=[1])  # the first of three drafts is wrong
    scheduler.submit(ask("b", 5, max_tokens=40), 0.0)
    step(scheduler, a=[1])
    table = scheduler.state.table
    assert table.acceptance[sequence(scheduler, "b").slot] == pytest.approx(
        expected(expected(expected(expected(0.5, 0, 1), 0, 1), 0, 1), 0, 1)
    )


def test_misses_grow_until_a_draft_is_right() -> None:
    misses, accepted, computed = column(0, 6, 7, 3), column(0, 0, 0, 1), column(2, 2, 2, 2)
    unlikely = np.full(4, 0.2, np.float32)
    assert missed(misses, accepted, computed, unlikely).tolist() == [1, 7, 7, 0]


def test_wrong_drafts_of_a_row_whose_drafts_are_often_right_are_no_misses() -> None:
    half = np.full(2, 0.5, np.float32)
    assert missed(column(0, 3), column(0, 0), column(2, 2), half).tolist() == [0, 3]


def test_nothing_proposed_is_a_miss_that_lasts_less_long() -> None:
    nothing, likely = column(0, 0, 0), np.full(3, 0.9, np.float32)
    assert missed(column(0, 5, 6), nothing, nothing, likely).tolist() == [1, 5, 6]


def test_the_next_try_waits_twice_as_long_after_each_miss() -> None:
    assert waits(column(0, 1, 2, 3, 4, 7)).tolist() == [0, 1, 2, 4, 8, 64]


# -- rules of one's own ------------------------------------------------------


class OneEach(Speculation):
    """A rule of one's own."""

    def drafts(self, rows: DraftRows) -> I32:
        return np.minimum(rows.most, 1)


def test_a_rule_of_ones_own_is_found_by_its_path() -> None:
    path = f"{__name__}.{OneEach.__name__}"
    found = load(SpeculationConfig(speculation=path, num_speculative_tokens=4))
    assert isinstance(found, OneEach)
    assert found.config.num_speculative_tokens == 4
    scheduler = small(num_speculative_tokens=4, speculation=path)
    scheduler.submit(ask("a", 5), 0.0)
    step(scheduler)
    assert scheduler.plan(0.0).to_dict()["drafts"] == {"a": 1}


@pytest.mark.parametrize(
    "name",
    [
        "nope",
        "no.such.module",
        "paceline.sched.speculation.Nope",
        "paceline.sched.speculation.DraftRows",
    ],
)
def test_a_rule_that_does_not_exist_is_an_error_that_names_it(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        load(SpeculationConfig(speculation=name))


POINTS: Points = ((1, 2.0), (3, 4.0), (7, 5.0))


def test_between_points_there_are_straight_lines_and_the_last_one_goes_on() -> None:
    found = Curve(POINTS).at(np.array([0, 1, 2, 3, 5, 7, 11]))
    assert found.tolist() == [2.0, 2.0, 3.0, 4.0, 4.5, 5.0, 6.0]
    assert Curve(POINTS).one(5) == 4.5


def test_a_larger_step_never_takes_less() -> None:
    curve = Curve(((1, 2.0), (2, 3.0), (4, 1.0), (8, 3.5)))
    assert [curve.one(size) for size in (2, 3, 4, 8)] == [3.0, 3.0, 3.0, 3.5]


def test_a_single_point_is_a_constant() -> None:
    assert Curve(((4, 2.0),)).at(np.array([1, 4, 100])).tolist() == [2.0, 2.0, 2.0]

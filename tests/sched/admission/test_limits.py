"""Each limit by itself, and a list of limits for residents and arrivals alike."""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import numpy as np
import pytest

from paceline import Scheduler
from paceline.core.arrays import I32, Index
from paceline.core.capabilities import StepCost
from paceline.core.settings.config import Config
from paceline.sched import admission as package
from paceline.sched.admission.limits import (
    Budget,
    Limit,
    Limits,
    LimitView,
    LongPrefill,
    ModelLength,
    PolicyShare,
    SnapshotEnds,
    WholePrompts,
    WholeRows,
)
from paceline.sched.admission.rows import Used, WantedRows
from paceline.sched.disciplines.prefill_first import PrefillFirst
from paceline.sched.disciplines.unified import Unified
from tests.sched.admission.limit_support import View, arrival, config, residents
from tests.sched.support import DISCIPLINES, PROMPT, ask, finish_all, small, step, tokens_of_steps

BLOCK = 4


class Aligned(Limit):
    """A chunk ends at the end of a block, unless it ends what is known."""

    reason = "alignment"

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size

    @classmethod
    def create(cls, config: Config, view: LimitView) -> "Aligned":
        return cls(config.cache.block_size)

    def clip(self, rows: WantedRows) -> I32:
        end = rows.start + rows.want
        aligned = np.maximum(rows.want - end % self._block_size, 0)
        return np.where(end < rows.known, aligned, rows.want)


class OddTokens(Limit):
    """A step computes at most `MOST` odd tokens: a stand-in for a budget of another kind."""

    MOST = 4
    reason = "odd tokens"

    @classmethod
    def create(cls, config: Config, view: LimitView) -> "OddTokens":
        return cls()

    def _odd(self, rows: WantedRows, row: int, count: int) -> int:
        start = int(rows.start[row])
        return int((rows.sequence(row).tokens[start : start + count] % 2).sum())

    def clip(self, rows: WantedRows) -> I32:
        left, granted = self.MOST - rows.used.get("odd", 0), rows.want.copy()
        for row in range(len(granted)):
            while self._odd(rows, row, int(granted[row])) > left:
                granted[row] -= 1
            left -= self._odd(rows, row, int(granted[row]))
        return granted

    def spend(self, rows: WantedRows, used: Used) -> None:
        counts = enumerate(rows.want.tolist())
        used["odd"] = used.get("odd", 0) + sum(self._odd(rows, *pair) for pair in counts)


class AlignedUnified(Unified):
    """Chunks end at the end of a block."""

    limits = (*Unified.limits, Aligned)


class AlignedPrefillFirst(PrefillFirst):
    """Chunks end at the end of a block."""

    limits = (*PrefillFirst.limits, Aligned)


class FewOddTokens(Unified):
    """Few odd tokens in a step."""

    limits = (*Unified.limits, OddTokens)


ALIGNED = [f"{__name__}.{kind.__name__}" for kind in (AlignedUnified, AlignedPrefillFirst)]


def of_the_product() -> list[type[Limit]]:
    modules = [
        import_module(f"{package.__name__}.{one.name}") for one in iter_modules(package.__path__)
    ]
    found = {kind for module in modules for kind in vars(module).values() if is_limit(kind)}
    return sorted(found, key=lambda kind: kind.__name__)


def is_limit(kind: Any) -> bool:
    return isinstance(kind, type) and Limit in kind.__mro__[1:]


# -- the list -----------------------------------------------------------------


def test_every_limit_is_found() -> None:
    assert {LongPrefill, Budget, WholePrompts} <= set(of_the_product())


@pytest.mark.parametrize("kind", [*of_the_product(), Aligned, OddTokens])
@pytest.mark.parametrize("left", [0, 3, 5, 100])
def test_a_limit_is_the_same_for_a_resident_and_for_an_arrival(
    kind: type[Limit], left: int
) -> None:
    view = View()
    view.cost = StepCost(20_000_000)
    limit = kind.create(config(long_prefill_token_threshold=4, max_step_s=0.1), view)
    if limit is None:
        # One is about arrivals alone, the other about models that keep states.
        assert kind in (WholePrompts, SnapshotEnds)
        return
    for want in range(8):
        for start in (0, 3, 25, 60):
            resident = limit.clip(residents(want, left=left, start=(start,))).tolist()
            assert limit.clip(arrival(want, left=left, start=start)).tolist() == resident
            assert 0 <= resident[0] <= want


def test_each_limit_clips_what_those_before_it_left() -> None:
    made = Limits((LongPrefill, Budget), config(long_prefill_token_threshold=4), View())
    assert made.clip(residents(9, 2, 9, left=7)).tolist() == [4, 2, 1]


def test_a_limit_that_limits_nothing_is_left_out() -> None:
    assert len(Limits((LongPrefill, WholePrompts, Budget), config(), View())) == 1


def test_the_limit_that_gives_nothing_says_what_an_arrival_waits_for() -> None:
    made = Limits((Budget, Aligned), config(block_size=BLOCK), View())
    assert made.reason(arrival(9, left=0)) == "budget"
    assert made.reason(arrival(9, left=3)) == "alignment"


def test_only_limits_that_count_are_told_what_rows_use() -> None:
    assert not Limits((Budget, Aligned), config(), View()).counting
    made, used = Limits((Budget, OddTokens), config(), View()), dict[str, int]()
    assert made.counting
    made.spend(residents(4, 3), used)
    made.spend(arrival(2), used)
    assert used == {"odd": 2 + 1 + 1}


# -- a limit of one's own, in a scheduler -------------------------------------


@pytest.mark.parametrize("discipline", ALIGNED)
def test_a_limit_of_ones_own_holds_for_residents_and_arrivals(discipline: str) -> None:
    scheduler = small(discipline=discipline, max_num_batched_tokens=10, block_size=BLOCK)
    scheduler.submit(ask("a", 21), now=0.0)
    assert step(scheduler)["tokens"] == {"a": 8}  # as an arrival: 10 are left
    assert step(scheduler)["tokens"] == {"a": 8}  # as a resident
    scheduler.submit(ask("b", 30), now=0.0)
    third = step(scheduler)["tokens"]
    assert third == ({"a": 5, "b": 4} if "Unified" in discipline else {"a": 5})
    finish_all(scheduler)


def test_an_arrival_that_a_limit_gives_nothing_stops_admission() -> None:
    scheduler = small(discipline=ALIGNED[0], max_num_batched_tokens=10, block_size=BLOCK)
    scheduler.submit(ask("a", 7), now=0.0)
    scheduler.submit(ask("b", 30), now=0.0)
    assert step(scheduler)["tokens"] == {"a": 7}  # the 3 that are left make no block
    assert scheduler.snapshot()["waiting"] == ["b"]
    finish_all(scheduler)


def test_what_a_limit_counts_is_shared_by_residents_and_arrivals() -> None:
    scheduler = small(discipline=f"{__name__}.FewOddTokens", max_num_batched_tokens=32)
    scheduler.submit(ask("a", [1] * 6), now=0.0)
    scheduler.submit(ask("b", [2, 3, 2, 3, 2, 3]), now=0.0)
    scheduler.submit(ask("c", [2, 2, 3, 4]), now=0.0)
    assert step(scheduler)["tokens"] == {"a": 4, "b": 1, "c": 2}
    scheduler.submit(ask("d", [4, 5]), now=0.0)
    assert step(scheduler)["tokens"] == {"a": 2, "b": 4, "d": 1}  # residents have used it up
    finish_all(scheduler)


def test_rows_are_served_in_order_until_the_budget_is_spent() -> None:
    limit = Budget.create(config(), View())
    assert limit.clip(residents(3, 4, 3, left=5)).tolist() == [3, 2, 0]
    assert limit.clip(arrival(4, left=3)).tolist() == [3]
    assert limit.clip(arrival(4, left=0)).tolist() == [0]


@DISCIPLINES
def test_the_budget_is_compared_with_what_has_to_be_computed(discipline: str) -> None:
    """Edge case 69: A mostly cached prompt longer than what is left of the budget gets in."""
    scheduler = small(
        enable_chunked_prefill=False,
        max_num_batched_tokens=16,
        max_model_len=16,
        discipline=discipline,
    )
    scheduler.submit(ask("a", PROMPT, max_tokens=1), 0.0)
    finish_all(scheduler)
    scheduler.submit(ask("b", 12, max_tokens=1), 0.0)
    scheduler.submit(ask("c", PROMPT, max_tokens=1), 0.0)
    assert step(scheduler)["tokens"] == {"b": 12, "c": 1}


def test_only_longer_rows_are_cut() -> None:
    limit = LongPrefill.create(config(long_prefill_token_threshold=4), View())
    assert limit is not None
    assert limit.clip(residents(1, 4, 5, 900)).tolist() == [1, 4, 4, 4]
    assert limit.clip(arrival(5)).tolist() == [4]


def test_a_threshold_of_zero_is_no_limit() -> None:
    assert LongPrefill.create(config(long_prefill_token_threshold=0), View()) is None


def test_the_long_prefill_threshold_holds_for_all_and_before_the_budget() -> None:
    """Edge case 34: Three prompts of 800 with a budget of 1,024 and at most 400 each."""
    scheduler = Scheduler.create(
        max_num_seqs=8,
        max_num_batched_tokens=1024,
        max_model_len=2048,
        num_blocks=400,
        block_size=16,
        long_prefill_token_threshold=400,
    )
    for name in "abc":
        scheduler.submit(ask(name, 800, max_tokens=10), 0.0)
    assert [list(tokens.values()) for tokens in tokens_of_steps(scheduler, 3)] == [
        [400, 400, 224],
        [400, 400, 224],
        [1, 1, 352],
    ]


def test_the_last_position_computed_is_the_one_whose_sample_reaches_the_limit() -> None:
    limit = ModelLength.create(config(), View())
    rows = residents(5, 5, 5, start=(2, 6, 9), limit=10)
    assert limit.clip(rows).tolist() == [5, 3, 0]
    assert limit.clip(arrival(5, start=6, limit=10)).tolist() == [3]


def test_a_row_past_its_limit_gets_nothing_rather_than_less_than_nothing() -> None:
    limit = ModelLength.create(config(), View())
    assert limit.clip(residents(3, start=(12,), limit=10)).tolist() == [0]


class LastFirst:
    """Serves residents in reverse order."""

    def share(self, slot: Index, want: I32, budget: int) -> I32:
        granted = np.zeros_like(want)
        granted[-1] = min(int(want[-1]), budget)
        return granted


def test_the_policy_shares_the_budget_among_residents() -> None:
    view = View()
    view.policy = LastFirst()
    limit = PolicyShare.create(config(), view)
    assert limit.clip(residents(3, 4, 5, left=4)).tolist() == [0, 0, 4]


def test_an_arrival_gets_what_is_left_for_it() -> None:
    view = View()
    view.policy = LastFirst()
    limit = PolicyShare.create(config(), view)
    assert limit.clip(arrival(5, left=4)).tolist() == [4]


def test_an_arrival_joins_with_its_whole_prompt_or_not_at_all() -> None:
    limit = WholePrompts.create(config(enable_chunked_prefill=False), View())
    assert limit is not None
    assert limit.clip(arrival(5, left=5)).tolist() == [5]
    assert limit.clip(arrival(5, left=4)).tolist() == [0]


def test_what_a_resident_lacks_may_be_cut() -> None:
    limit = WholePrompts.create(config(enable_chunked_prefill=False), View())
    assert limit is not None
    assert limit.clip(residents(5, 1, left=4)).tolist() == [5, 1]


def test_with_chunks_there_is_no_limit() -> None:
    assert WholePrompts.create(config(enable_chunked_prefill=True), View()) is None


def test_without_chunks_a_long_head_stops_those_behind_it() -> None:
    """Edge case 33: Head-of-line blocking is meant: the long one would otherwise never get in."""
    scheduler = small(enable_chunked_prefill=False, max_num_batched_tokens=64, num_blocks=64)
    for name, length in (("a", 40), ("long", 40), ("short", 3)):
        scheduler.submit(ask(name, length, max_tokens=2), 0.0)
    assert tokens_of_steps(scheduler, 2) == [{"a": 40}, {"a": 1, "long": 40, "short": 3}]


def clip(rows: WantedRows) -> I32:
    return WholeRows.create(config(), View()).clip(rows)


@pytest.mark.parametrize(
    ("budget", "granted"),
    [
        (10, [3, 4, 3]),
        (9, [3, 4, 0]),
        (7, [3, 4, 0]),
        (6, [3, 0, 0]),
        (2, [2, 0, 0]),
        (0, [0, 0, 0]),
    ],
)
def test_rows_are_served_whole_in_order_and_only_the_first_is_cut(
    budget: int, granted: list[int]
) -> None:
    shared = clip(residents(3, 4, 3, left=budget))
    assert shared.tolist() == granted
    assert shared.dtype == np.int32


def test_the_first_row_that_wants_anything_is_the_one_that_is_cut() -> None:
    assert clip(residents(0, 0, 5, 2, left=3)).tolist() == [0, 0, 3, 0]


def test_no_row_passes_one_that_does_not_fit() -> None:
    assert clip(residents(3, 9, 1, left=6)).tolist() == [3, 0, 0]


def test_without_rows_there_is_nothing_to_cut() -> None:
    assert clip(residents(left=0)).tolist() == []
    assert clip(residents(0, 0, left=0)).tolist() == [0, 0]


def test_rows_are_added_up_beyond_32_bits() -> None:
    big = 2**31 - 1
    assert clip(residents(big, big, big, left=big)).tolist() == [big, 0, 0]


def test_an_arrival_is_cut_only_if_it_is_the_first_of_its_step() -> None:
    assert clip(arrival(5, left=5, first=False)).tolist() == [5]
    assert clip(arrival(5, left=3, first=False)).tolist() == [0]
    assert clip(arrival(5, left=3, first=True)).tolist() == [3]

"""A list of limits holds for residents and for arrivals alike, also with limits of one's own."""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import numpy as np
import pytest

from paceline.core.arrays import I32
from paceline.core.capabilities import StepCost
from paceline.core.settings.config import Config
from paceline.sched import admission as package
from paceline.sched.admission.limits import (
    Budget,
    Limit,
    Limits,
    LimitView,
    LongPrefill,
    WholePrompts,
)
from paceline.sched.admission.rows import Used, WantedRows
from paceline.sched.disciplines.prefill_first import PrefillFirst
from paceline.sched.disciplines.unified import Unified
from tests.sched.admission.limit_support import View, arrival, config, residents
from tests.sched.support import ask, finish_all, small, step

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
        assert kind is WholePrompts  # which is about arrivals alone
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

"""What a limit is, and how a list of them clips rows."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Protocol

from paceline.core.arrays import I32, Index
from paceline.core.config import Config
from paceline.core.step_times import StepCost
from paceline.sched.items_ahead import ItemsAhead
from paceline.sched.limits.rows import Used, WantedRows
from paceline.sched.plugin_checks import is_within, wrong_counts
from paceline.sched.slots import SlotTable


class Sharing(Protocol):
    """The part of a policy that clips rows."""

    @property
    def name(self) -> str: ...

    def share(self, slot: Index, want: I32, budget: int) -> I32: ...


class LimitView(Protocol):
    """What a limit may look at."""

    @property
    def table(self) -> SlotTable: ...

    @property
    def policy(self) -> Sharing: ...

    @property
    def items(self) -> ItemsAhead: ...

    @property
    def cost(self) -> StepCost | None: ...

    @property
    def waiting(self) -> int: ...


class Limit(Protocol):
    """Clips rows. Residents come as columns, and an arrival as a column of one row, so both
    obey the same rule.

    A limit keeps no state: `clip` may be called several times for one step, also for residents
    that only might be there. What the step has used up so far is in `rows.used`.
    """

    reason = "budget"  # what an arrival waits for that gets nothing because of this limit

    @property
    def counts(self) -> bool:
        """Would `spend` count anything now?"""
        return True

    @classmethod
    @abstractmethod
    def create(cls, config: Config, view: LimitView) -> "Limit | None":
        """The limit with its settings; None if these settings limit nothing."""

    @abstractmethod
    def clip(self, rows: WantedRows) -> I32:
        """Positions that each row may have, at most `rows.want`, in a new array."""

    def spend(self, rows: WantedRows, used: Used) -> None:
        """Add what the rows use up, which compute `rows.want` positions, to `used`."""


class Limits:
    """An ordered list of limits; each clips what the ones before it have left."""

    def __init__(self, kinds: Iterable[type[Limit]], config: Config, view: LimitView) -> None:
        made = [kind.create(config, view) for kind in kinds]
        self._limits = [limit for limit in made if limit is not None]
        self._counting = [one for one in self._limits if type(one).spend is not Limit.spend]

    def __len__(self) -> int:
        return len(self._limits)

    def clip(self, rows: WantedRows) -> I32:
        """Positions that each row may have."""
        for limit in self._limits:
            clipped = limit.clip(rows)
            if clipped is rows.want:
                continue
            if not is_within(clipped, rows.want):
                wrong_counts(f"limit {type(limit).__name__}", rows, clipped)
            rows.want = clipped
        return rows.want

    def spend(self, rows: WantedRows, used: Used) -> None:
        """Add what the rows use up, which compute `rows.want` positions, to `used`."""
        for limit in self._counting:
            limit.spend(rows, used)

    @property
    def counting(self) -> bool:
        """Does any limit count what a step uses up now?"""
        return any(limit.counts for limit in self._counting)

    def reason(self, rows: WantedRows) -> str:
        """What an arrival waits for that wants `rows.want` positions and gets none."""
        for limit in self._limits:
            rows.want = limit.clip(rows)
            if not rows.want.any():
                return limit.reason
        return Limit.reason

"""Limits: how many positions each row of a step may compute."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Protocol

import numpy as np

from paceline.core.arrays import I32, Index
from paceline.core.capabilities import StepCost
from paceline.core.settings.config import Config
from paceline.sched.admission.images_ahead import ImagesAhead
from paceline.sched.admission.rows import Used, WantedRows
from paceline.sched.plugin_checks import check_share, is_within, wrong_counts
from paceline.sched.policy import Policy, within_budget
from paceline.sched.slots import SlotTable
from paceline.sched.transfers.states import States


class Sharing(Protocol):
    """The part of a policy that shares the budget."""

    @property
    def name(self) -> str: ...

    def share(self, slot: Index, want: I32, budget: int) -> I32: ...


class LimitView(Protocol):
    """The part of the scheduler's state that a limit may read."""

    @property
    def table(self) -> SlotTable: ...

    @property
    def policy(self) -> Sharing: ...

    @property
    def images(self) -> ImagesAhead: ...

    @property
    def states(self) -> States: ...

    @property
    def cost(self) -> StepCost | None: ...

    @property
    def waiting(self) -> int: ...


class Limit(Protocol):
    """Clips the positions of rows. Residents are columns of many rows and an arrival is a column of
    one, so the same code serves both.

    A limit keeps no state: `clip` may be called several times for one step, also for hypothetical
    rows. `rows.used` says how much the step has used up so far.
    """

    reason = "budget"  # why an arrival waits if this limit leaves it nothing

    @property
    def counts(self) -> bool:
        """Does `spend` count anything now?"""
        return True

    @classmethod
    @abstractmethod
    def create(cls, config: Config, view: LimitView) -> "Limit | None":
        """Create the limit; None if the settings limit nothing."""

    @abstractmethod
    def clip(self, rows: WantedRows) -> I32:
        """Positions that each row may compute, at most `rows.want`: a new array, or `rows.want`
        itself if nothing is clipped."""

    def spend(self, rows: WantedRows, used: Used) -> None:
        """Add what the rows use up, which compute `rows.want` positions, to `used`."""


class Limits:
    """An ordered list of limits; each clips the result of those before it."""

    def __init__(self, kinds: Iterable[type[Limit]], config: Config, view: LimitView) -> None:
        made = [kind.create(config, view) for kind in kinds]
        self._limits = [limit for limit in made if limit is not None]
        self._counting = [one for one in self._limits if type(one).spend is not Limit.spend]

    def __len__(self) -> int:
        return len(self._limits)

    def clip(self, rows: WantedRows) -> I32:
        """Positions that each row may compute."""
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
        """Does any limit count something in this step?"""
        return any(limit.counts for limit in self._counting)

    def reason(self, rows: WantedRows) -> str:
        """Why an arrival that wants `rows.want` positions gets none."""
        for limit in self._limits:
            rows.want = limit.clip(rows)
            if not rows.want.any():
                return limit.reason
        return Limit.reason


class Budget(Limit):
    """Serve rows in order until the budget is spent; the last one may be cut."""

    @classmethod
    def create(cls, config: Config, view: LimitView) -> "Budget":
        return cls()

    def clip(self, rows: WantedRows) -> I32:
        return within_budget(rows.want, rows.left)


class LongPrefill(Limit):
    """At most `threshold` positions per row."""

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold

    @classmethod
    def create(cls, config: Config, view: LimitView) -> "LongPrefill | None":
        threshold = config.step.long_prefill_token_threshold
        return cls(threshold) if threshold else None

    def clip(self, rows: WantedRows) -> I32:
        return np.minimum(rows.want, self._threshold)


class SnapshotEnds(Limit):
    """A row ends where the state of its sequence is to be kept."""

    def __init__(self, states: States) -> None:
        self._states = states

    @classmethod
    def create(cls, config: Config, view: LimitView) -> "SnapshotEnds | None":
        may_cut = config.step.enable_chunked_prefill and config.cache.enable_prefix_caching
        may_cut &= not config.encoder.disable_chunked_mm_input
        return cls(view.states) if may_cut and config.cache.state_blocks else None

    def clip(self, rows: WantedRows) -> I32:
        room = rows.ends(self._states) - rows.start
        return np.where(room > 0, np.minimum(rows.want, room), rows.want)


class ModelLength(Limit):
    """No row samples a token beyond the limit of its sequence."""

    @classmethod
    def create(cls, config: Config, view: LimitView) -> "ModelLength":
        return cls()

    def clip(self, rows: WantedRows) -> I32:
        return np.minimum(rows.want, np.maximum(rows.limit - 1 - rows.start, 0))


class PolicyShare(Limit):
    """The policy shares the budget among residents. An arrival gets the room that the policy
    granted."""

    def __init__(self, policy: Sharing) -> None:
        self._policy = policy
        self._is_default = type(policy).share is Policy.share

    @classmethod
    def create(cls, config: Config, view: LimitView) -> "PolicyShare":
        return cls(view.policy)

    def clip(self, rows: WantedRows) -> I32:
        if rows.arriving:
            return rows.want if rows.want[0] <= rows.left else np.minimum(rows.want, rows.left)
        granted = self._policy.share(rows.slot, rows.want, rows.left)
        if not self._is_default:
            check_share(self._policy, rows, granted)
        return granted


class WholePrompts(Limit):
    """A sequence joins with its whole prompt or not at all. Rows of residents may be cut."""

    @classmethod
    def create(cls, config: Config, view: LimitView) -> "WholePrompts | None":
        return None if config.step.enable_chunked_prefill else cls()

    def clip(self, rows: WantedRows) -> I32:
        return np.where(rows.want > rows.left, 0, rows.want) if rows.arriving else rows.want


class WholeRows(Limit):
    """Serve rows in order as long as whole rows fit; only the first row of a step may be cut."""

    @classmethod
    def create(cls, config: Config, view: LimitView) -> "WholeRows":
        return cls()

    def clip(self, rows: WantedRows) -> I32:
        want, left = rows.want, rows.left
        total = np.cumsum(want, dtype=np.int64)
        if not len(want) or total[-1] <= left:
            return want
        granted = np.where(total <= left, want, 0)
        if rows.first and not granted.any():
            first = int(np.flatnonzero(want)[0])
            granted[first] = min(int(want[first]), left)
        return granted


def covering(images: ImagesAhead, rows: WantedRows) -> list[int]:
    """Rows that may reach an image."""
    if rows.arriving:
        return [0] if rows.sequence(0).request.images and rows.want[0] else []
    if not images.any:
        return []
    return np.flatnonzero(images.is_ahead[rows.slot] & (rows.want > 0)).tolist()


def cut(images: ImagesAhead, rows: WantedRows, together: bool) -> I32:
    """Positions of each row up to the first image that it cannot have. With `together`, earlier
    rows claim images too; otherwise each row counts alone. A prompt that may not be cut gets 0."""
    some = covering(images, rows)
    if not some:
        return rows.want
    count, start, claims = rows.want.copy(), rows.start, dict(rows.used)
    for row in some:
        want, rest = int(count[row]), rows.rest_of(row)
        used = claims if together else dict(rows.used)
        reached = images.reach(rows.sequence(row), int(start[row]), want, rest, used)
        is_refused = rows.arriving and not images.cuts_prompts and reached < rest
        count[row] = 0 if is_refused else reached
    return count


class EncoderBudget(Limit):
    """A row ends before an image for which earlier rows leave no encoder budget or no room in the
    cache. An image that several rows need counts once."""

    reason = "encoder"

    def __init__(self, images: ImagesAhead) -> None:
        self._images = images

    @classmethod
    def create(cls, config: Config, view: LimitView) -> "EncoderBudget":
        return cls(view.images)

    @property
    def counts(self) -> bool:
        return self._images.any

    def clip(self, rows: WantedRows) -> I32:
        return cut(self._images, rows, together=True)

    def spend(self, rows: WantedRows, used: Used) -> None:
        start = rows.start
        for row in covering(self._images, rows):
            want = int(rows.want[row])
            self._images.reach(rows.sequence(row), int(start[row]), want, want, used)


class ReachableImages(Limit):
    """A row ends before an image for which the cache has no room now, which leaves its share of the
    token budget to other rows."""

    reason = "encoder"

    def __init__(self, images: ImagesAhead) -> None:
        self._images = images

    @classmethod
    def create(cls, config: Config, view: LimitView) -> "ReachableImages":
        return cls(view.images)

    def clip(self, rows: WantedRows) -> I32:
        return cut(self._images, rows, together=False)

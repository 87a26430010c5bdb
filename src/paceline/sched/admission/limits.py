"""Limits: how many positions of its row a sequence may compute in a step."""

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
    def images(self) -> ImagesAhead: ...

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
        """Positions that each row may have, at most `rows.want`: a new array, or `rows.want` itself
        if nothing is clipped."""

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
        for limit in self._counting:  # noqa: SIM110 - `any` costs more than the answers
            if limit.counts:
                return True
        return False

    def reason(self, rows: WantedRows) -> str:
        """What an arrival waits for that wants `rows.want` positions and gets none."""
        for limit in self._limits:
            rows.want = limit.clip(rows)
            if not rows.want.any():
                return limit.reason
        return Limit.reason


class Budget(Limit):
    """Rows are served in order until the budget is spent; the last one served may be cut."""

    @classmethod
    def create(cls, config: Config, view: LimitView) -> "Budget":
        return cls()

    def clip(self, rows: WantedRows) -> I32:
        return within_budget(rows.want, rows.left)


class LongPrefill(Limit):
    """A row has at most `threshold` positions."""

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold

    @classmethod
    def create(cls, config: Config, view: LimitView) -> "LongPrefill | None":
        threshold = config.step.long_prefill_token_threshold
        return cls(threshold) if threshold else None

    def clip(self, rows: WantedRows) -> I32:
        return np.minimum(rows.want, self._threshold)


class ModelLength(Limit):
    """No row computes a position whose sample would lie past the length of its sequence."""

    @classmethod
    def create(cls, config: Config, view: LimitView) -> "ModelLength":
        return cls()

    def clip(self, rows: WantedRows) -> I32:
        return np.minimum(rows.want, np.maximum(rows.limit - 1 - rows.start, 0))


class PolicyShare(Limit):
    """The policy shares the budget among residents. An arrival gets all that is left for it,
    which is what the policy calls its room."""

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
    """A sequence joins with its whole prompt or not at all. What a resident lacks may be cut."""

    @classmethod
    def create(cls, config: Config, view: LimitView) -> "WholePrompts | None":
        return None if config.step.enable_chunked_prefill else cls()

    def clip(self, rows: WantedRows) -> I32:
        return np.where(rows.want > rows.left, 0, rows.want) if rows.arriving else rows.want


class WholeRows(Limit):
    """Rows are served in order as long as all of a row fits; only a step's first row is cut."""

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
    """The rows that may cover an image."""
    if rows.arriving:
        return [0] if rows.sequence(0).request.images and rows.want[0] else []
    if not images.any:
        return []
    return np.flatnonzero(images.is_ahead[rows.slot] & (rows.want > 0)).tolist()


def cut(images: ImagesAhead, rows: WantedRows, together: bool) -> I32:
    """Positions of each row before an image that it cannot have, besides what the rows before it
    claim, if `together`, or else as if it were alone. A prompt that may not be cut gets none."""
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
    """Rows are served in order; one ends before an image for which the rows before it leave no
    budget or no room. An image that several rows need counts once."""

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
    """A row ends before an image for which the cache has no room now: what it would have had of the
    token budget is for other rows."""

    reason = "encoder"

    def __init__(self, images: ImagesAhead) -> None:
        self._images = images

    @classmethod
    def create(cls, config: Config, view: LimitView) -> "ReachableImages":
        return cls(view.images)

    def clip(self, rows: WantedRows) -> I32:
        return cut(self._images, rows, together=False)

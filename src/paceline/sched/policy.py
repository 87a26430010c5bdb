"""Base class of policies: which request goes first, which is preempted, how a step is shared."""

from collections.abc import Hashable, Iterable
from math import inf
from typing import NamedTuple, Protocol

import numpy as np

from paceline.core import plugins
from paceline.core.arrays import I32, Index
from paceline.core.errors import ConfigError
from paceline.core.request import Sequence
from paceline.core.settings.config import PolicyConfig
from paceline.sched.plugin_checks import is_number
from paceline.sched.service.promises import Promises
from paceline.sched.service.step_model import StepModel
from paceline.sched.slots import SlotTable


def within_budget(want: I32, budget: int) -> I32:
    """Serve rows in order until the budget is spent; the last one may be cut."""
    if int(want.sum()) <= budget:
        return want
    total = np.cumsum(want, dtype=np.int64)
    granted: I32 = np.clip(budget - (total - want), 0, want).astype(np.int32)
    return granted


class View(Protocol):
    """The part of the scheduler's state that a policy may read."""

    @property
    def table(self) -> SlotTable: ...

    @property
    def now(self) -> float: ...

    @property
    def step(self) -> int: ...

    @property
    def cuts_prompts(self) -> bool: ...

    @property
    def times(self) -> StepModel: ...

    @property
    def promises(self) -> Promises: ...

    def uncached(self, sequence: Sequence) -> int:
        """Tokens that a waiting sequence would have to compute."""
        ...

    def loss(self, slot: int) -> int:
        """Tokens that a resident would have to compute again after preemption."""
        ...


class TenantService(NamedTuple):
    """Service of a tenant that has requests running or waiting."""

    tenant: str
    weight: float
    served: float  # weighted tokens divided by the weight
    requests: int  # running and waiting, not parked


class Policy:
    """First come, first served; subclasses override what differs.

    The rank of a waiting sequence may only get worse, unless `refresh` is set: then the queue
    calls `rank` again for a few sequences in every step, in turn.
    Sequences of one flow keep their relative order; only `flow_rank` moves.
    """

    patience_s = inf  # sequences that have waited longer go first, oldest first
    refresh = False
    learns = False  # does it ask how long steps take?
    too_late = "its deadline passed in the queue"  # the error of those that are refused
    fair_share = 0.0  # service of a tenant that always had requests

    def __init__(self, config: PolicyConfig, view: View) -> None:
        self.config = config
        self.view = view

    @property
    def name(self) -> str:
        """Its name in the settings."""
        return self.config.policy

    # -- decisions ----------------------------------------------------------

    def rank(self, sequence: Sequence) -> tuple[float, ...]:
        """Order of admission within a flow: smallest rank first, then earliest submission."""
        return ()

    def victim(self) -> int:
        """The resident to preempt when blocks run out."""
        return self.pick(self.view.table.order)

    def share(self, slot: Index, want: I32, budget: int) -> I32:
        """Share the budget among residents, which are listed oldest first."""
        return within_budget(want, budget)

    # -- optional decisions -------------------------------------------------

    def room(self, sequence: Sequence, rest: int, taken: int, left: int) -> int:
        """Positions that a waiting sequence may begin with, at most `left`. It has `rest` to
        compute, and the other rows of the step have `taken`."""
        return left

    def flow(self, sequence: Sequence) -> Hashable:
        """The flow of a sequence: sequences of one flow keep their relative order."""
        return None

    def flow_rank(self, flow: Hashable) -> float:
        """Order of the flows, smallest first. While sequences wait in a flow, its rank may only get
        worse."""
        return 0.0

    def displaceable(self, sequence: Sequence, now: float) -> list[int]:
        """Residents that a waiting sequence may displace, first victim first."""
        return []

    def late(self, now: float) -> Iterable[Sequence]:
        """Waiting sequences to end because they are too late."""
        return ()

    def service(self) -> Iterable[TenantService]:
        """The service of each tenant, if the policy shares by tenant."""
        return ()

    # -- events -------------------------------------------------------------

    def joined(self, sequence: Sequence) -> None:
        """A new sequence began to wait."""

    def parked(self, sequence: Sequence) -> None:
        """A waiting sequence was set aside."""

    def woken(self, sequence: Sequence) -> None:
        """A parked sequence waits again."""

    def admitted(self, sequence: Sequence, uncached: int) -> None:
        """A sequence became resident, with `uncached` known tokens to compute."""

    def sampled(self, slot: Index, count: I32) -> None:
        """Residents sampled tokens."""

    def left(self, sequence: Sequence) -> None:
        """A sequence ended, resident or not."""

    # -- shared by all ------------------------------------------------------

    def impatient(self, sequence: Sequence) -> bool:
        """Has it been here longer than `patience_s`?"""
        return self.view.now - sequence.queued_at >= self.patience_s

    def pick(self, slots: Index) -> int:
        """The victim among `slots`, which are in admission order."""
        return self.by_loss(slots)[0]

    def by_loss(self, slots: Index) -> list[int]:
        """Victims among `slots`, first victim first."""
        newest_first: list[int] = slots[::-1].tolist()
        if self.config.victim == "newest" or len(slots) == 1:
            return newest_first
        return sorted(newest_first, key=self.view.loss)


def load(config: PolicyConfig, view: View) -> Policy:
    """Load a policy by module name in `policies`, or by the dotted path of a class."""
    kind = plugins.load("policy", config.policy, "paceline.sched.policies", Policy)
    policy = kind(config, view)
    if not (is_number(policy.patience_s) and policy.patience_s >= 0):
        raise ConfigError(
            f"policy {config.policy!r}: patience_s is {policy.patience_s!r}; "
            "it must be a number of seconds, at least 0"
        )
    return policy

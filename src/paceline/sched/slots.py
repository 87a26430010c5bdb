"""A table of the resident sequences, one row per slot."""

from collections import Counter
from enum import IntEnum

import numpy as np

from paceline.core.arrays import F32, I32, I64, Bool, Index, sparse_zeros
from paceline.core.plan import Rows
from paceline.core.request import Sequence

FIRST_ACCEPTANCE = 0.5  # before any sequence has drafted


class Idle(IntEnum):
    """Why a resident got no positions in a step."""

    BUDGET = 0
    BLOCKS = 1
    ROOM = 2
    ENCODER = 3


class SlotTable:
    """The resident sequences in columns.

    For a resident slot s, in tokens:

        computed[s] <= planned[s]     positions confirmed / handed to the runner
        known[s]                      token ids the host has seen; `tokens[s, :known[s]]`
        planned[s] >= known[s]        a sample for s is in flight
        prompt[s], limit[s]           tokens of the prompt / most tokens it can have
        bounded[s]                    does it have `max_tokens`?
        ceiling[s]                    positions that may be planned for now: the least of all
                                      caps of s, and below the limit
        given[s]                      tokens at admission: the prompt and earlier outputs
        most_drafts[s]                most drafts of a row
        acceptance[s]                 estimated chance that a draft is accepted
        drafted[s], accepted[s]       drafts computed / accepted since its admission
        misses[s], draft_at[s]        tries in a row without accepted drafts / step of the next one
        idle_steps[s], idle_at[s]     steps in which it could run and got nothing / the last one
        idle_for[s]                   the reason in that step, an `Idle`

    `epoch[s]` rises when the slot gets another sequence, `serial[s]`, `name[s]` and `child[s]`
    identify the sequence in `sequences[s]`, `handle[s]` is its handle in the front end,
    `resident[s]` says whether the slot is taken, `silent[s]` whether its tokens are reported only
    at the end. `order` lists resident slots, oldest first, `drafting` counts those that may draft,
    `silenced` those that are silent, and `adapters` those of each adapter. `needs_host` names the
    features for which the host must act on a slot between two steps. `first_acceptance` is the
    acceptance of a sequence that has not drafted yet. Of `capacity` slots those in `_vacant` are
    free and `_reserved` are kept for later. `_listed` is the used part of `_order`; after
    sequences have `_left`, `order` removes them all at once. `_flat` has all tokens, `_width` for
    each slot. `_caps` has the caps of a slot by name. Rows never move.

    Only the methods of this class write columns; any code may read them.
    """

    def __init__(self, slots: int, max_model_len: int) -> None:
        self.capacity = slots
        self.known = np.zeros(slots, np.int32)
        self.planned = np.zeros(slots, np.int32)
        self.computed = np.zeros(slots, np.int32)
        self.prompt = np.zeros(slots, np.int32)
        self.limit = np.zeros(slots, np.int32)
        self.bounded = np.zeros(slots, np.bool_)
        self.ceiling = np.zeros(slots, np.int32)
        self.given = np.zeros(slots, np.int32)
        self.most_drafts = np.zeros(slots, np.int32)
        self.acceptance = np.zeros(slots, np.float32)
        self.first_acceptance = FIRST_ACCEPTANCE
        self.drafted = np.zeros(slots, np.int64)
        self.accepted = np.zeros(slots, np.int64)
        self.misses = np.zeros(slots, np.int32)
        self.draft_at = np.zeros(slots, np.int64)
        self.idle_steps = np.zeros(slots, np.int64)
        self.idle_at = np.zeros(slots, np.int64)
        self.idle_for = np.zeros(slots, np.int8)
        self.epoch = np.zeros(slots, np.int32)
        self.serial = np.full(slots, -1, np.int64)
        self.name = np.full(slots, None, object)
        self.child = np.full(slots, -1, np.int32)
        self.handle = np.full(slots, -1, np.int64)
        self.silent = np.zeros(slots, np.bool_)
        self.resident = np.zeros(slots, np.bool_)
        self.tokens = sparse_zeros(slots, max_model_len)
        self._flat = self.tokens.reshape(-1)
        self._width = max_model_len
        self.sequences: list[Sequence | None] = [None] * slots
        self._listed = self._order = np.empty(slots, np.intp)
        self._list(self._order[:0])
        self.drafting = 0
        self.silenced = 0
        self.adapters: dict[str, int] = {}  # only those of residents
        self._reserved = 0
        self._vacant = list(range(slots - 1, -1, -1))
        self._caps: dict[int, dict[str, int]] = {}
        self.needs_host: dict[int, set[str]] = {}  # by slot, if it needs the host

    @property
    def vacant(self) -> int:
        return len(self._vacant)

    @property
    def order(self) -> Index:
        """Resident slots, oldest first."""
        if self._left:
            self._list(self._listed[self.resident[self._listed]])
        return self._listed

    def _list(self, slot: Index) -> None:
        """Replace the order by a new array: plans may hold views of the old one."""
        self._order = np.empty(self.capacity, np.intp)
        self._listed = self._order[: len(slot)]
        self._listed[:] = slot
        self._left = False

    def sequence(self, slot: int) -> Sequence:
        sequence = self.sequences[slot]
        assert sequence is not None, f"slot {slot} is vacant"
        return sequence

    # -- entering and leaving -------------------------------------------------

    def reserve(self) -> int:
        """Keep a vacant slot for a sequence that comes later."""
        self._reserved += 1
        return self._vacant.pop()

    def give_back(self, slot: int) -> None:
        """Free a reserved slot."""
        self._reserved -= 1
        self._vacant.append(slot)

    def admit(self, sequence: Sequence, computed: int, drafts: int, slot: int | None = None) -> int:
        """Put a sequence into a vacant slot, or a reserved one, the newest in `order`."""
        if slot is not None:
            self.give_back(slot)
        slot, request, residents = self._vacant.pop(), sequence.request, len(self.order)
        known = len(sequence.tokens)
        self.tokens[slot, :known] = sequence.tokens
        self.known[slot] = self.given[slot] = known
        self.planned[slot] = self.computed[slot] = computed
        self.prompt[slot] = len(request.prompt)
        self.limit[slot] = sequence.limit
        self.bounded[slot] = request.max_tokens is not None
        self.ceiling[slot] = sequence.limit - 1
        self.most_drafts[slot] = drafts
        self.acceptance[slot] = self.first_acceptance
        self.drafted[slot] = self.accepted[slot] = 0
        self.misses[slot] = self.draft_at[slot] = 0
        self.idle_steps[slot] = self.idle_at[slot] = 0
        self.serial[slot] = sequence.serial
        self.name[slot] = request.id
        self.child[slot] = sequence.child
        self.handle[slot] = request.handle + max(sequence.child, 0)
        self.resident[slot] = True
        self.sequences[slot], sequence.slot = sequence, slot
        self._order[residents] = slot  # after the end of earlier views
        self._listed = self._order[: residents + 1]
        self.drafting += drafts > 0
        if sequence.child >= 0 and request.silent:
            self.silent[slot] = True
            self.silenced += 1
        if request.adapter:
            self.adapters[request.adapter] = self.adapters.get(request.adapter, 0) + 1
        return slot

    def stand_behind(self, slot: int, other: int) -> None:
        """Move a resident right behind another in `order`."""
        order = self.order[self.order != slot]
        index = int(np.flatnonzero(order == other)[0]) + 1
        self._list(np.insert(order, index, slot))

    def cap(self, slot: int, name: str, ceiling: int) -> None:
        """Plan no position of a slot from `ceiling` on until the cap of this name is lifted or
        changed. Caps of other names stay."""
        self._caps.setdefault(slot, {})[name] = ceiling
        self.ceiling[slot] = self._lowest_cap(slot)

    def lift(self, slot: int, name: str) -> None:
        """Remove the cap of this name, if there is one."""
        self._caps.get(slot, {}).pop(name, None)
        self.ceiling[slot] = self._lowest_cap(slot)

    def _lowest_cap(self, slot: int) -> int:
        return min([int(self.limit[slot]) - 1, *self._caps.get(slot, {}).values()])

    def need_host(self, slot: int, feature: str) -> None:
        """The host must act on this slot between two steps, until `release_host`. Meanwhile no
        step is steady."""
        self.needs_host.setdefault(slot, set()).add(feature)

    def release_host(self, slot: int, feature: str) -> None:
        """A feature no longer needs the host for this slot. Needs of other features stay."""
        features = self.needs_host.get(slot, set())
        features.discard(feature)
        if not features:
            self.needs_host.pop(slot, None)

    def choose(self, slot: int, token: int) -> None:
        """Append a token that the host chose."""
        known = int(self.known[slot])
        self.tokens[slot, known] = token
        self.known[slot] = known + 1

    def rebase(self, slot: int, parent: int) -> None:
        """Copy the known tokens of another slot."""
        known = int(self.known[parent])
        self.tokens[slot, :known] = self.tokens[parent, :known]
        for column in (self.known, self.planned, self.computed):
            column[slot] = column[parent]

    def release(self, slot: int) -> Sequence:
        """Vacate a slot. Its results in flight become stale.

        The tokens of the sequence are left in place: copy them before the slot is used again.
        """
        sequence = self.sequence(slot)
        sequence.tokens = self.tokens[slot, : int(self.known[slot])]
        sequence.slot, self.sequences[slot] = -1, None
        self.drafting -= int(self.most_drafts[slot] > 0)
        self.epoch[slot] += 1
        self.serial[slot] = -1
        self.name[slot] = None
        self.resident[slot] = False
        self._caps.pop(slot, None)
        self.needs_host.pop(slot, None)
        if self.silent[slot]:
            self.silent[slot] = False
            self.silenced -= 1
        if sequence.request.adapter:
            self._leave_adapter(sequence.request.adapter)
        self._vacant.append(slot)
        self._left = True
        return sequence

    def _leave_adapter(self, adapter: str) -> None:
        self.adapters[adapter] -= 1
        if not self.adapters[adapter]:
            del self.adapters[adapter]

    def rows(self, slot: Index, start: I32, count: I32, drafts: I32) -> Rows:
        """The rows of a step that computes `count[i]` positions of `slot[i]` from `start[i]`."""
        return Rows(
            slot=slot,
            epoch=self.epoch[slot],
            serial=self.serial[slot],
            request_id=self.name[slot],
            child=self.child[slot],
            count=count,
            drafts=drafts,
            samples=start + count >= self.known[slot],
        )

    # -- counters of a step -------------------------------------------------

    def alive(self, rows: Rows) -> Bool:
        """Which rows still belong to the sequence they were planned for."""
        alive: Bool = self.epoch[rows.slot] == rows.epoch
        return alive

    def remaining(self, slot: Index) -> I32:
        """Positions each slot could compute now without drafts: the known ones left, or one."""
        planned = self.planned[slot]
        rest = np.maximum(self.known[slot] - planned, 1)
        return np.minimum(rest, self.ceiling[slot] - planned)

    def advance(self, slot: Index | int, position: I32 | int) -> None:
        self.planned[slot] = position

    def take_back(self, slot: Index) -> None:
        """Undo the planning of positions that are not confirmed."""
        self.planned[slot] = self.computed[slot]

    def invalidate(self, slot: int, position: int) -> None:
        """Count no position from `position` on as computed or planned."""
        self.planned[slot] = self.computed[slot] = position

    def idle(self, slot: Index, step: int, cause: np.ndarray) -> None:
        self.idle_steps[slot] += 1
        self.idle_at[slot] = step
        self.idle_for[slot] = cause

    def confirm(self, slot: Index, count: I32, rejected: I32) -> None:
        """Count positions as computed, and take rejected drafts off both counters."""
        self.computed[slot] += count - rejected
        self.planned[slot] -= rejected

    def verified(self, slot: Index, computed: I32, accepted: I32) -> None:
        """Count the drafts of a step."""
        self.drafted[slot] += computed
        self.accepted[slot] += accepted

    def learn(self, slot: Index, acceptance: F32, misses: I32, draft_at: I64) -> None:
        """Set the acceptance, misses and next try of each slot after a step with drafts."""
        self.acceptance[slot] = acceptance
        self.misses[slot] = misses
        self.draft_at[slot] = draft_at

    def expect(self, acceptance: float) -> None:
        """Set the acceptance of new sequences."""
        self.first_acceptance = acceptance

    def append(self, slot: Index, ids: I32, count: I32) -> None:
        """Write `count[i]` sampled ids after the known tokens of each slot."""
        known = self.known[slot]
        for column in range(ids.shape[1]):
            rows = count > column
            self.tokens[slot[rows], known[rows] + column] = ids[rows, column]
        self.known[slot] = known + count

    def append_one(self, slot: Index, ids: I32) -> None:
        """Append one token to each slot whose known positions are all computed."""
        known = self.known[slot]
        self._flat[slot * self._width + known] = ids
        self.computed[slot] = known
        self.known[slot] = known + 1

    def check(self) -> None:
        order = self.order
        assert len(set(order.tolist())) == len(order), "a slot is listed twice"
        assert set(order.tolist()) == set(np.flatnonzero(self.resident).tolist())
        assert len(order) + len(self._vacant) + self._reserved == self.capacity, "a slot is lost"
        assert np.all(self.computed[order] <= self.planned[order])
        assert np.all(self.known[order] <= self.limit[order])
        assert np.all(self.planned[order] <= self.ceiling[order])
        assert np.all(self.ceiling[order] < self.limit[order])
        assert self.silenced == int(self.silent.sum())
        assert self._caps.keys() <= set(order.tolist()), "a vacant slot has a cap"
        assert self.needs_host.keys() <= set(order.tolist()), "a vacant slot needs the host"
        assert all(self.needs_host.values()), "a slot needs the host for no feature"
        used = Counter(self.sequence(slot).request.adapter for slot in order.tolist())
        assert self.adapters == {name: count for name, count in used.items() if name}
        for slot in order.tolist():
            assert self.sequence(slot).slot == slot
            assert self.ceiling[slot] == self._lowest_cap(slot)

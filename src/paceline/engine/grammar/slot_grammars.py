"""How far the sequences in slots have come in their grammars, in columns, and their masks."""

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from paceline.core.arrays import I32, Bool, Index
from paceline.core.errors import RequestError
from paceline.structured.backend import Matcher
from paceline.structured.tracked_matcher import MatcherBatch, refusal

KEPT_BATCHES = 4
BITS = 32  # of a word of a mask
MOST_MISSES = 5  # then a slot is looked at behind 32 tokens
MOST_FORCED = 64  # tokens that are appended at once
FIRST_WORDS = 64  # most masks that allow several tokens do so here: short tokens come first
COLUMNS = ("outputs", "least", "fresh", "going", "jumps", "alone", "misses", "look_at")
ANY = -1  # a word that allows all of its tokens


@dataclass(frozen=True, slots=True, eq=False)
class GrammarState:
    """How far one sequence has come: its matcher has accepted so many tokens. `error` says why it
    cannot continue."""

    matcher: Matcher
    outputs: int = 0
    error: str = ""


class SlotGrammars:
    """The sequences that follow a grammar, by slot.

    For a slot s:

        lane[s]      the row of `bits` that has its mask; -1: s follows no grammar
        outputs[s]   tokens that its matcher has accepted
        least[s]     tokens before which it does not end, as long as the grammar allows others
        fresh[s]     is its mask that of the next token?
        going[s]     may its matcher accept more? not after an end token or an error
        jumps[s]     may tokens be appended that no step has sampled?
        alone[s]     did its latest mask that was looked at allow one token alone?
        misses[s]    looks in a row that found nothing to append, and the output at which to look
        look_at[s]   again

    `_matchers` and `_errors` are by slot too. `bits` has at most one mask for each slot, the lowest
    rows first; `_lanes` are free ones among the first `_opened`. `_batches` has matchers that
    advanced together, by their slots. `_ends` is the mask of end tokens, `_end_words` the words
    that it has bits in, and `_is_end[id]` says the same by token.
    """

    def __init__(self, words: int, eos: tuple[int, ...]) -> None:
        self.lane = np.full(1, -1, np.intp)
        self.outputs = np.zeros(1, np.int32)
        self.least = np.zeros(1, np.int32)
        self.fresh = np.zeros(1, np.bool_)
        self.going = np.zeros(1, np.bool_)
        self.jumps = np.zeros(1, np.bool_)
        self.alone = np.zeros(1, np.bool_)
        self.misses = np.zeros(1, np.int32)
        self.look_at = np.zeros(1, np.int32)
        self.bits = np.empty((0, words), np.int32)
        self._matchers: dict[int, Matcher] = {}
        self._errors: dict[int, str] = {}
        self._lanes: list[int] = []
        self._opened = 0
        self._batches: dict[bytes, MatcherBatch] = {}
        self._is_end = np.zeros(words * BITS, np.bool_)
        self._is_end[list(eos)] = True
        self._ends: I32 = np.packbits(self._is_end, bitorder="little").view(np.int32)
        self._end_words = np.flatnonzero(self._ends)

    # -- sequences come and go ------------------------------------------------

    def enter(self, slot: int, state: GrammarState, least: int, jumps: bool) -> None:
        if not self._lanes:
            heappush(self._lanes, self._opened)
            self._opened += 1
            self.reserve(self._opened)
        self.lane[slot] = heappop(self._lanes)
        self.outputs[slot], self.least[slot] = state.outputs, least
        self.fresh[slot], self.jumps[slot], self.alone[slot] = False, jumps, False
        self.misses[slot] = self.look_at[slot] = 0
        self._matchers[slot] = state.matcher
        if state.error:
            self._errors[slot] = state.error
        self.going[slot] = not (state.error or state.matcher.terminated)
        self._batches.clear()

    def leave(self, slot: int) -> GrammarState:
        state = self.state(slot)
        heappush(self._lanes, int(self.lane[slot]))
        self.lane[slot] = -1
        del self._matchers[slot]
        self._errors.pop(slot, None)
        self._batches.clear()
        return state

    def state(self, slot: int) -> GrammarState:
        error = self._errors.get(slot, "")
        return GrammarState(self._matchers[slot], int(self.outputs[slot]), error)

    @property
    def has_errors(self) -> bool:
        return bool(self._errors)

    def error(self, slot: int) -> str:
        """Why it cannot continue; empty if it can."""
        return self._errors.get(slot, "")

    def reach(self, slot: int) -> None:
        """Let columns have an entry for a slot."""
        have = len(self.lane)
        if slot >= have:
            more = max(slot + 1, 2 * have) - have
            self.lane = np.concatenate([self.lane, np.full(more, -1, np.intp)])
            for name in COLUMNS:
                column = getattr(self, name)
                setattr(self, name, np.concatenate([column, np.zeros(more, column.dtype)]))

    # -- tokens ---------------------------------------------------------------

    def usual(self, slot: Index, tokens: I32) -> Bool:
        """Which of these can advance together: no end tokens, and none after an end."""
        is_end: Bool = np.take(self._is_end, tokens, mode="clip")
        return np.logical_and(self.going[slot], np.logical_not(is_end))

    def advance_each(self, slot: Index, tokens: I32) -> None:
        """Accept one token each; see `usual`."""
        wrong = self._batch(slot).accept(tokens)
        self.outputs[slot] += 1
        self.fresh[slot] = False
        for index, error in wrong.items():
            self.outputs[slot[index]] -= 1
            self._stop(int(slot[index]), error)

    def advance(self, slot: int, tokens: list[int]) -> None:
        """Accept tokens in order, up to an end token: drafts may go on behind it."""
        matcher = self._matchers[slot]
        self.fresh[slot] = False
        for token in tokens:
            if not self.going[slot]:
                break
            try:
                if not matcher.accept(token):
                    self._stop(slot, refusal(token))
                    break
            except RequestError as error:
                self._stop(slot, str(error))
                break
            self.outputs[slot] += 1
            self.going[slot] = not matcher.terminated

    def _stop(self, slot: int, error: str) -> None:
        self._errors[slot] = error
        self.going[slot] = False

    def _batch(self, slot: Index) -> MatcherBatch:
        key = slot.tobytes()
        if key not in self._batches:
            if len(self._batches) == KEPT_BATCHES:
                self._batches.clear()
            self._batches[key] = MatcherBatch([self._matchers[one] for one in slot.tolist()])
        return self._batches[key]

    # -- tokens that no step samples ------------------------------------------

    def forced(self, slot: Index, ahead: I32) -> dict[int, int]:
        """The next token of each slot whose mask allows one alone, if others may be forced behind
        it, or if it is an end token. A slot with nothing `ahead` gains by any token.

        Most tokens that are alone have several ways behind them, and looking there takes time: it
        is done for the second one in a row. A slot with many misses is looked at now and then.
        """
        self.refresh(slot)
        due = self.outputs[slot] >= self.look_at[slot]
        slot, ahead = slot[due], ahead[due]
        lane = self.lane[slot]
        first: I32 = np.bitwise_or.reduce(self.bits[:, :FIRST_WORDS][lane], axis=1)
        few = np.flatnonzero((first & (first - 1)) == 0)  # at most one bit
        worth = self.alone[slot] | (ahead == 0)
        self.alone[slot] = False
        found: dict[int, int] = {}
        for index in few.tolist():
            one, token = int(slot[index]), only_token(self.bits[lane[index]])
            if token is None:
                self._miss(one)
                continue
            self.alone[one] = True
            if worth[index] or self._is_end[token]:
                found[one] = token
        return found

    def _miss(self, slot: int) -> None:
        self.misses[slot] = min(self.misses[slot] + 1, MOST_MISSES)
        self.look_at[slot] = self.outputs[slot] + (1 << int(self.misses[slot]))

    def jump(self, slot: int, token: int | None) -> list[int]:
        """Accept a token that is forced, and those that are forced behind it, up to an end."""
        found: list[int] = []
        while token is not None and len(found) < MOST_FORCED:
            self.advance(slot, [token])
            found.append(token)
            token = None
            if self.going[slot]:
                token = only_token(self._refill(slot))
        return found

    def jumped(self, slot: int) -> None:
        """What `jump` found counts: look for more behind it."""
        self.misses[slot] = 0

    def take_back(self, slot: int, tokens: int) -> None:
        """Forget the latest tokens."""
        self._matchers[slot].rollback(tokens)
        self.outputs[slot] -= tokens
        self._refill(slot)
        self._miss(slot)

    # -- masks ----------------------------------------------------------------

    def write_into(self, bits: I32) -> None:
        """Have masks in this memory from now on, which has one row for each slot at least."""
        self.bits = bits
        self.fresh[:] = False

    def reserve(self, masks: int) -> I32:
        """Room for so many masks; those that are there may be lost."""
        if len(self.bits) < masks:
            self.write_into(np.empty((2 * masks, self.bits.shape[1]), np.int32))
        return self.bits[:masks]

    def refresh(self, slot: Index) -> None:
        """Bring the masks of slots up to date."""
        stale = slot[~self.fresh[slot]]
        if not len(stale):
            return
        going = self.going[stale]
        together = stale if going.all() else stale[going]
        if len(together):
            lane = self.lane[together]
            for index, error in self._batch(together).fill(self.bits, lane).items():
                self._stop(int(together[index]), error)
            self._put_off_ends(together)
        for one in stale[~self.going[stale]].tolist():
            self._refill(one)
        self.fresh[stale] = True

    def _refill(self, slot: int) -> I32:
        """Bring the mask of one slot up to date."""
        row = self.bits[self.lane[slot]]
        self.fill(slot, row[None], [])
        self.fresh[slot] = True
        return row

    def _put_off_ends(self, slot: Index) -> None:
        """Take the end tokens from masks of outputs that are too short, if others are left."""
        held = slot[self.least[slot] > self.outputs[slot]]
        if not len(held):
            return
        lane = self.lane[held]
        may_end = (self.bits[lane[:, None], self._end_words] & self._ends[self._end_words]).any(1)
        for row in lane[may_end].tolist():
            self._without_ends(self.bits[row])

    def _without_ends(self, row: I32) -> None:
        others = row & ~self._ends
        if others.any():  # else the grammar is complete and allows its end alone
            row[:] = others

    def fill(self, slot: int, mask: I32, drafts: list[int]) -> int:
        """Write the masks of one slot, for the next token and behind each draft. Returns how many
        of the drafts are allowed. A slot with an error allows every token: its row fails."""
        if not self.error(slot):
            try:
                allowed = self._matchers[slot].fill_rows(mask, drafts)
            except RequestError as error:
                self._stop(slot, str(error))
            else:
                short = int(self.least[slot] - self.outputs[slot])
                for row in mask[: max(min(1 + allowed, short), 0)]:
                    self._without_ends(row)
                return allowed
        mask[:] = ANY
        return 0

    def explain(self, slot: int) -> str:
        """Why no token could be sampled, if that is the grammar's fault."""
        self.fill(slot, np.empty((1, self.bits.shape[1]), np.int32), [])
        return self.error(slot)


def only_token(row: I32) -> int | None:
    """The token of a mask that allows one alone."""
    bits = int(np.uint32(np.bitwise_or.reduce(row)))
    if not bits or bits & (bits - 1):
        return None
    words = np.flatnonzero(row)
    return BITS * int(words[0]) + bits.bit_length() - 1 if len(words) == 1 else None

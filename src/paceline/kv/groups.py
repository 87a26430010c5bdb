"""Block tables of several attention groups, some of which release blocks that nothing reads."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import repeat

import numpy as np

from paceline.core.arrays import I32, Bool, Index, sparse_zeros
from paceline.core.plan import NO_BLOCK, NOTHING_GROWN, Blocks, Grown, Pairs
from paceline.core.settings.features import AttentionGroup
from paceline.kv.hit import Hit
from paceline.kv.pool import BlockPool
from paceline.kv.tables import BlockTables, entries, leading


class GroupTables(BlockTables):
    """One table per attention group, each with one row of blocks per slot.

        table[0, s]   b0 b1 b2 b3 b4  .     full attention      passed 0, held 5
        table[1, s]    -  - w2 w3 w4  .     sliding window      passed 2, held 5

    The entries before `passed` are not read any more, and have no holder. Where a slot had blocks
    there, `table` still names them; all others are `NO_BLOCK`. The groups take blocks from one
    pool. A group that slides holds a row of a step at most beyond its window.
    """

    def __init__(
        self,
        pool: BlockPool,
        slots: int,
        blocks: int,
        block_size: int,
        kinds: tuple[AttentionGroup, ...],
        longest_row: int,
    ) -> None:
        """For `slots` of up to `blocks` entries each, in the groups that `kinds` lists. A step
        computes at most `longest_row` positions of a slot."""
        self.kinds = tuple(one for one in kinds for _ in range(one.count))
        self.groups = len(self.kinds)
        self.slides = any(one.slides for one in kinds)
        self.block_size = block_size
        self.table = sparse_zeros(self.groups * slots, blocks).reshape(self.groups, slots, blocks)
        self.held_by_group = np.zeros((self.groups, slots), np.int32)
        self.passed = np.zeros((self.groups, slots), np.int32)
        self.held = self.held_by_group[0]  # of one group, to see which slots hold any
        self._pool = pool
        self._counts = [one.count for one in kinds]
        self._distinct = kinds
        self._longest_row = longest_row

    # -- reading ------------------------------------------------------------

    def blocks(self, slot: int, first: int = 0, end: int | None = None) -> list[int]:
        """The blocks of all groups at each index, for every index that all groups have, or those
        from `first` to before `end`. They include those that were passed."""
        last = int(self.held_by_group[:, slot].min())
        last = last if end is None else min(end, last)
        blocks: list[int] = self.table[:, slot, first:last].T.ravel().tolist()
        return blocks

    def entries(self, slot: int) -> tuple[Blocks, ...]:
        return tuple(
            (NO_BLOCK,) * passed + tuple(self.table[group, slot, passed:held].tolist())
            for group, passed, held in self._spans(slot)
        )

    def _spans(self, slot: int) -> Iterator[tuple[int, int, int]]:
        """Each group, and the entries of a slot that have holders: from where to where."""
        passed, held = self.passed[:, slot].tolist(), self.held_by_group[:, slot].tolist()
        return zip(range(self.groups), passed, held, strict=True)

    def room(self, slot: Index) -> I32:
        return self.held_by_group[:, slot].min(axis=0) * self.block_size

    def short(self, slot: Index, tokens: I32) -> I32:
        """Blocks that each group needs in addition, [groups, slots]."""
        need = -(-tokens // self.block_size) - self.held_by_group[:, slot]
        return np.maximum(need, 0)

    def unaffordable(self, short: I32) -> Bool:
        return super().unaffordable(short.sum(axis=0))

    def most_blocks(self, tokens: int, width: int = 1, shared: int = 0) -> int:
        total = 0
        for kind in self.kinds:
            need = -(-tokens // self.block_size)
            if kind.slides:  # whatever position they begin at
                positions = kind.window - 1 + self._longest_row
                need = min(need, -(-(positions - 1) // self.block_size) + 1)
            alike = 0 if kind.slides else shared // self.block_size
            total += need + (width - 1) * (need - alike)
        return total

    def forked_blocks(self, start: int, tokens: int) -> int:
        first = start // self.block_size
        return sum(end - first for end in self._ends(start, tokens))

    def _ends(self, start: int, tokens: int) -> list[int]:
        """Entries of each group up to `tokens` positions, if `start` are computed. A group that
        slides takes those of one step, because others come free in every step."""
        near = min(tokens, start + self._longest_row)
        return [-(-(near if one.slides else tokens) // self.block_size) for one in self.kinds]

    def shared(self, slot: int) -> int:
        """Shared leading entries of the first group; entries that were passed count as shared."""
        low, high = int(self.passed[0, slot]), int(self.held_by_group[0, slot])
        return self._shared_in(self.table[0, slot], low, high)

    def alike(self, slot: int, other: int) -> int:
        """Leading entries that two slots share in all groups, without those that one slot has
        passed; none without a common block."""
        ends: list[int] = []
        for (group, passed, held), (_, also_passed, also_held) in zip(
            self._spans(slot), self._spans(other), strict=True
        ):
            first, table = max(passed, also_passed), self.table[group]
            rows = table[slot, first:held].tolist(), table[other, first:also_held].tolist()
            same = leading(*rows)
            ends.append(first + same if same else 0)
        return min(ends)

    def count(self, slots: list[int]) -> Counter[int]:
        return Counter(block for slot in slots for block in self._mine(slot))

    def _mine(self, slot: int) -> list[int]:
        """The blocks that a slot holds, by index."""
        spans = list(self._spans(slot))
        index = np.concatenate([np.arange(passed, held) for _, passed, held in spans])
        block = np.concatenate([self.table[group, slot, a:b] for group, a, b in spans])
        blocks: list[int] = block[np.argsort(index, kind="stable")].tolist()
        return blocks

    def partial(self, slot: int, tokens: int) -> Blocks:
        full, rest = divmod(tokens, self.block_size)
        return tuple(self.table[:, slot, full].tolist()) if rest else ()

    # -- filling and emptying -----------------------------------------------

    def missing(self, hit: Hit, tokens: int) -> int:
        """Blocks of the prefix that are not in the hit count as new ones."""
        whole = hit.tokens - hit.tokens % self.block_size
        read = sum(self._ends(hit.tokens, tokens)) - sum(self._unread(whole))
        return read - len(hit.device) + self._pool.free_among(hit.device)

    def attach(self, slot: int, hit: Hit, tokens: int) -> tuple[Blocks, ...]:
        self._pool.hold(hit.device)  # of all groups, so that `take` does not evict any
        found = hit.groups or ((),) * self.groups
        ends = self._ends(hit.tokens, tokens)
        new = iter(self._pool.take(sum(ends) - sum(map(len, found))))
        blocks = tuple(
            one + tuple(next(new) for _ in range(end - len(one)))
            for one, end in zip(found, ends, strict=True)
        )
        self.place_groups(slot, blocks)
        return blocks

    def place_groups(self, slot: int, blocks: Sequence[Blocks]) -> None:
        """Map blocks of each group into an empty slot. The caller holds them."""
        most = self.table.shape[2]
        for group, row in enumerate(blocks):
            assert self.held_by_group[group, slot] == 0, f"slot {slot} already holds blocks"
            assert len(row) <= most, f"slot {slot} has room for {most} blocks, not {len(row)}"
            self.table[group, slot, : len(row)] = row
            self.held_by_group[group, slot] = len(row)
            self.passed[group, slot] = row.count(NO_BLOCK)

    def clear(self, slot: int) -> list[int]:
        blocks = self._mine(slot)
        self.held_by_group[:, slot] = self.passed[:, slot] = 0
        return blocks

    def grow(self, slot: Index, blocks: I32) -> Grown:
        """Append `blocks[g, i]` new blocks of group g to each slot."""
        total = int(blocks.sum())
        if total == 0:
            return NOTHING_GROWN
        taken = np.array(self._pool.take(total), np.int32)
        parts = np.split(taken, np.cumsum(blocks.sum(axis=1))[:-1])
        first, *more = map(self._append, range(self.groups), repeat(slot), blocks, parts)
        return Grown(first.slot, first.index, first.block, tuple(more))

    def _append(self, group: int, slot: Index, count: I32, block: I32) -> Grown:
        owner, index = entries(slot, self.held_by_group[group, slot], count)
        self.table[group, owner, index] = block
        self.held_by_group[group, slot] += count
        return Grown(owner, index, block)

    def grow_at(self, slot: Index, start: I32) -> Grown | None:
        full = self.held_by_group[:, slot] * self.block_size == start
        return self.grow(slot, full.astype(np.int32)) if full.sum() <= self._pool.free else None

    # -- swapping -----------------------------------------------------------

    def can_resume(self, slot: int, tokens: int) -> bool:
        return all(self.passed[:, slot] <= self._unread(tokens))

    def begin_alike(self, tokens: Sequence[int]) -> bool:
        return len({tuple(self._unread(count)) for count in tokens}) == 1

    def _unread(self, tokens: int) -> list[int]:
        """Leading entries of each group that a sequence continuing at `tokens` does not read."""
        return [one.unread(tokens) // self.block_size for one in self.kinds]

    def _entries_read(self, tokens: int) -> list[tuple[int, int]]:
        """Indices and groups of the entries that a sequence continuing at `tokens` reads."""
        unread = self._unread(tokens)
        return [
            (index, group)
            for index in range(min(unread), -(-tokens // self.block_size))
            for group in range(self.groups)
            if index >= unread[group]
        ]

    def read(self, slot: int, tokens: int) -> list[int]:
        entries_read = self._entries_read(tokens)
        return [int(self.table[group, slot, index]) for index, group in entries_read]

    def index_of(self, count: int, tokens: int) -> int:
        entries_read = self._entries_read(tokens)
        whole = -(-tokens // self.block_size)
        return entries_read[count][0] if count < len(entries_read) else whole

    def whole(self, count: int, tokens: int) -> int:
        end = self.index_of(count, tokens)
        return sum(1 for index, _ in self._entries_read(tokens) if index < end)

    def growth(self, tokens: int, span: int) -> int:
        used = -(-tokens // self.block_size)
        return sum(max(end - used, 0) for end in self._ends(tokens, span))

    def place_read(self, slot: int, blocks: Sequence[int], tokens: int, span: int) -> None:
        used = -(-tokens // self.block_size)
        rows = [[NO_BLOCK] * used for _ in range(self.groups)]
        entries_read = self._entries_read(tokens)
        for (index, group), block in zip(entries_read, blocks, strict=False):
            rows[group][index] = block
        new = iter(blocks[len(entries_read) :])
        for row, end in zip(rows, self._ends(tokens, span), strict=True):
            row += [next(new) for _ in range(end - used)]
        self.place_groups(slot, [tuple(row) for row in rows])

    # -- sliding ------------------------------------------------------------

    def passing(self, slot: Index, computed: I32) -> I32:
        """Blocks of each group that a slot holds and no position from `computed[i]` on reads,
        [groups, slots]."""
        unread = [one.unread(computed) // self.block_size for one in self._distinct]
        edge = np.minimum(np.repeat(unread, self._counts, axis=0), self.held_by_group[:, slot])
        return np.maximum(edge - self.passed[:, slot], 0)

    def coming(self, slot: Index, planned: I32) -> int:
        """Blocks that become free when the positions before `planned[i]` are computed."""
        blocks = Counter(self._passed_blocks(slot, self.passing(slot, planned)))
        return sum(1 for block, count in blocks.items() if self._pool.holders(block) == count)

    def slide(self, slot: Index, computed: I32) -> None:
        """Give back the blocks that no position from `computed[i]` on reads, deepest first."""
        passing = self.passing(slot, computed)
        blocks = self._passed_blocks(slot, passing)
        self.passed[:, slot] += passing
        self._pool.drop(reversed(blocks))

    def _passed_blocks(self, slot: Index, passing: I32) -> list[int]:
        """The first `passing[g, i]` blocks that each slot holds, by group."""
        blocks: list[int] = []
        for group in np.flatnonzero(passing.any(axis=1)).tolist():
            owner, index = entries(slot, self.passed[group, slot], passing[group])
            blocks += self.table[group, owner, index].tolist()
        return blocks

    # -- forking ------------------------------------------------------------

    def fork(self, parent: int, slot: int, tokens: int) -> Pairs:
        """As in `BlockTables`. The slot shares what it reads from `tokens` on; `parent` has more as
        long as steps in flight read it."""
        full, new = tokens // self.block_size, self._pool.take(self.groups)
        self._share(parent, slot, full, np.maximum(self.passed[:, parent], self._unread(tokens)))
        self.table[:, slot, full] = new
        self.held_by_group[:, slot] = full + 1
        return self._copy_of_rest(parent, slot, tokens)

    def rebase(self, slot: int, parent: int, tokens: int) -> Pairs:
        full = tokens // self.block_size
        own = [
            block
            for group, passed, _ in self._spans(slot)
            for block in self.table[group, slot, passed:full].tolist()
        ]
        self._share(parent, slot, full, self.passed[:, parent])
        self._pool.drop(reversed(own))
        return self._copy_of_rest(parent, slot, tokens)

    def _share(self, parent: int, slot: int, full: int, passed: I32) -> None:
        """Let a slot hold the first `full` blocks of `parent`, in each group from `passed` on."""
        for group, first in enumerate(passed.tolist()):
            self._pool.hold(self.table[group, parent, first:full].tolist())
        self.table[:, slot, :full] = self.table[:, parent, :full]
        self.passed[:, slot] = passed

    def _copy_of_rest(self, parent: int, slot: int, tokens: int) -> Pairs:
        full, rest = divmod(tokens, self.block_size)
        if not rest:
            return ()
        source, target = self.table[:, parent, full].tolist(), self.table[:, slot, full].tolist()
        return tuple(zip(source, target, strict=True))

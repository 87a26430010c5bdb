"""Physical blocks: their holders, their content, and the order in which they are reused."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.core.arrays import I64, Index
from paceline.core.events import BlockRemoved, CacheEvent
from paceline.core.settings.config import FreeOrder
from paceline.kv.eviction import IdleBlocks
from paceline.kv.keys import KEY_BYTES


@dataclass(slots=True, eq=False)
class UnkeyedRun:
    """Consecutive full blocks without keys that a released sequence leaves in the pool.

    All of them are free. They are reused deepest first.
    """

    listing: "Unkeyed"
    start: bytes  # its entry in `listing`
    content: bytes  # tokens of all its blocks, including blocks reused since
    blocks: list[int]

    def lose(self, block: int) -> None:
        """Remove the deepest block, which is being reused."""
        deepest = self.blocks.pop()
        assert deepest == block, f"block {block} is reused before block {deepest} behind it"
        if not self.blocks:
            self.listing.remove(self.start, self)


class Unkeyed:
    """Residents (by slot) and runs, by the start of their first block without a key.

        start    parent key + tokens of that block, if all of them are known when it is listed
                 parent key alone, otherwise

    A lookup that reaches the end of the keyed blocks finds the blocks to key next here, so no block
    is hashed before a lookup needs it. Entries with the same start keep the order of listing.
    """

    def __init__(self) -> None:
        self._listed: dict[bytes, list[int | UnkeyedRun]] = {}

    def at(self, start: bytes) -> tuple[int | UnkeyedRun, ...]:
        """The residents and runs with this start: a copy, which later changes do not affect."""
        listed = self._listed.get(start)
        return tuple(listed) if listed else ()

    def behind(self, start: bytes) -> tuple[int | UnkeyedRun, ...]:
        """The residents and runs with this start, then those with its key alone: a copy."""
        listed = self._listed
        return (*listed.get(start, ()), *listed.get(start[:KEY_BYTES], ()))

    def add(self, start: bytes, entry: int | UnkeyedRun) -> None:
        self._listed.setdefault(start, []).append(entry)

    def remove(self, start: bytes, entry: int | UnkeyedRun) -> None:
        listed = self._listed[start]
        listed.remove(entry)
        if not listed:
            del self._listed[start]

    def replace_slot(self, start: bytes, slot: int, run: UnkeyedRun) -> None:
        """Replace a resident with the run that it leaves."""
        listed = self._listed[start]
        listed[listed.index(slot)] = run

    def clear(self) -> None:
        self._listed.clear()

    def runs(self) -> list[UnkeyedRun]:
        return [
            one for listed in self._listed.values() for one in listed if isinstance(one, UnkeyedRun)
        ]

    def slots(self) -> list[int]:
        return [one for listed in self._listed.values() for one in listed if isinstance(one, int)]


Lost = Callable[[int, bytes], None]
"""A block lost its content, and no other block has its key."""

LOT, REMEMBERED = 16, 1024  # `find` memoizes up to 1024 prefixes, each a multiple of 16 blocks


class BlockPool:
    """Reference-counted blocks. A free block keeps its content until it is taken.

    Every block is in exactly one of three states:

        held      holders > 0: block tables, fences, swapped sequences
        blank     no holder, no content; reused first, last in first out
        idle      no holder, findable by key or in a run; reused in the order of `idle`

    A freed block thus stays cached, and taking an idle block evicts its content. With
    `free_order="lru"`, used blocks without content are idle too.
    """

    def __init__(
        self,
        blocks: int,
        free_order: FreeOrder = "unsealed_first",
        events: list[CacheEvent] | None = None,
        idle: IdleBlocks | None = None,
    ) -> None:
        """Without `idle`, the block that has been idle longest is reused first."""
        self.size = blocks
        self.lost: Lost | None = None
        self._blank_first = free_order == "unsealed_first"
        self._events = events
        self._holders = [0] * blocks
        self._content: list[bytes | UnkeyedRun | None] = [None] * blocks  # a key, or its run
        self._by_key: dict[bytes, int] = {}
        self._twins: dict[bytes, list[int]] = {}  # further blocks of the same content
        self._found: dict[bytes, list[int]] = {}  # memo of `find`: whole lots, by the deepest key
        self._blank = list(range(blocks - 1, -1, -1))
        self._idle: IdleBlocks = OrderedDict[int, None]() if idle is None else idle

    @property
    def free(self) -> int:
        return len(self._blank) + len(self._idle)

    @property
    def cached(self) -> int:
        """Free blocks whose content can still be found."""
        return sum(1 for block in self._idle if self._content[block] is not None)

    def content_of(self, block: int) -> bytes | UnkeyedRun | None:
        """The key of a block, or its run."""
        return self._content[block]

    def holders(self, block: int) -> int:
        return self._holders[block]

    def kinds(self, first: int, last: int) -> I64:
        """What each block from `first` to before `last` is: 0 free without content, 1 free and
        cached, 2 held by one holder, 3 held by several."""
        held, content = self._holders[first:last], self._content
        try:
            holders = np.frombuffer(bytes(held), np.uint8)  # faster than an array of a list
        except ValueError:  # of more than 255 holders
            holders = np.array(held)
        kinds: I64 = np.minimum(holders, 2).astype(np.int64) + (holders > 0)
        idle: Index = np.flatnonzero(holders == 0)
        kinds[idle] = [content[first + block] is not None for block in idle.tolist()]
        return kinds

    def take(self, count: int) -> list[int]:
        """Take free blocks, blank ones first, and forget the content of the others."""
        free = len(self._blank) + len(self._idle)
        assert count <= free, f"cannot take {count} blocks: {free} are free"
        keep = max(len(self._blank) - count, 0)
        taken = self._blank[keep:]
        del self._blank[keep:]
        taken.reverse()
        if len(taken) < count:
            taken += self._evict(count - len(taken))
        holders = self._holders
        for block in taken:
            holders[block] = 1
        return taken

    def _evict(self, count: int) -> list[int]:
        """Take the first idle blocks in the order of reuse, and forget their content."""
        first, content = self._idle.popitem, self._content
        evicted = [first(last=False)[0] for _ in range(count)]
        for block in evicted:
            found = content[block]
            if isinstance(found, UnkeyedRun):
                content[block] = None
                found.lose(block)
            elif found is not None:
                self._forget(block, found)
        return evicted

    def hold(self, blocks: Iterable[int]) -> None:
        """Add a holder to each block. Free blocks with content become held again."""
        holders, idle = self._holders, self._idle
        for block in blocks:
            count = holders[block]
            if count == 0:
                del idle[block]
            holders[block] = count + 1

    def drop(self, blocks: Iterable[int]) -> None:
        """Remove one holder from each block. Freed ones with content become idle in this order."""
        holders, content, blank_first = self._holders, self._content, self._blank_first
        blank, idle = self._blank, self._idle
        for block in blocks:
            left = holders[block] - 1
            holders[block] = left
            if left <= 0:
                assert left == 0, f"block {block} is dropped and has no holder"
                if blank_first and content[block] is None:
                    blank.append(block)
                else:
                    idle[block] = None

    def age(self, blocks: Iterable[int]) -> None:
        """Reuse the idle ones of these blocks before all other idle blocks."""
        for block in blocks:
            if block in self._idle:
                self._idle.move_to_end(block, last=False)

    def seal(self, blocks: Sequence[int], keys: Sequence[bytes]) -> list[bytes]:
        """Make full blocks findable by key. Returns the keys that no other block has."""
        content = self._content
        assert all(map(self._holders.__getitem__, blocks)), f"one of {blocks} has no holder"
        assert not any(content[block] for block in blocks), f"one of {blocks} is sealed twice"
        return self._record(blocks, keys)

    def keep(self, run: UnkeyedRun) -> None:
        """Keep the blocks of a run as cached content although they have no keys yet."""
        content = self._content
        for block in run.blocks:
            content[block] = run

    def key_run(self, run: UnkeyedRun, keys: Sequence[bytes]) -> None:
        """Give the blocks of a run their keys, which empties the run."""
        self._record(run.blocks, keys)
        run.blocks = []

    def _record(self, blocks: Sequence[int], keys: Sequence[bytes]) -> list[bytes]:
        content, by_key = self._content, self._by_key
        new: list[bytes] = []
        for block, key in zip(blocks, keys, strict=True):
            content[block] = key
            if by_key.setdefault(key, block) == block:
                new.append(key)
            else:
                self._twins.setdefault(key, []).append(block)
        return new

    def unseal(self, block: int, key: bytes) -> bool:
        """Make a block unfindable whose content was not written. False if the block has been taken
        since, which removed the key."""
        if self._content[block] != key:
            return False
        self._forget(block, key)
        if self._blank_first and block in self._idle:
            self._idle.pop(block)
            self._blank.append(block)
        return True

    def find(self, keys: Sequence[bytes]) -> list[int]:
        """The blocks with these keys, up to the first key without a block. The keys are those of
        consecutive blocks of a sequence, in one attention group."""
        found = self._found_before(keys)
        known = len(found)
        for key in keys[known:]:
            block = self._by_key.get(key)
            if block is None:
                break
            found.append(block)
        edge = len(found) - len(found) % LOT
        if edge > known:
            if len(self._found) >= REMEMBERED:
                self._found.clear()
            self._found[keys[edge - 1]] = found[:edge]
        return found

    def _found_before(self, keys: Sequence[bytes]) -> list[int]:
        """The memoized blocks of the leading whole lots of keys; empty if there are none."""
        edge = len(keys) - len(keys) % LOT
        known = self._found.get(keys[edge - 1]) if edge else None
        return known[len(known) - edge :] if known and len(known) >= edge else []

    def block_of(self, key: bytes) -> int | None:
        """The block with this key; None: there is none."""
        return self._by_key.get(key)

    def has(self, key: bytes) -> bool:
        """Whether a block has this key."""
        return key in self._by_key

    def free_among(self, blocks: Sequence[int]) -> int:
        """How many of `blocks` have no holder. Holding these reduces `free`."""
        return list(map(self._holders.__getitem__, blocks)).count(0)

    def clear(self) -> None:
        """Forget all content. No block may be held."""
        assert self.free == self.size, f"cannot clear: {self.size - self.free} blocks are held"
        self._content = [None] * self.size
        self._by_key.clear()
        self._found.clear()
        self._twins.clear()
        if self._blank_first:
            self._blank += reversed(self._idle)
            self._idle.clear()

    def _forget(self, block: int, key: bytes) -> None:
        """Forget the content of a block that is findable by key."""
        self._content[block] = None
        self._found.clear()
        twins = self._twins.get(key)
        if self._by_key[key] != block:
            assert twins is not None
            twins.remove(block)
        elif twins:
            self._by_key[key] = twins.pop(0)
        else:
            del self._by_key[key]
            if self._events is not None and len(key) <= KEY_BYTES:  # other groups have longer keys
                self._events.append(BlockRemoved(key))
            if self.lost is not None:
                self.lost(block, key)
        if twins is not None and not twins:
            del self._twins[key]

    def check(self, held: dict[int, int]) -> None:
        """Verify every invariant. `held` is an independent count of holders by block."""
        blank = set(self._blank)
        assert len(blank) == len(self._blank), "a block is twice in the list of blank blocks"
        for block in range(self.size):
            holders, expected = self._holders[block], held.get(block, 0)
            assert holders == expected, f"block {block} has {holders} holders, not {expected}"
            states = (self._holders[block] > 0) + (block in blank) + (block in self._idle)
            assert states == 1, f"block {block} is in {states} states"
            assert block not in blank or not self._content[block], (
                f"blank block {block} has content"
            )
        named = {block: key for block, key in enumerate(self._content) if isinstance(key, bytes)}
        listed = {block: key for key, block in self._by_key.items()}
        listed |= {block: key for key, twins in self._twins.items() for block in twins}
        assert named == listed, "the keys of the blocks differ from the blocks of the keys"
        assert all(self._twins.values()), "a key has an empty list of twins"

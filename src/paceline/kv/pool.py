"""Physical blocks: how many holders each has, which may be reused, what they contain."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from paceline.core.config import FreeOrder
from paceline.core.events import BlockRemoved, CacheEvent
from paceline.kv.unkeyed import Run

LOT, REMEMBERED = 16, 1024  # `find` remembers so many beginnings, each of a multiple of a lot


class BlockPool:
    """Reference-counted blocks. A free block keeps its content until it is taken.

    Every block is in exactly one of three places:

        held      holders > 0                                    in block tables
        blank     no holder, no content; reused first, last in first out
        idle      no holder, findable by key or in a run; reused oldest first

    so freeing is caching, and taking from `idle` is eviction. With `free_order="lru"`
    blocks without content queue up in `idle` too, once they have been used.
    """

    def __init__(
        self,
        blocks: int,
        free_order: FreeOrder = "unsealed_first",
        events: list[CacheEvent] | None = None,
    ) -> None:
        self.size = blocks
        self._blank_first = free_order == "unsealed_first"
        self._events = events
        self._holders = [0] * blocks
        self._content: list[bytes | Run | None] = [None] * blocks  # a key, or what will get one
        self._by_key: dict[bytes, int] = {}
        self._twins: dict[bytes, list[int]] = {}  # further blocks of the same content
        self._found: dict[bytes, list[int]] = {}  # by `find`, in whole lots, by the deepest key
        self._blank = list(range(blocks - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def free(self) -> int:
        return len(self._blank) + len(self._idle)

    @property
    def cached(self) -> int:
        """Free blocks whose content can still be found."""
        return sum(1 for block in self._idle if self._content[block] is not None)

    def holders(self, block: int) -> int:
        return self._holders[block]

    def take(self, count: int) -> list[int]:
        """Take the free blocks that are least worth keeping, forgetting what they held."""
        assert count <= len(self._blank) + len(self._idle), f"{count} blocks are not free"
        keep = max(len(self._blank) - count, 0)
        taken = self._blank[keep:]
        del self._blank[keep:]
        taken.reverse()
        if len(taken) < count:
            oldest = self._idle.popitem
            evicted = [oldest(last=False)[0] for _ in range(count - len(taken))]
            for block in evicted:
                self._forget(block)
            taken += evicted
        holders = self._holders
        for block in taken:
            holders[block] = 1
        return taken

    def hold(self, blocks: Iterable[int]) -> None:
        """Add a holder to each, rescuing those that are free from reuse."""
        holders, idle = self._holders, self._idle
        for block in blocks:
            count = holders[block]
            if count == 0:
                del idle[block]
            holders[block] = count + 1

    def drop(self, blocks: Iterable[int]) -> None:
        """Remove one holder from each; those with content age in the order given."""
        holders, content, blank_first = self._holders, self._content, self._blank_first
        blank, idle = self._blank, self._idle
        for block in blocks:
            left = holders[block] - 1
            holders[block] = left
            if left <= 0:
                assert left == 0, f"block {block} dropped twice"
                if blank_first and content[block] is None:
                    blank.append(block)
                else:
                    idle[block] = None

    def seal(self, blocks: Sequence[int], keys: Sequence[bytes]) -> list[bytes]:
        """Record the full content of each block. Returns the keys that no block had before."""
        content = self._content
        assert all(map(self._holders.__getitem__, blocks)), f"one of {blocks} has no holder"
        assert not any(content[block] for block in blocks), f"one of {blocks} is sealed twice"
        return self._record(blocks, keys)

    def keep(self, run: Run) -> None:
        """Treat the blocks of a run as content worth keeping, though they have no keys yet."""
        content = self._content
        for block in run.blocks:
            content[block] = run

    def key_run(self, run: Run, keys: Sequence[bytes]) -> None:
        """Give the blocks of a run their keys. The run is empty then."""
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
        """Take back a seal whose content never came to be. False if the block was taken since,
        which took the seal with it."""
        if self._content[block] != key:
            return False
        self._forget(block)
        if self._blank_first and block in self._idle:
            del self._idle[block]
            self._blank.append(block)
        return True

    def find(self, keys: Sequence[bytes]) -> list[int]:
        """Blocks with the given contents, as many as there are without a gap."""
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
        """The blocks of as many keys as make whole lots, if they are remembered."""
        edge = len(keys) - len(keys) % LOT
        known = self._found.get(keys[edge - 1]) if edge else None
        return known[len(known) - edge :] if known and len(known) >= edge else []

    def has(self, key: bytes) -> bool:
        """Is there a block with this content?"""
        return key in self._by_key

    def free_among(self, blocks: Sequence[int]) -> int:
        """How many of `blocks` are on the free list, so that holding them uses it up."""
        return list(map(self._holders.__getitem__, blocks)).count(0)

    def clear(self) -> None:
        """Forget every key. Only while nothing is held."""
        assert self.free == self.size, "blocks are held"
        self._content = [None] * self.size
        self._by_key.clear()
        self._found.clear()
        self._twins.clear()
        if self._blank_first:
            self._blank += reversed(self._idle)
            self._idle.clear()

    def _forget(self, block: int) -> None:
        key = self._content[block]
        self._content[block] = None
        if not isinstance(key, bytes):
            if key is not None:
                key.lose(block)
            return
        self._found.clear()
        twins = self._twins.get(key)
        if self._by_key[key] != block:
            assert twins is not None
            twins.remove(block)
        elif twins:
            self._by_key[key] = twins.pop(0)
        else:
            del self._by_key[key]
            if self._events is not None:
                self._events.append(BlockRemoved(key))
        if twins is not None and not twins:
            del self._twins[key]

    def check(self, held: dict[int, int]) -> None:
        """Verify every invariant against an independent count of holders."""
        blank = set(self._blank)
        assert len(blank) == len(self._blank), "a block is blank twice"
        for block in range(self.size):
            assert self._holders[block] == held.get(block, 0), f"block {block} leaked"
            places = (self._holders[block] > 0) + (block in blank) + (block in self._idle)
            assert places == 1, f"block {block} is in {places} places"
            assert block not in blank or not self._content[block], f"{block} is not blank"
        named = {block: key for block, key in enumerate(self._content) if isinstance(key, bytes)}
        listed = {block: key for key, block in self._by_key.items()}
        listed |= {block: key for key, twins in self._twins.items() for block in twins}
        assert named == listed, "keys and blocks disagree"
        assert all(self._twins.values()), "an empty list of twins"

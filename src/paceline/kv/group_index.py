"""The content index of several attention groups: one hit length that suits all of them."""

from paceline.core.events import CacheEvent
from paceline.core.plan import NO_BLOCK, Blocks
from paceline.core.request import Sequence
from paceline.core.settings.config import CacheConfig
from paceline.core.settings.features import AttentionGroup
from paceline.kv.hit import MISS, Hit, Loadable, Offer, Offers
from paceline.kv.index import ContentIndex, Pending, SealResident
from paceline.kv.keys import KEY_BYTES
from paceline.kv.pool import BlockPool

GROUP_BYTES = 4  # of a group's number in a key


class GroupIndex(ContentIndex):
    """Full blocks by content key and group. A slot is sealed to the same index in all groups.

    Full blocks of residents are sealed before every lookup, so `unkeyed` and `rivals` stay empty.
    The number of a group is appended to the keys of its blocks, except for the first group with
    full attention: cache events report that one.
    """

    is_eager = True

    def __init__(
        self,
        pool: BlockPool,
        slots: int,
        config: CacheConfig,
        events: list[CacheEvent] | None = None,
    ) -> None:
        super().__init__(pool, slots, config, events)
        self._kinds = config.groups
        groups = range(len(self._kinds))
        # A search in a group with full attention is cheap, and leaves less to search in others.
        self._search_order = sorted(groups, key=lambda group: self._kinds[group].slides)
        self._suffixes = [group.to_bytes(GROUP_BYTES, "big") for group in groups]
        self._suffixes[self._search_order[0]] = b""

    # -- finding ------------------------------------------------------------

    def lookup(self, sequence: Sequence, usable: int, seal_resident: SealResident) -> Hit:
        """The longest prefix, `usable` blocks at most, of which every group has what it reads."""
        self.extend_keys(sequence)
        keys = sequence.keys
        length = self._agreed(keys, usable)
        if not length:
            return MISS
        groups = tuple(self._entries(group, keys[:length]) for group in range(len(self._kinds)))
        device = tuple(block for one in groups for block in one if block != NO_BLOCK)
        return Hit(device, length * self._block_size, groups=groups)

    def _agreed(self, keys: list[bytes], length: int, offers: Offers | None = None) -> int:
        """The longest prefix of which every group has what it reads, `length` blocks at most."""
        longer = length + 1
        while length < longer:
            longer = length
            for group in self._search_order:
                length = self._longest(group, keys, length, offers)
        return length

    def _longest(self, group: int, keys: list[bytes], length: int, offers: Offers | None) -> int:
        """The longest prefix of which a group has what it reads, `length` blocks at most."""
        kind = self._kinds[group]
        if not kind.slides:
            names = [self._name(key, group) for key in keys[:length]]
            here = len(self._pool.find(names))
            missing = here if offers is None else offers.first_absent(names)
            return length if missing is None else missing
        first_absent = self._first_absent if offers is None else offers.first_absent
        while length:
            read = range(self._unread(kind, length), length)
            missing = first_absent([self._name(keys[one], group) for one in reversed(read)])
            if missing is None:
                break
            length -= 1 + missing  # every longer prefix reads that block too
        return length

    def _first_absent(self, names: list[bytes]) -> int | None:
        has = self._pool.has
        return next((index for index, name in enumerate(names) if not has(name)), None)

    def loadable(self, sequence: Sequence, usable: int, hit: Hit, offer: Offer) -> Loadable | None:
        """Of every group, only blocks that it reads are loaded."""
        offers, keys = Offers(offer, self._pool.has), sequence.keys
        length = self._agreed(keys, usable, offers)
        if offers.must_ask_later:
            return None
        tokens = length * self._block_size
        if tokens <= hit.tokens:
            return Loadable(hit, length, length, ())
        read = self.read_keys(sequence, tokens)
        found = {name: self._pool.block_of(name) for name in read}
        device = tuple(block for block in found.values() if block is not None)
        absent = tuple(name for name, block in found.items() if block is None)
        first = keys.index(absent[0][:KEY_BYTES])
        return Loadable(Hit(device, tokens), length, first, absent)

    def _entries(self, group: int, keys: list[bytes]) -> Blocks:
        """The blocks of a group for a prefix of which it has what it reads."""
        unread = self._unread(self._kinds[group], len(keys))
        names = [self._name(key, group) for key in keys[unread:]]
        return (NO_BLOCK,) * unread + tuple(self._pool.find(names))

    def _name(self, key: bytes, group: int) -> bytes:
        return key + self._suffixes[group]

    def _unread(self, kind: AttentionGroup, blocks: int) -> int:
        """Leading blocks that a sequence continuing after `blocks` blocks does not read."""
        return kind.unread(blocks * self._block_size) // self._block_size

    # -- slots --------------------------------------------------------------

    def enter(self, slot: int, sequence: Sequence, sealed: int) -> None:
        if self.enabled:
            self.sealed[slot] = sealed

    def unlist(self, slot: int) -> None:
        """Nothing is listed."""

    def leave(self, slot: int, sequence: Sequence, full: list[int]) -> None:
        """Empty a slot, whose blocks have been sealed before."""
        self.sealed[slot] = 0
        self.epoch[slot] += 1

    # -- sealing ------------------------------------------------------------

    def named(self, sequence: Sequence, first: int, blocks: list[int]) -> list[tuple[int, bytes]]:
        """Blocks with their keys. `blocks` has one block of each group for every index from
        `first` on."""
        keys = sequence.keys[first : first + len(blocks) // len(self._kinds)]
        every = [name for key in keys for name in self.names(key)]
        return [pair for pair in zip(blocks, every, strict=True) if pair[0] != NO_BLOCK]

    def full_blocks(
        self, sequence: Sequence, entries: tuple[Blocks, ...], count: int
    ) -> list[tuple[bytes, int]]:
        """Blocks that were passed are among them, if they can still be found."""
        unwritten = {block for one in self._pending for block in one.blocks}
        found: list[tuple[bytes, int]] = []
        for index, key in enumerate(sequence.keys[:count]):
            for name, own in zip(self.names(key), entries, strict=True):
                block: int | None = own[index] if index < len(own) else NO_BLOCK
                if block == NO_BLOCK:
                    block = self._pool.block_of(name)
                    block = None if block in unwritten else block
                if block is not None:
                    found.append((name, block))
        return found

    def names(self, key: bytes) -> list[bytes]:
        return [self._name(key[:KEY_BYTES], group) for group in range(len(self._kinds))]

    def read_keys(self, sequence: Sequence, tokens: int) -> list[bytes]:
        unread = [kind.unread(tokens) // self._block_size for kind in self._kinds]
        return [
            name
            for index, key in enumerate(sequence.keys[: tokens // self._block_size])
            for name, first in zip(self.names(key), unread, strict=True)
            if index >= first
        ]

    def seal(self, slot: int, sequence: Sequence, blocks: list[int], step: int | None) -> None:
        """Make the next full blocks of all groups findable; pending until `step` is committed."""
        if not blocks:
            return
        first = self.sealed[slot]
        named = self.named(sequence, first, blocks)
        held, keys = [block for block, _ in named], [key for _, key in named]
        new = {*self._pool.seal(held, keys)}
        self.sealed[slot] = end = first + len(blocks) // len(self._kinds)
        if self.events is not None:
            stored = [index for index in range(first, end) if sequence.keys[index] in new]
            self.events += [self._stored(sequence, index) for index in stored]
        if step is not None:
            self._pending.append(Pending(step, slot, self.epoch[slot], held, keys))

    def adopt(self, content: Sequence, keys: list[bytes], blocks: list[int]) -> None:
        new = {*self._pool.seal(blocks, keys)}
        if self.events is not None:
            stored = [index for index, key in enumerate(content.keys) if key in new]
            self.events += [self._stored(content, index) for index in stored]

    def check(self, occupied: list[int]) -> None:
        assert not self.unkeyed.slots(), "a slot is listed"
        assert not self.unkeyed.runs(), "a run has no keys"

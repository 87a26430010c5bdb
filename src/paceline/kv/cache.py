"""The KV cache as the scheduler uses it: block tables, content index, pools and fences."""

from collections import Counter
from dataclasses import replace
from itertools import takewhile

from paceline.core.events import AllBlocksCleared, CacheEvent
from paceline.core.plan import Blocks, Pairs
from paceline.core.request import Sequence
from paceline.core.settings.config import CacheConfig
from paceline.core.settings.features import FULL_ATTENTION
from paceline.kv import eviction
from paceline.kv.eviction import Clock, StoppedClock
from paceline.kv.fence import Fence, Fences, StepTicket
from paceline.kv.group_index import GroupIndex
from paceline.kv.groups import GroupTables
from paceline.kv.hit import MISS, Find, Hit, Loadable, Offer
from paceline.kv.index import ContentIndex, SealResident
from paceline.kv.pool import BlockPool
from paceline.kv.snapshots import SnapshotIndex
from paceline.kv.tables import BlockTables


def seal_nothing(slot: int) -> bool:
    """Seal no further block: the lookup finds sealed blocks only."""
    return False


class KVCache:
    """Operations that involve several of its parts. All others are methods of one part:

    pool      device blocks: holders, free order, content
    host      host blocks, likewise; none without `swap_space`
    tables    blocks by slot
    index     content by key
    fences    blocks that a step or a transfer copies
    snapshots states by content; None if the model keeps none, or without prefix caching
    eviction  which cached device block is reused first
    """

    def __init__(
        self,
        config: CacheConfig,
        slots: int,
        max_model_len: int,
        host_blocks: int = 0,
        longest_row: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        """A step computes at most `longest_row` positions of a slot; None: `max_model_len`."""
        self.block_size = size = config.block_size
        self.state_blocks = config.state_blocks
        self.events: list[CacheEvent] | None = [] if config.enable_kv_cache_events else None
        self.eviction = eviction.load(config, StoppedClock() if clock is None else clock)
        idle = self.eviction.idle
        self.pool = BlockPool(config.num_blocks, config.free_order, self.events, idle)
        self.host = BlockPool(host_blocks)
        blocks, kinds = self.blocks_for(max_model_len), config.attention_groups
        self.tables: BlockTables
        self.index: ContentIndex
        if kinds == FULL_ATTENTION:
            self.tables = BlockTables(self.pool, slots, blocks, size)
            self.index = ContentIndex(self.pool, slots, config, self.events)
        else:
            row = longest_row or max_model_len
            self.tables = GroupTables(self.pool, slots, blocks, size, kinds, row)
            self.index = GroupIndex(self.pool, slots, config, self.events)
        self.fences = Fences(self.pool, self.host)
        self.snapshots: SnapshotIndex | None = None
        if config.state_blocks and config.enable_prefix_caching:
            self.snapshots = SnapshotIndex(self.pool, self.index.keys, config.state_blocks)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    # -- finding ------------------------------------------------------------

    def lookup(
        self,
        sequence: Sequence,
        seal_resident: SealResident = seal_nothing,
        most: int | None = None,
    ) -> Hit:
        """The longest cached prefix, of at most `most` tokens, that leaves at least the last known
        token to compute: blocks on the device, followed by blocks on the host. With several
        attention groups or with states, the host is not searched."""
        hit = self.lookup_device(sequence, seal_resident, most)
        if not self.host.size or not self.index.enabled or self.index.is_eager:
            return hit
        if self.state_blocks:  # a hit ends at a snapshot, and there is none on the host
            return hit
        host = self._find_on_host(sequence, len(hit.device))
        return Hit(hit.device, hit.tokens + len(host) * self.block_size, host) if host else hit

    def lookup_device(
        self,
        sequence: Sequence,
        seal_resident: SealResident = seal_nothing,
        most: int | None = None,
    ) -> Hit:
        """The device part of `lookup`, which needs no copy."""
        if not self.index.enabled:
            return MISS
        tokens = len(sequence.tokens) - 1
        if most is not None:
            tokens = min(tokens, most)
        hit = self.index.lookup(sequence, tokens // self.block_size, seal_resident)
        if self.snapshots is None:
            return hit

        def shorter(blocks: int) -> Hit:
            return self.index.lookup(sequence, blocks, seal_resident)

        return self.snapshots.limit(sequence, hit, tokens, shorter)

    def loadable(
        self, sequence: Sequence, tokens: int, hit: Hit, offer: Offer, find: Find
    ) -> Loadable | None:
        """What a connector offers of the first `tokens` positions, beyond the device part of a hit;
        None: it must be asked later. All keys have been computed."""
        usable = tokens // self.block_size
        if self.snapshots is None:
            return self.index.loadable(sequence, usable, hit, offer)
        found = self._loadable_kv(sequence, usable, offer)
        if found is None:
            return None
        nothing = Loadable(hit, 0, 0, ())
        most = min((found.blocks + 1) * self.block_size - 1, tokens)
        places = self.snapshots.sought(sequence, most, hit.tokens)
        names = [place.names(1)[0] for place in places]
        at = find(names) if names else 0
        if at is None or at == len(names):
            return at if at is None else nothing
        place = places[at]
        state = place.names(self.snapshots.state_blocks(place, self.tables.groups))
        number, full = offer(state, 0), place.tokens // self.block_size
        found = None if number is None else self._loadable_kv(sequence, full, offer)
        if found is None or number != len(state) or found.blocks != full:
            return None if found is None else nothing
        return replace(found, place=place, state=state)

    def _loadable_kv(self, sequence: Sequence, usable: int, offer: Offer) -> Loadable | None:
        """What is loadable without states; all blocks of the prefix count, on the device too."""
        hit = self.index.lookup(sequence, usable, seal_nothing)
        if hit.tokens == usable * self.block_size:
            return Loadable(hit, usable, usable, ())
        return self.index.loadable(sequence, usable, hit, offer)

    def adopt(self, load: Loadable, content: Sequence, blocks: Blocks) -> None:
        """Make the first blocks of a load findable that were filled, and its state if all were. The
        caller holds them."""
        keys = load.keys[: len(blocks)]
        if keys:
            self.index.adopt(content, [*keys], [*blocks[: len(keys)]])
        if self.snapshots is not None and load.place is not None:
            state = blocks[len(load.keys) :]
            if len(state) == len(load.state):
                self.snapshots.adopt(load.place, state)

    def find_read(self, sequence: Sequence, tokens: int) -> Blocks:
        """The full blocks that a sequence continuing at `tokens` reads, by index, up to the first
        that is not on the device."""
        if self.index.is_eager:
            found: list[int] = []
            for key in self.index.read_keys(sequence, tokens):
                if (block := self.pool.block_of(key)) is None:
                    break
                found.append(block)
            return tuple(found)
        return self.lookup_device(sequence).device[: tokens // self.block_size]

    def _find_on_host(self, sequence: Sequence, first: int) -> tuple[int, ...]:
        """The host blocks that continue a sequence from its block `first`.

        A block whose copy to the host is not confirmed ends the search: the runner may make that
        copy at any time until the step is committed.
        """
        found: list[int] = []
        keys, usable = sequence.keys, self.usable(sequence)
        while (known := first + len(found)) < usable:
            if known == len(keys):
                self.index.extend_keys_by_one(sequence)
            end = min(len(keys), usable)
            found += self.host.find(keys[known:end])
            if first + len(found) < end:
                break
        if not found:
            return ()
        provisional = self.fences.provisional
        return tuple(takewhile(lambda block: block not in provisional, found))

    def on_device(self, hit: Hit) -> int:
        """Leading blocks of a hit that need no copy."""
        return hit.tokens // self.block_size - len(hit.host)

    def usable(self, sequence: Sequence) -> int:
        """Most blocks of a hit."""
        return (len(sequence.tokens) - 1) // self.block_size

    def asked(self, sequence: Sequence, found: Hit) -> None:
        """Let the order of eviction know of a new request, and of what it finds now."""
        self.index.extend_keys(sequence)
        self.eviction.asked(sequence, found.device)

    # -- slots --------------------------------------------------------------

    def attach(self, slot: int, sequence: Sequence, hit: Hit, tokens: int) -> tuple[Blocks, ...]:
        """Give an empty slot the device blocks of `hit` and new ones up to `tokens`. If the hit
        has a host part, `load` must follow. Returns its entries, for each attention group."""
        blocks = self.tables.attach(slot, hit, tokens)
        self.index.enter(slot, sequence, self.on_device(hit))
        return blocks

    def hold_snapshot(self, sequence: Sequence, hit: Hit, step: int) -> None:
        """Fence the snapshot of a hit until `step` has loaded it. Do this before `attach`, which
        could evict it."""
        if self.snapshots is not None and hit.snapshot is not None:
            blocks, serials = hit.snapshot.all_blocks, (sequence.serial,)
            self.fences.add(Fence(StepTicket(step), blocks, arriving=serials))
            self.snapshots.used(hit.snapshot)
            self.eviction.used(sequence, blocks)

    def missing(self, hit: Hit, tokens: int) -> int:
        """Free blocks that `attach` uses, and `hold_snapshot` before it."""
        held = 0 if hit.snapshot is None else self.pool.free_among(hit.snapshot.all_blocks)
        return held + self.tables.missing(hit, tokens)

    def load(self, slot: int, sequence: Sequence, hit: Hit, step: int) -> Pairs:
        """Load the host part of a hit into the blocks of a slot, in `step`. Returns the copies.

        Both ends are fenced until the step has run. The blocks are findable at once, with pending
        seals, because the step loads them before it computes.
        """
        moves = hit.loads(self.tables.blocks(slot))
        device = tuple(block for _, block in moves)
        self.seal(slot, sequence, hit.tokens, step)
        self.fences.add(Fence(StepTicket(step), device, hit.host, arriving=(sequence.serial,)))
        return moves

    def seal(self, slot: int, sequence: Sequence, tokens: int, step: int | None) -> None:
        """Seal the full blocks of the first `tokens` positions; pending until `step` commits."""
        first, end = self.index.sealed[slot], min(tokens // self.block_size, len(sequence.keys))
        if end > first and self.index.enabled:
            self.index.seal(slot, sequence, self.tables.blocks(slot, first, end), step)

    def unseal(self, slot: int, sequence: Sequence, first: int) -> dict[int, bytes]:
        """Make the blocks of a slot unfindable from block `first` on. Returns those that were
        findable and the keys they had."""
        blocks = self.tables.blocks(slot, first, self.index.sealed[slot])
        named = self.index.named(sequence, first, blocks)
        for block, key in reversed(named):
            self.pool.unseal(block, key)
        self.index.retract((slot, self.index.epoch[slot]))  # while the blocks are still its own
        return dict(named)

    def fork(self, parent: int, slot: int, sequence: Sequence, tokens: int) -> Pairs:
        """Give an empty slot the first `tokens` positions of `parent` and room for one more.
        Returns the copies to make."""
        copies = self.tables.fork(parent, slot, tokens)
        self.index.enter(slot, sequence, tokens // self.block_size)
        return copies

    def rebase(self, slot: int, sequence: Sequence, parent: int, tokens: int) -> Pairs:
        """Replace the first `tokens` positions of a slot with those of `parent`. Returns the copies
        to make.

        The full blocks of `parent` must be sealed, the slot must be unlisted, and `sequence` must
        have the keys of the parent.
        """
        copies = self.tables.rebase(slot, parent, tokens)
        self.index.enter(slot, sequence, self.index.sealed[parent])
        return copies

    def release(self, slot: int, sequence: Sequence, tokens: int = 0) -> None:
        """Drop all blocks of a slot, deepest first, so that shared prefixes are reused last.

        The full blocks of the first `tokens` positions stay findable.
        """
        blocks = self.tables.clear(slot)
        self.index.leave(slot, sequence, blocks[: tokens // self.block_size])
        if self.eviction.watches:
            self.eviction.left(sequence, self._with_content(blocks))
        self.pool.drop(reversed(blocks))

    def _with_content(self, blocks: list[int]) -> list[int]:
        """The blocks of a slot that has been left whose content can be found, without those that a
        snapshot has taken over."""
        content_of, snapshots = self.pool.content_of, self.snapshots
        found = [one for one in blocks if content_of(one) is not None]
        if snapshots is None:
            return found
        return [one for one in found if not snapshots.has_block(one)]

    # -- steps --------------------------------------------------------------

    def confirm(self, step: int) -> bool:
        """The device has run `step`. Returns whether any fence was lifted."""
        self.index.confirm(step)
        if self.snapshots is not None:
            self.snapshots.confirm(step)
        return self.fences.confirm(step)

    def reset(self) -> bool:
        """Forget all content on the device and on the host. False if a block is held."""
        if self.pool.free < self.pool.size or self.host.free < self.host.size:
            return False
        self.pool.clear()
        self.host.clear()
        self.index.clear()
        if self.snapshots is not None:
            self.snapshots.clear()
        if self.events is not None:
            self.events.append(AllBlocksCleared())
        return True

    def taken_events(self) -> list[CacheEvent]:
        """The events since the previous call."""
        events = self.events or []
        taken = list(events)
        events.clear()
        return taken

    def check(self) -> None:
        """Verify every invariant of the device blocks."""
        occupied = self.tables.occupied()
        held = self.tables.count(occupied)
        held.update(Counter(self.fences.device_blocks()))
        self.pool.check(held)
        self.index.check(occupied)
        if self.snapshots is not None:
            self.snapshots.check()
        self.eviction.check()
        for slot in occupied:
            assert self.index.sealed[slot] <= self.tables.held[slot]

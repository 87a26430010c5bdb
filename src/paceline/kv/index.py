"""The content index: finds blocks by the tokens they hold."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from paceline.core.events import BlockStored, CacheEvent, Medium
from paceline.core.plan import Blocks
from paceline.core.request import Sequence
from paceline.core.settings.config import CacheConfig
from paceline.kv.hit import MISS, Hit, Loadable, Offer
from paceline.kv.keys import KEY_BYTES, Keys, images_within
from paceline.kv.pool import BlockPool, Unkeyed, UnkeyedRun

SealResident = Callable[[int], bool]
"""Seals the blocks that the resident of a slot has filled. Returns whether there were any."""


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """Seals of blocks that a step in flight fills, for the resident of a slot and epoch."""

    step: int
    slot: int
    epoch: int
    blocks: list[int]
    keys: list[bytes]


class ContentIndex:
    """Full blocks by content key, and by slot how many blocks have their key.

        blocks of slot s    b0 b1 b2 b3 b4      sealed[s] = 3: the first three are findable by key
                            -------- ~~

    A full block is sealed when a lookup may need its content; `unkeyed` lists the full blocks that
    are not sealed. A block may be sealed as soon as the step that fills it is planned, because the
    device runs steps in order. Until that step is committed the seal is pending, and `retract`
    removes pending seals if the step fails.

    `rivals` are slots that compute content which another slot computes too. Lookups return the
    block that was filled first, so the blocks of rivals are sealed as they fill.
    """

    is_eager = False  # must the full blocks of residents be sealed before a lookup?

    def __init__(
        self,
        pool: BlockPool,
        slots: int,
        config: CacheConfig,
        events: list[CacheEvent] | None = None,
    ) -> None:
        self.enabled = config.enable_prefix_caching
        self.events = events
        self.keys = Keys(config.block_size, config.model_fingerprint)
        self.sealed = [0] * slots
        self.epoch = [0] * slots  # rises when a slot changes hands, as in `SlotTable`
        self.unkeyed = Unkeyed()
        self.rivals: set[int] = set()
        self._pool = pool
        self._block_size = config.block_size
        self._start = [b""] * slots  # the entry of each slot in `unkeyed`
        self._pending: deque[Pending] = deque()  # by step

    # -- keys ---------------------------------------------------------------

    def extend_keys(self, sequence: Sequence) -> None:
        """Compute the key of every full block of a sequence."""
        if self.enabled:
            self.keys.extend(sequence.keys, sequence.request, sequence.tokens)

    def extend_keys_by_one(self, sequence: Sequence) -> None:
        """Compute the next key of a sequence, and the following ones that need no hashing."""
        self.keys.further(sequence.keys, sequence.request, sequence.tokens)

    def tail(self, slot: int, sequence: Sequence) -> bytes:
        """The key that the first unsealed block of a slot chains to."""
        return self.keys.parent(sequence.keys, sequence.request, self.sealed[slot])

    def _start_of(self, sequence: Sequence, block: int) -> bytes:
        """The start of a block of a sequence; see `Unkeyed`."""
        return self.keys.start(sequence.keys, sequence.request, sequence.tokens, block)

    # -- finding ------------------------------------------------------------

    def lookup(self, sequence: Sequence, usable: int, seal_resident: SealResident) -> Hit:
        """The longest prefix that has blocks, `usable` at most."""
        found = self.find(sequence, usable, seal_resident)
        return Hit(tuple(found), len(found) * self._block_size) if found else MISS

    def find(self, sequence: Sequence, usable: int, seal_resident: SealResident) -> list[int]:
        """The blocks that hold the beginning of a sequence, `usable` at most."""
        found: list[int] = []
        keys = sequence.keys
        while len(found) < usable:
            if len(found) == len(keys):
                self.extend_keys_by_one(sequence)
            end = min(len(keys), usable)
            found += self._pool.find(keys[len(found) : end])
            if len(found) < end and not self._key_what_follows(sequence, len(found), seal_resident):
                break
        return found

    def loadable(self, sequence: Sequence, usable: int, hit: Hit, offer: Offer) -> Loadable | None:
        """What a connector offers for a prefix of at most `usable` blocks, with a device part that
        `hit` names; None: it must be asked later. All keys have been computed."""
        first = len(hit.device)
        number = offer(sequence.keys[:usable], first)
        if number is None:
            return None
        end = first + number if number > len(hit.host) else first  # a step brings those of the host
        return Loadable(hit, end, first, tuple(sequence.keys[first:end]))

    def _key_what_follows(
        self, sequence: Sequence, found: int, seal_resident: SealResident
    ) -> bool:
        """Key the blocks that may continue a sequence after `found` blocks. Returns whether there
        were any."""
        keyed, start = False, self._start_of(sequence, found)
        for entry in self.unkeyed.behind(start):
            if not isinstance(entry, UnkeyedRun):
                keyed |= seal_resident(entry)
            elif keys := self._key_run(entry):
                keyed = True
                rest = sequence.tokens[found * self._block_size :].tobytes()
                is_same = rest.startswith(entry.content[: len(keys) * self.keys.width])
                if is_same and not sequence.request.images:
                    sequence.keys[found:] = keys  # they need not be hashed again
        return keyed

    def _key_run(self, run: UnkeyedRun) -> list[bytes]:
        """Key the blocks of a run and return the keys. Empty if the run has been keyed before."""
        if not run.blocks:
            return []
        parent = run.start[:KEY_BYTES]
        content = run.content[: len(run.blocks) * self.keys.width]
        keys = self.keys.chain(parent, content)
        self.unkeyed.remove(run.start, run)
        self._pool.key_run(run, keys)
        self._key_equals(parent, keys, content)
        return keys

    def _key_equals(self, parent: bytes, keys: list[bytes], content: bytes) -> None:
        """Key the runs whose first unkeyed block equals one of these, and make residents like that
        rivals. Otherwise a lookup would pass that block and miss the blocks behind it."""
        starts = range(0, len(content), self.keys.width)
        for before, first in zip((parent, *keys), starts, strict=False):
            self.rivals.update(self._alike(before + content[first : first + self.keys.width]))

    def _alike(self, start: bytes) -> list[int]:
        """Key the runs with this start, and return the residents that have it."""
        slots: list[int] = []
        for entry in self.unkeyed.at(start):
            if isinstance(entry, UnkeyedRun):
                self._key_run(entry)
            else:
                slots.append(entry)
        return slots

    # -- slots --------------------------------------------------------------

    def enter(self, slot: int, sequence: Sequence, sealed: int) -> None:
        """List the blocks of a sequence that takes a slot. The first `sealed` are sealed."""
        if self.enabled:
            self.sealed[slot] = sealed
            self._list(slot, sequence)

    def unlist(self, slot: int) -> None:
        """Make the unsealed blocks of a slot unfindable until `enter` lists them again."""
        if self.enabled:
            self.unkeyed.remove(self._start[slot], slot)

    def _list(self, slot: int, sequence: Sequence) -> None:
        """List the unsealed blocks of a slot. Lookups return the block that was filled first, so
        slots that fill equal blocks are rivals, which do not wait for a lookup to get keys."""
        self._start[slot] = start = self._start_of(sequence, self.sealed[slot])
        if len(start) > KEY_BYTES:
            self._watch(slot, sequence, start)
        self.unkeyed.add(start, slot)

    def _watch(self, slot: int, sequence: Sequence, start: bytes) -> None:
        """Make rivals of a slot and others with the same start."""
        if others := self._alike(start):
            self.rivals.update(others, [slot])
        if len(sequence.keys) == self.sealed[slot]:
            self.extend_keys_by_one(sequence)
        if self._pool.has(sequence.keys[self.sealed[slot]]):
            self.rivals.add(slot)

    def leave(self, slot: int, sequence: Sequence, full: list[int]) -> None:
        """Empty a slot. The blocks in `full` stay findable until they are reused."""
        if self.enabled:
            self._leave_run(slot, sequence, full)
            self.rivals.discard(slot)
        self.sealed[slot] = 0
        self.epoch[slot] += 1

    def _leave_run(self, slot: int, sequence: Sequence, full: list[int]) -> None:
        """Turn the unkeyed blocks in `full` into a run.

        They are sealed instead if cache events are recorded, or if keys depend on images.
        """
        if self.events is not None or sequence.request.images:
            self.extend_keys(sequence)
            self.seal(slot, sequence, full[self.sealed[slot] : len(sequence.keys)], step=None)
        first, listed = self.sealed[slot], self._start[slot]
        if len(full) <= first:
            self.unkeyed.remove(listed, slot)
            return
        start = listed if len(listed) > KEY_BYTES else self._start_of(sequence, first)
        size = self._block_size
        content = sequence.tokens[first * size : len(full) * size].tobytes()
        run = UnkeyedRun(self.unkeyed, start, content, full[first:])
        if start == listed:
            self.unkeyed.replace_slot(start, slot, run)
        else:
            self.unkeyed.remove(listed, slot)
            self.unkeyed.add(start, run)
        self._pool.keep(run)

    # -- sealing ------------------------------------------------------------

    def named(self, sequence: Sequence, first: int, blocks: list[int]) -> list[tuple[int, bytes]]:
        """The blocks of a sequence from block `first` on, with their keys."""
        return list(zip(blocks, sequence.keys[first : first + len(blocks)], strict=True))

    def full_blocks(
        self, sequence: Sequence, entries: tuple[Blocks, ...], count: int
    ) -> list[tuple[bytes, int]]:
        """Keys and blocks of the first `count` indices of a sequence whose entries are given, by
        index; of several attention groups, those that the device has. All are sealed."""
        return list(zip(sequence.keys[:count], entries[0][:count], strict=True))

    def names(self, key: bytes) -> list[bytes]:
        """The keys that blocks of this content may have, in any attention group."""
        return [key]

    def read_keys(self, sequence: Sequence, tokens: int) -> list[bytes]:
        """The keys of the full blocks that a sequence continuing at `tokens` reads."""
        return sequence.keys[: tokens // self._block_size]

    def seal(self, slot: int, sequence: Sequence, blocks: list[int], step: int | None) -> None:
        """Make the next full blocks of a slot findable; pending until `step` is committed."""
        if not blocks:
            return
        first = self.sealed[slot]
        end = first + len(blocks)
        keys = sequence.keys[first:end]
        new = self._pool.seal(blocks, keys)
        if self.events is not None:
            self.events += [self._stored(sequence, first + keys.index(key)) for key in new]
        parent = self.tail(slot, sequence)
        content = sequence.tokens[first * self._block_size : end * self._block_size].tobytes()
        self.unlist(slot)
        self.sealed[slot] = end
        self._key_equals(parent, keys, content)
        self._list(slot, sequence)
        if step is not None:
            self._pending.append(Pending(step, slot, self.epoch[slot], blocks, keys))

    def adopt(self, content: Sequence, keys: list[bytes], blocks: list[int]) -> None:
        """Make blocks of `content` findable that were filled outside of any slot. `keys` name them,
        by index. The caller holds them."""
        new = self._pool.seal(blocks, keys)
        if self.events is not None:
            self.events += [self._stored(content, content.keys.index(key)) for key in new]
        size, first = self._block_size, content.keys.index(keys[0])
        tokens = content.tokens[first * size : (first + len(blocks)) * size]
        parent = self.keys.parent(content.keys, content.request, first)
        self._key_equals(parent, keys, tokens.tobytes())

    def stored_events(
        self, sequence: Sequence, keys: Iterable[bytes], medium: Medium
    ) -> list[BlockStored]:
        """What is reported of blocks of a sequence that are stored elsewhere too."""
        wanted, known = {*keys}, enumerate(sequence.keys)
        found = [self._stored(sequence, index) for index, key in known if key in wanted]
        return [replace(one, medium=medium) for one in found]

    def _stored(self, sequence: Sequence, index: int) -> BlockStored:
        request, first, end = (
            sequence.request,
            index * self._block_size,
            (index + 1) * self._block_size,
        )
        return BlockStored(
            key=sequence.keys[index],
            parent=sequence.keys[index - 1] if index else None,
            tokens=tuple(sequence.tokens[first:end].tolist()),
            adapter=request.adapter,
            salt=request.cache_salt,
            images=images_within(request.images, first, end),
        )

    def confirm(self, step: int) -> None:
        """The device has run `step`: its seals are no longer pending."""
        while self._pending and self._pending[0].step <= step:
            self._pending.popleft()

    def retract(self, owner: tuple[int, int] | None = None) -> dict[int, bytes]:
        """Steps in flight failed: remove their pending seals, of all slots or of one slot and
        epoch. Returns the blocks that were findable and the keys they had."""
        forgotten: dict[int, bytes] = {}
        pending, self._pending = self._pending, deque()
        while pending:
            one = pending.pop()
            if owner not in (None, (one.slot, one.epoch)):
                self._pending.appendleft(one)
                continue
            for block, key in zip(reversed(one.blocks), reversed(one.keys), strict=True):
                if self._pool.unseal(block, key):
                    forgotten[block] = key
        return forgotten

    def retract_in_flight(self, slots: list[int]) -> None:
        """Steps in flight failed that had work of these slots. What other slots sealed is computed,
        although the latest step had not run yet when they sealed it."""
        pending, epoch = self._pending, self.epoch
        self._pending = deque(
            one for one in pending if one.slot in slots or one.epoch != epoch[one.slot]
        )
        self.retract()

    def clear(self) -> None:
        """Forget all runs and pending seals. The pool forgets the keys."""
        self.unkeyed.clear()
        self._pending.clear()

    def check(self, occupied: list[int]) -> None:
        """Verify every invariant. `occupied` are the slots that hold blocks."""
        listed, expected = sorted(self.unkeyed.slots()), occupied if self.enabled else []
        assert listed == expected, f"slots {listed} are listed, not {expected}"
        for run in self.unkeyed.runs():
            free = not any(map(self._pool.holders, run.blocks))
            assert run.blocks and free, f"a run has blocks {run.blocks}, none or some of them held"

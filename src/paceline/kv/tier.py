"""The host tier: where the content of swapped sequences is in host memory."""

from collections import Counter
from dataclasses import dataclass
from itertools import takewhile

from paceline.core.plan import Blocks, Pairs
from paceline.core.request import Sequence
from paceline.kv.cache import KVCache
from paceline.kv.fence import Fence, StepTicket

Content = bytes | int  # a key, or the device block if it has none


@dataclass(frozen=True, slots=True)
class Stored:
    """The host blocks of the first `tokens` positions of a sequence, and of its state there."""

    blocks: Blocks
    tokens: int
    state: Blocks = ()

    @property
    def all_blocks(self) -> Blocks:
        return self.blocks + self.state


class HostTier:
    """Host blocks by sequence.

    Equal content is stored once: full blocks are found by key, in the host pool as on the device.
    A block keeps its content until the host pool reuses it, also when its sequence has returned or
    ended, and `KVCache.lookup` finds it for any sequence. Both ends of every copy are fenced until
    the step that lists it has run.
    """

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._stored: dict[int, Stored] = {}  # by serial

    def stored(self, sequence: Sequence) -> Stored:
        return self._stored[sequence.serial]

    def ready(self, sequence: Sequence) -> bool:
        """Whether all blocks stored for a sequence have reached the host."""
        return not self._cache.fences.is_storing(sequence.serial)

    # -- moving -------------------------------------------------------------

    def moves(self, sequences: list[Sequence], tokens: list[int]) -> int:
        """Number of blocks that `store` would copy for these residents, with their states."""
        wanted = self._wanted(sequences, tokens)
        new = sum(1 for content in wanted if self._host_block(content) is None)
        return new + len(sequences) * self._cache.state_blocks

    def store(self, sequences: list[Sequence], tokens: list[int], step: int) -> Pairs | None:
        """Store the first `tokens[i]` positions of each resident, and take blocks for its state
        there. Returns the copies of blocks, or None if the host has no room.

        The device blocks are fenced until `step` has copied them. The caller releases the slots,
        and has their states copied.
        """
        pool, each = self._cache.host, self._cache.state_blocks
        wanted = self._wanted(sequences, tokens)
        found = {content: self._host_block(content) for content in wanted}
        known = [block for block in found.values() if block is not None]
        new = [content for content, block in found.items() if block is None]
        if len(new) + len(sequences) * each + pool.free_among(known) > pool.free:
            return None
        pool.hold(known)  # before taking, which would otherwise evict them
        placed = dict(zip(new, pool.take(len(new)), strict=True))
        states = tuple(pool.take(len(sequences) * each))
        keys = tuple((block, key) for key, block in placed.items() if isinstance(key, bytes))
        pool.seal([block for block, _ in keys], [key for _, key in keys])
        for at, (sequence, count) in enumerate(zip(sequences, tokens, strict=True)):
            contents = self._contents(sequence, count)
            blocks = [found[content] for content in contents]
            host = tuple(
                placed[content] if block is None else block
                for content, block in zip(contents, blocks, strict=True)
            )
            one = Stored(host, count, states[at * each : (at + 1) * each])
            pool.hold(one.all_blocks)
            self._stored[sequence.serial] = one
        moves = tuple((wanted[content], block) for content, block in placed.items())
        device = tuple(block for block, _ in moves)
        serials = tuple(sequence.serial for sequence in sequences)
        host = (*known, *placed.values(), *states)
        self._cache.fences.add(Fence(StepTicket(step), device, host, stored=serials, keys=keys))
        pool.drop(host)  # the sequences and the fence hold them now
        return moves

    def need(self, sequences: list[Sequence], spans: list[int]) -> int:
        """Most device blocks that `restore` takes, with room for `spans[i]` positions each."""
        stored = [self._stored[sequence.serial] for sequence in sequences]
        distinct = {block for one in stored for block in one.blocks}
        growth = zip(stored, spans, strict=True)
        return len(distinct) + sum(
            self._cache.tables.growth(one.tokens, span) for one, span in growth
        )

    def restore(
        self, sequences: list[Sequence], slots: list[int], spans: list[int], step: int
    ) -> Pairs:
        """Bring sequences back into empty slots. Returns the copies of blocks to make: content that
        is still on the device is not copied. The caller has their states copied."""
        cache = self._cache
        here: dict[int, int] = {}  # host block to the device block that has its content now
        moves: list[tuple[int, int]] = []
        host: list[int] = []
        for sequence, slot, span in zip(sequences, slots, spans, strict=True):
            stored = self._stored.pop(sequence.serial)
            kept = self._blocks_without_copy(sequence, stored, here)
            cache.pool.hold(kept)
            away = stored.blocks[len(kept) :]
            taken = cache.pool.take(len(away) + cache.tables.growth(stored.tokens, span))
            moves += zip(away, taken, strict=False)
            blocks = (*kept, *taken)
            here |= zip(stored.blocks, blocks, strict=False)
            cache.tables.place_read(slot, blocks, stored.tokens, span)
            cache.index.enter(slot, sequence, cache.tables.index_of(len(kept), stored.tokens))
            cache.seal(slot, sequence, stored.tokens, step)
            host += stored.all_blocks
        device = tuple(block for _, block in moves)
        serials = tuple(sequence.serial for sequence in sequences)
        cache.fences.add(Fence(StepTicket(step), device, tuple(host), arriving=serials))
        cache.host.drop(host)  # the sequences held them; now the fence does
        return tuple(moves)

    def _blocks_without_copy(
        self, sequence: Sequence, stored: Stored, here: dict[int, int]
    ) -> tuple[int, ...]:
        """Leading blocks that need no copy: another sequence of the family brings them, or the
        device still has them."""
        shared = tuple(here[block] for block in takewhile(here.__contains__, stored.blocks))
        cached = self._cache.find_read(sequence, stored.tokens)
        found = shared + cached[len(shared) :]
        return found[: self._cache.tables.whole(len(found), stored.tokens)]

    def discard(self, sequence: Sequence) -> None:
        """Drop the host blocks of a sequence, if it has any."""
        if stored := self._stored.pop(sequence.serial, None):
            self._cache.host.drop(reversed(stored.all_blocks))

    def _contents(self, sequence: Sequence, tokens: int) -> list[Content]:
        blocks = self._cache.tables.read(sequence.slot, tokens)
        keys = self._cache.index.read_keys(sequence, tokens)
        return [*keys, *blocks[len(keys) :]]

    def _wanted(self, sequences: list[Sequence], tokens: list[int]) -> dict[Content, int]:
        """The contents to store, each once, and a device block that holds it."""
        wanted: dict[Content, int] = {}
        for sequence, count in zip(sequences, tokens, strict=True):
            contents = self._contents(sequence, count)
            wanted |= zip(contents, self._cache.tables.read(sequence.slot, count), strict=True)
        return wanted

    def _host_block(self, content: Content) -> int | None:
        """The host block that already holds a content."""
        found = self._cache.host.find([content]) if isinstance(content, bytes) else []
        return found[0] if found else None

    def check(self) -> None:
        """Verify every invariant of the host blocks."""
        held = Counter(block for one in self._stored.values() for block in one.all_blocks)
        held.update(self._cache.fences.host_blocks())
        self._cache.host.check(held)

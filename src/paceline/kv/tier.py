"""Host memory for sequences that give way, and fences around everything that is being copied."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import takewhile

from paceline.core.plan import Pairs
from paceline.core.request import Sequence
from paceline.kv.cache import KVCache
from paceline.kv.pool import BlockPool

Content = bytes | int  # a key, or the device block itself where it has none


@dataclass(frozen=True, slots=True)
class Stored:
    """Where on the host the first `tokens` positions of a sequence are."""

    blocks: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class Fence:
    """Blocks that nobody may reuse before `step` has run, because it copies them."""

    step: int
    device: tuple[int, ...]
    host: tuple[int, ...] = ()
    stored: tuple[int, ...] = ()  # serials whose content `step` brings to the host
    arriving: tuple[int, ...] = ()  # serials whose blocks are complete only after `step`
    keys: tuple[tuple[int, bytes], ...] = ()  # seals of host blocks that count once it has run


class HostTier:
    """Blocks on the host by sequence. A fence is one more holder of a block, until its step ran.

        plan 7    swap_out (d3, h0)      d3: held by the fence alone    h0: sequence, fence
        commit 7                         d3: free                       h0: sequence

    Equal content is kept once: full blocks are found by key, in the host pool as on the device.
    """

    def __init__(self, cache: KVCache, blocks: int) -> None:
        self.pool = BlockPool(blocks)
        self._cache = cache
        self._stored: dict[int, Stored] = {}  # by serial
        self._fences: deque[Fence] = deque()

    def stored(self, sequence: Sequence) -> Stored:
        return self._stored[sequence.serial]

    def ready(self, sequence: Sequence) -> bool:
        """Is all that is kept for a sequence on the host by now?"""
        return all(sequence.serial not in fence.stored for fence in self._fences)

    # -- moving -------------------------------------------------------------

    def moves(self, sequences: list[Sequence], tokens: list[int]) -> int:
        """Blocks that storing these residents would copy."""
        wanted = self._wanted(sequences, tokens)
        return sum(1 for content in wanted if self._home(content) is None)

    def store(self, sequences: list[Sequence], tokens: list[int], step: int) -> Pairs | None:
        """Keep the first `tokens[i]` positions of each resident; None if there is no room.

        Their device blocks stay fenced until `step` has copied them; the caller releases them.
        """
        wanted = self._wanted(sequences, tokens)
        homes = {content: self._home(content) for content in wanted}
        known = [home for home in homes.values() if home is not None]
        new = [content for content, home in homes.items() if home is None]
        if len(new) + self.pool.free_among(known) > self.pool.free:
            return None
        self.pool.hold(known)
        placed = dict(zip(new, self.pool.take(len(new)), strict=True))
        keys = tuple((block, key) for key, block in placed.items() if isinstance(key, bytes))
        self.pool.seal([block for block, _ in keys], [key for _, key in keys])
        for sequence, count in zip(sequences, tokens, strict=True):
            contents = self._contents(sequence, count)
            blocks = [homes[content] for content in contents]
            host = tuple(
                placed[content] if block is None else block
                for content, block in zip(contents, blocks, strict=True)
            )
            self.pool.hold(host)
            self._stored[sequence.serial] = Stored(host, count)
        moves = tuple((wanted[content], block) for content, block in placed.items())
        device = [block for block, _ in moves]
        self._cache.pool.hold(device)
        serials = tuple(sequence.serial for sequence in sequences)
        host = (*known, *placed.values())
        self._fences.append(Fence(step, tuple(device), host, stored=serials, keys=keys))
        return moves

    def need(self, sequences: list[Sequence], spans: list[int]) -> int:
        """Device blocks that bring these back with room for `spans[i]` positions, at most."""
        stored = [self._stored[sequence.serial] for sequence in sequences]
        distinct = {block for one in stored for block in one.blocks}
        growth = zip(stored, spans, strict=True)
        return len(distinct) + sum(
            max(self._cache.blocks_for(span) - len(one.blocks), 0) for one, span in growth
        )

    def restore(
        self, sequences: list[Sequence], slots: list[int], spans: list[int], step: int
    ) -> Pairs:
        """Bring sequences back into empty slots; what is still on the device is not copied."""
        cache = self._cache
        here: dict[int, int] = {}  # host block to the device block that has its content now
        moves: list[tuple[int, int]] = []
        host: list[int] = []
        for sequence, slot, span in zip(sequences, slots, spans, strict=True):
            stored = self._stored.pop(sequence.serial)
            kept = self._still_here(sequence, stored, here)
            cache.pool.hold(kept)
            away = stored.blocks[len(kept) :]
            taken = cache.pool.take(max(cache.blocks_for(span) - len(kept), len(away)))
            moves += zip(away, taken, strict=False)
            blocks = (*kept, *taken)
            here |= zip(stored.blocks, blocks, strict=False)
            cache.place(slot, sequence, blocks, len(kept))
            cache.seal(slot, sequence, stored.tokens, step)
            host += stored.blocks
        device = tuple(block for _, block in moves)
        cache.pool.hold(device)
        serials = tuple(sequence.serial for sequence in sequences)
        self._fences.append(Fence(step, device, tuple(host), arriving=serials))
        return tuple(moves)

    def _still_here(
        self, sequence: Sequence, stored: Stored, here: dict[int, int]
    ) -> tuple[int, ...]:
        """Leading blocks that need no copy: brought by another of the family, or still cached."""
        shared = tuple(here[block] for block in takewhile(here.__contains__, stored.blocks))
        cached = self._cache.lookup(sequence).blocks[: stored.tokens // self._cache.block_size]
        return shared + cached[len(shared) :]

    def discard(self, sequence: Sequence) -> None:
        """Forget what is kept for a sequence, if anything is."""
        if stored := self._stored.pop(sequence.serial, None):
            self.pool.drop(reversed(stored.blocks))

    def _contents(self, sequence: Sequence, tokens: int) -> list[Content]:
        blocks = self._cache.blocks(sequence.slot)[: self._cache.blocks_for(tokens)]
        keys = sequence.keys[: tokens // self._cache.block_size]
        return [*keys, *blocks[len(keys) :]]

    def _wanted(self, sequences: list[Sequence], tokens: list[int]) -> dict[Content, int]:
        """What is to be kept, each content once, and a device block that has it."""
        wanted: dict[Content, int] = {}
        for sequence, count in zip(sequences, tokens, strict=True):
            contents = self._contents(sequence, count)
            wanted |= zip(contents, self._cache.blocks(sequence.slot), strict=False)
        return wanted

    def _home(self, content: Content) -> int | None:
        """The host block that has a content already."""
        found = self.pool.find([content]) if isinstance(content, bytes) else []
        return found[0] if found else None

    # -- fences -------------------------------------------------------------

    def fence(self, step: int, copies: Pairs, serials: Iterable[int]) -> None:
        """Sequences begin with copies on the device, neither end of which may be reused before
        `step` has run."""
        device = tuple(block for pair in copies for block in pair)
        self._cache.pool.hold(device)
        self._fences.append(Fence(step, device, arriving=tuple(serials)))

    @property
    def arriving(self) -> set[int]:
        """Serials of residents whose blocks are complete only after the steps in flight."""
        return {serial for fence in self._fences for serial in fence.arriving}

    @property
    def coming(self) -> int:
        """Device blocks that are free as soon as the steps in flight have run."""
        fenced = Counter(self._device())
        holders = self._cache.pool.holders
        return sum(1 for block, count in fenced.items() if holders(block) == count)

    def hand_back(self, step: int, before: int | None) -> None:
        """`step` came to nothing that must run: its fences fall with those of the step `before`
        it, or at once if none is in flight."""
        own: list[Fence] = []
        while self._fences and self._fences[-1].step == step:
            own.append(self._fences.pop())
        for fence in reversed(own):
            if before is None:
                self._lift(fence)
            else:
                self._fences.append(replace(fence, step=before))

    def confirm(self, step: int) -> bool:
        """The device has run `step`; were any fences lifted?"""
        lifted = False
        while self._fences and self._fences[0].step <= step:
            self._lift(self._fences.popleft())
            lifted = True
        return lifted

    def retract(self) -> list[int]:
        """Steps in flight failed; returns the serials that they were to bring to the host."""
        lost: list[int] = []
        while self._fences:
            fence = self._fences.pop()
            for block, key in reversed(fence.keys):
                self.pool.unseal(block, key)
            self._lift(fence)
            lost += fence.stored
        return [serial for serial in lost if serial in self._stored]

    def _lift(self, fence: Fence) -> None:
        self._cache.pool.drop(reversed(fence.device))
        self.pool.drop(reversed(fence.host))

    def _device(self) -> Iterable[int]:
        return (block for fence in self._fences for block in fence.device)

    def reset(self) -> bool:
        """Forget all content, if nothing is kept for anybody."""
        if self.pool.free < self.pool.size:
            return False
        self.pool.clear()
        return True

    def check(self) -> None:
        held = Counter(block for one in self._stored.values() for block in one.blocks)
        held.update(block for fence in self._fences for block in fence.host)
        self.pool.check(held)
        self._cache.check(self._device())

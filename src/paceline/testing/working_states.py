"""States of an oracle's slots: kept, saved, loaded and copied, and checked at every position."""

from typing import Protocol

from paceline.core.plan import Blocks, StateMoves
from paceline.testing.reference import Track, mix, start_digest


class Cells(Protocol):
    """The memory of blocks."""

    @property
    def block_size(self) -> int: ...

    def seen(self, block: int, offset: int) -> int: ...

    def put(self, block: int, offset: int, digest: int) -> None: ...

    def copy(self, source: int, target: int) -> None: ...

    def on_host(self, block: int) -> list[int]: ...


class WorkingStates:
    """The state of each slot is the digest of the positions that went into it, or, below 0, what
    a row that came to nothing left behind. In blocks, each of them has a part in all its cells.
    """

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self._of_slot: dict[int, int] = {}

    def before(self, moves: StateMoves) -> dict[int, list[int]]:
        """Make the copies that come before a plan changes anything else. Returns what goes to the
        host, by block."""
        for slot, blocks in moves.saves_before:
            self._save(slot, blocks)
        size = self._cells.block_size
        return {
            block: [self._part(self._of_slot[slot], index)] * size
            for slot, blocks in moves.swap_out
            for index, block in enumerate(blocks)
        }

    def begin(self, moves: StateMoves, tracks: dict[int, Track]) -> None:
        """Make the copies that come before the rows."""
        self._of_slot |= {target: self._of_slot[source] for source, target in moves.copies}
        for slot, blocks in moves.loads:
            size = range(self._cells.block_size)
            seen = [[self._cells.seen(block, offset) for offset in size] for block in blocks]
            self._of_slot[slot] = self._loaded(tracks[slot], blocks, seen)
        for slot, blocks in moves.swap_in:
            seen = [self._cells.on_host(block) for block in blocks]
            self._of_slot[slot] = self._loaded(tracks[slot], blocks, seen)

    def end(self, moves: StateMoves) -> None:
        """Make the copies that come after the rows."""
        for slot, blocks in moves.saves:
            self._save(slot, blocks)
        for source, target in moves.block_copies:
            self._cells.copy(source, target)

    def advance(self, track: Track, digest: int) -> None:
        """One position further, to this digest, from that of the position before."""
        start = start_digest(track.request)
        state = self._of_slot[track.slot] if track.position else start
        due = track.digests[-1] if track.position else start
        assert state in (due, min(state, -1)), (
            f"{track.request.id!r} position {track.position}: another state in slot {track.slot}"
        )
        self._of_slot[track.slot] = digest if state >= 0 else state

    def is_spoiled(self, slot: int) -> bool:
        return self._of_slot.get(slot, 0) < 0

    def spoil(self, slot: int, number: int) -> None:
        self._of_slot[slot] = number

    def _save(self, slot: int, blocks: Blocks) -> None:
        for index, block in enumerate(blocks):
            part = self._part(self._of_slot[slot], index)
            for offset in range(self._cells.block_size):
                self._cells.put(block, offset, part)

    def _loaded(self, track: Track, blocks: Blocks, content: list[list[int]]) -> int:
        """The state in some blocks, which must be that of the positions that a slot begins with."""
        due = track.digests[-1]
        for index, (block, cells) in enumerate(zip(blocks, content, strict=True)):
            for seen in set(cells):
                if seen < -1:
                    return seen
                assert seen == self._part(due, index), (
                    f"{track.request.id!r} begins at {track.position} with another state in {block}"
                )
        return due

    @staticmethod
    def _part(state: int, index: int) -> int:
        return mix(state, index) if state >= 0 else state

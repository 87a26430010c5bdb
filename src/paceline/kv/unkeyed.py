"""Full blocks without a key: no lookup has needed one yet."""

from dataclasses import dataclass


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

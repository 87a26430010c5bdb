"""Full blocks that have no key yet, because no lookup has needed one."""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Run:
    """Consecutive full blocks without keys that a sequence left behind, all of them free.

    They are reused deepest first.
    """

    listing: "Unkeyed"
    start: bytes  # the entry of `listing` that it stands in
    content: bytes  # tokens of all its blocks, also of those that have been reused
    blocks: list[int]

    def lose(self, block: int) -> None:
        """Its deepest block is reused."""
        deepest = self.blocks.pop()
        assert deepest == block, f"block {block} is reused before {deepest}, which chains to it"
        if not self.blocks:
            self.listing.remove(self.start, self)


class Unkeyed:
    """Residents (by slot) and runs, by the start of their first block without a key.

        start    parent key + tokens of that block, if they are all known when it is listed
                 parent key alone, otherwise

    A lookup that has come to the end of the keyed blocks finds here which blocks to key next. So
    hashing waits until a lookup needs it. Entries of one start stand in the order of listing.
    """

    def __init__(self) -> None:
        self._listed: dict[bytes, list[int | Run]] = {}

    def at(self, start: bytes) -> tuple[int | Run, ...]:
        """The residents and runs with this start, as they stand now."""
        listed = self._listed.get(start)
        return tuple(listed) if listed else ()

    def add(self, start: bytes, entry: int | Run) -> None:
        self._listed.setdefault(start, []).append(entry)

    def remove(self, start: bytes, entry: int | Run) -> None:
        listed = self._listed[start]
        listed.remove(entry)
        if not listed:
            del self._listed[start]

    def succeed(self, start: bytes, slot: int, run: Run) -> None:
        """A run takes the place of the resident that leaves it behind."""
        listed = self._listed[start]
        listed[listed.index(slot)] = run

    def clear(self) -> None:
        self._listed.clear()

    def runs(self) -> list[Run]:
        return [one for listed in self._listed.values() for one in listed if isinstance(one, Run)]

    def slots(self) -> list[int]:
        return [one for listed in self._listed.values() for one in listed if isinstance(one, int)]

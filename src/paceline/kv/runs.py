"""Full blocks that have no key yet, because nobody has looked for them."""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Run:
    """Consecutive full blocks that a sequence left behind. The deepest is reused first."""

    unnamed: "Unnamed"
    start: bytes  # under which it is listed there
    content: bytes  # tokens of all of them, also of those that are gone
    blocks: list[int]

    def lose(self, block: int) -> None:
        """Its deepest block is reused."""
        deepest = self.blocks.pop()
        assert deepest == block, f"block {block} is reused before {deepest}, which chains to it"
        if not self.blocks:
            self.unnamed.remove(self.start, self)


class Unnamed:
    """Residents (by slot) and runs, by how their first block without a key begins.

        start    parent key + tokens of that block, if they are all known when it is listed
                 parent key alone, otherwise

    A lookup that has come to the end of what has keys finds here whom to give keys. Hashing
    waits until then, and most content is never looked for. Whoever is listed first stands first.
    """

    def __init__(self) -> None:
        self._listed: dict[bytes, list[int | Run]] = {}

    def at(self, start: bytes) -> tuple[int | Run, ...]:
        """Those that begin so, as they stand now."""
        listed = self._listed.get(start)
        return tuple(listed) if listed else ()

    def add(self, start: bytes, who: int | Run) -> None:
        self._listed.setdefault(start, []).append(who)

    def remove(self, start: bytes, who: int | Run) -> None:
        listed = self._listed[start]
        listed.remove(who)
        if not listed:
            del self._listed[start]

    def succeed(self, start: bytes, slot: int, run: Run) -> None:
        """A run takes the place of the resident that leaves it behind."""
        listed = self._listed[start]
        listed[listed.index(slot)] = run

    def clear(self) -> None:
        self._listed.clear()

    def runs(self) -> list[Run]:
        return [who for listed in self._listed.values() for who in listed if isinstance(who, Run)]

    def slots(self) -> list[int]:
        return [who for listed in self._listed.values() for who in listed if isinstance(who, int)]

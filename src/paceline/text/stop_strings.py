"""Finds the first of several strings in a text that arrives piece by piece."""

from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache

from paceline.core.errors import RequestError


@dataclass(slots=True, eq=False)
class Ending:
    """A state of an Aho-Corasick automaton: the longest ending of the text that starts a stop
    string.

    That ending must be withheld. A character costs the same however many stop strings there are and
    however long they are.
    """

    depth: int = 0  # its length
    found: int = 0  # length of the longest stop string that ends here; 0: none
    next: dict[str, "Ending"] = field(default_factory=dict[str, "Ending"])
    shorter: "Ending | None" = None  # the next shorter such ending; None: this is the empty one

    def after(self, character: str) -> "Ending":
        """The state after one more character."""
        ending = self
        while character not in ending.next and ending.shorter is not None:
            ending = ending.shorter
        return ending.next.get(character, ending)


@lru_cache(maxsize=32)  # all choices of a request share theirs
def stop_strings(strings: tuple[str, ...]) -> Ending:
    """Build the automaton; return its initial state."""
    empty = Ending()
    for string in strings:
        if not string:
            raise RequestError("a stop string is empty")
        ending = empty
        for character in string:
            ending = ending.next.setdefault(character, Ending(ending.depth + 1))
        ending.found = ending.depth
    pending = deque([empty])
    while pending:  # in order of depth: each state needs shorter ones
        ending = pending.popleft()
        for character, longer in ending.next.items():
            longer.shorter = ending.shorter.after(character) if ending.shorter else empty
            longer.found = longer.found or longer.shorter.found
            pending.append(longer)
    return empty

"""Text that arrives in pieces, for parsers that are written as generators."""

import re
from collections.abc import Generator
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")

Waiting = Generator[None, None, T]  # a rule of a parser: it yields while it needs more text

LONGEST_READ = 4096  # characters that were read and not taken and that each new piece is added to


class TextReader:
    """The text that no rule has taken yet: from `begin` on; `at` is how far the rule has read.

    A rule takes what it has read, or unreads it. It waits for text before it decides on it, so that
    the result never depends on where a piece ends. Numbers of characters are counted from `begin`.

    A long text that was read and not taken is set aside, so that adding a piece does not copy it.
    It stands before `begin` then.
    """

    def __init__(self) -> None:
        self.text = ""
        self.begin = 0
        self.at = 0
        self.taken = 0  # characters so far
        self.ended = False
        self._aside: list[str] = []
        self._aside_length = 0

    def add(self, piece: str) -> None:
        if self.at - self.begin > LONGEST_READ:
            self._set_aside()
        self.text = self.text[self.begin :] + piece
        self.at -= self.begin
        self.begin = 0

    def take(self) -> str:
        """Remove and return what was read."""
        if self._aside:
            self._set_aside()
            taken, self._aside, self._aside_length = "".join(self._aside), [], 0
        else:
            taken = self.text[self.begin : self.at]
            self.begin = self.at
        self.taken += len(taken)
        return taken

    def unread(self) -> None:
        if self._aside:
            self.text = "".join([*self._aside, self.text[self.begin :]])
            self.begin, self._aside, self._aside_length = 0, [], 0
        self.at = self.begin

    def read(self) -> int:
        """How many characters were read."""
        return self._aside_length + self.at - self.begin

    def read_since(self, number: int) -> str:
        """What was read after the first `number` characters."""
        here = number - self._aside_length
        if here >= 0:
            return self.text[self.begin + here : self.at]
        return "".join([*self._aside, self.text[self.begin : self.at]])[number:]

    def _set_aside(self) -> None:
        self._aside.append(self.text[self.begin : self.at])
        self._aside_length += self.at - self.begin
        self.begin = self.at

    def read_all(self) -> None:
        self.at = len(self.text)

    @property
    def is_over(self) -> bool:
        return self.ended and self.at == len(self.text)

    def peek(self) -> Waiting[str]:
        """The next character; "" at the end."""
        while self.at == len(self.text) and not self.ended:
            yield
        return self.text[self.at : self.at + 1]

    def space(self) -> Waiting[str]:
        """Read whitespace; return the character after it."""
        while (character := (yield from self.peek())).isspace():
            self.at += 1
        return character

    def skip(self, expected: str) -> Waiting[bool]:
        """Read `expected`; if anything else follows, read nothing and return False."""
        while not self.text.startswith(expected, self.at):
            there = self.text[self.at : self.at + len(expected)]
            if self.ended or not expected.startswith(there):
                return False
            yield
        self.at += len(expected)
        return True

    def until(self, ends: str) -> Waiting[str]:
        """Read and return the text before the first of the characters `ends`, or all of it."""
        begin = self.read()
        while (character := (yield from self.peek())) and character not in ends:
            self.at += 1
        return self.read_since(begin)

    def find(self, markers: tuple[str, ...]) -> Waiting[str]:
        """Read to the first marker and return it; "" if other text was read.

        An ending that may be the beginning of a marker is left unread while more text can come.
        """
        pattern = beginning_of(markers)
        while True:
            found = pattern.search(self.text, self.at)
            if found and found[0] in markers:
                self.at = found.start()
                return found[0]
            sure = len(self.text) if self.ended or not found else found.start()
            if sure > self.at or self.ended:
                self.at = sure
                return ""
            yield


@lru_cache(32)
def beginning_of(markers: tuple[str, ...]) -> re.Pattern[str]:
    """Finds the first marker, or the longest ending of a text that is the beginning of one."""
    beginnings = {marker[:length] for marker in markers for length in range(1, len(marker))}
    longest_first = sorted(beginnings, key=len, reverse=True)
    partial = "".join(f"|{re.escape(each)}\\Z" for each in longest_first)
    return re.compile("|".join(map(re.escape, markers)) + partial)

"""Ready bytes around the text of an event, so that most events are not encoded as a whole."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

quoted = msgspec.json.Encoder().encode  # a text as JSON


@dataclass(frozen=True, slots=True)
class TextFrame:
    """The bytes of an event before and after its text; the quotes belong to the text."""

    before: bytes
    after: bytes

    @classmethod
    def of(cls, write: Callable[[str], bytes]) -> "TextFrame":
        """Of the events that `write` makes of texts."""
        before, after = cut(write("0"), write("1"))
        return cls(before[:-1], after[1:])


@dataclass(frozen=True, slots=True)
class NumberedFrame:
    """The same for events with a number before their text."""

    before: bytes
    between: bytes
    after: bytes

    @classmethod
    def of(cls, write: Callable[[int, str], bytes]) -> "NumberedFrame":
        before, _ = cut(write(0, "0"), write(1, "0"))
        frame = TextFrame.of(lambda text: write(0, text))
        return cls(before, frame.before[len(before) + 1 :], frame.after)

    def event(self, number: int, text: str) -> bytes:
        return b"%b%d%b%b%b" % (self.before, number, self.between, quoted(text), self.after)


def cut(one: bytes, other: bytes) -> tuple[bytes, bytes]:
    """What precedes and what follows the only byte in which two events differ."""
    at = bisect_left(range(len(one)), True, key=lambda at: one[: at + 1] != other[: at + 1])
    assert one[at + 1 :] == other[at + 1 :], "the events differ in more than one byte"
    return one[:at], one[at + 1 :]

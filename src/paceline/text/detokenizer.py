"""Turns a stream of token ids into a stream of text that ends at a stop string."""

import codecs
from collections.abc import Iterable, Sequence
from math import inf

from paceline.core.arrays import I32
from paceline.text.stop_strings import stop_strings
from paceline.text.tokenizer import Tokenizer

LONGEST_CHARACTER = 4  # bytes in UTF-8

utf8_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The pieces it gives add up to the decoding of all ids, cut at the first stop string.

    First is the one that ends first, the longest if several end there. Withheld is only what may
    still change: the bytes of an unfinished character, and an ending that may turn out to begin
    a stop string. `tokens` counts the ids used, up to and with the one that completed the stop.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special: bool = True,
        prompt: Sequence[int] | I32 = (),
        min_tokens: int = 0,
    ) -> None:
        self.stopped: str | None = None
        self.tokens = 0
        self._bytes = tokenizer.spelled(skip_special)
        self._utf8 = utf8_decoder("replace")
        self._ending = stop_strings(tuple(stop))
        self._include_stop = include_stop
        self._unsearched = min_tokens if stop else inf  # leading tokens whose text is not searched
        self._withheld = ""
        tail = self._tail(prompt)
        self._utf8.decode(tail)
        self._strip_space = tokenizer.strips_space and not tail

    def push(self, ids: Iterable[int]) -> str:
        """The text that may be sent now."""
        pieces: list[str] = []
        for id in ids:
            if self.stopped is not None:
                break
            self.tokens += 1
            pieces.append(self._release(self._utf8.decode(self._spell(id))))
        return "".join(pieces)

    def finish(self) -> str:
        """What was withheld; half a character is shown as U+FFFD. No token is no text."""
        if self.stopped is not None or not self.tokens:
            return ""
        last = self._release(self._utf8.decode(b"", final=True))
        rest, self._withheld = self._withheld, ""
        return last + rest

    def _spell(self, id: int) -> bytes:
        spelled = self._bytes[id]
        if self._strip_space and spelled:
            self._strip_space = False
            return spelled.removeprefix(b" ")
        return spelled

    def _release(self, new: str) -> str:
        """Add characters to the text, and let go of those that can belong to no stop string."""
        if self.tokens <= self._unsearched:
            return new
        text, ending = self._withheld + new, self._ending
        for end, character in enumerate(new, len(self._withheld) + 1):
            ending = ending.after(character)
            if ending.found:
                begin = end - ending.found
                self.stopped, self._withheld = text[begin:end], ""
                return text[: end if self._include_stop else begin]
        self._ending = ending
        sure = len(text) - ending.depth
        self._withheld = text[sure:]
        return text[:sure]

    def _tail(self, prompt: Sequence[int] | I32) -> bytes:
        """The last bytes before the first token: they may begin its first character."""
        tail = b""
        for id in reversed(prompt):
            tail = self._bytes[int(id)] + tail
            if len(tail) >= LONGEST_CHARACTER:
                break
        return tail

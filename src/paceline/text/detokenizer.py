"""Turns a stream of token ids into a stream of text that ends at a stop string."""

import codecs
from collections.abc import Sequence
from math import inf

from paceline.core.arrays import I32
from paceline.text.stop_strings import stop_strings
from paceline.text.tokenizer import Tokenizer

LONGEST_CHARACTER = 4  # bytes in UTF-8

utf8_decoder = codecs.getincrementaldecoder("utf-8")


class NoText:
    """Counts ids and makes no text of them."""

    def __init__(self) -> None:
        self.stopped: str | None = None
        self.tokens = 0

    def push(self, ids: Sequence[int]) -> str:
        self.tokens += len(ids)
        return ""

    def finish(self) -> str:
        return ""


class Detokenizer:
    """The returned pieces add up to the decoding of all ids, cut at the first stop string.

    The first stop string is the one that ends first; if several end there, the longest. Text is
    withheld only while it may change: bytes of an incomplete character, and an ending that may be
    the beginning of a stop string. `tokens` counts the ids used, including the one that completed
    the stop string.
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
        self._texts = self._bytes.texts
        self._utf8 = utf8_decoder("replace")
        self._ending = stop_strings(tuple(stop))
        self._include_stop = include_stop
        self._unsearched = min_tokens if stop else inf  # leading tokens whose text is not searched
        self._withheld = ""
        tail = self._tail(prompt)
        self._utf8.decode(tail)
        self._between_characters = not self._utf8.getstate()[0]
        self._strip_space = tokenizer.strips_space and not tail

    def push(self, ids: Sequence[int]) -> str:
        """Add ids and return the text that is final."""
        if self._unsearched == inf:
            return self._push_all(ids)
        pieces: list[str] = []
        for id in ids:
            if self.stopped is not None:
                break
            self.tokens += 1
            pieces.append(self._release(self._utf8.decode(self._spell(id))))
        return "".join(pieces)

    def _push_all(self, ids: Sequence[int]) -> str:
        """Add ids without a look for stop strings."""
        self.tokens += len(ids)
        if len(ids) == 1 and self._between_characters and not self._strip_space:
            text = self._texts[ids[0]]
            if text is not None:
                return text
        spelled = b"".join(map(self._bytes.__getitem__, ids))
        if self._strip_space and spelled:
            self._strip_space = False
            spelled = spelled.removeprefix(b" ")
        text = self._utf8.decode(spelled)
        self._between_characters = not self._utf8.getstate()[0]
        return text

    def finish(self) -> str:
        """Return the withheld text. An incomplete character becomes U+FFFD."""
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
        """Add characters, and return those that cannot be part of a stop string."""
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
        """The last bytes of the prompt, which may be the start of the first character."""
        tail = b""
        for id in reversed(prompt):
            tail = self._bytes[int(id)] + tail
            if len(tail) >= LONGEST_CHARACTER:
                break
        return tail

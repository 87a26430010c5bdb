"""The tokens of a model as grammars see them."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from paceline.core.arrays import I32, frozen
from paceline.core.errors import ConfigError

CONTEXT = 8  # tokens before forced text that it is tokenized with


class TokenSpelling(Protocol):
    """What a table needs of a tokenizer."""

    @property
    def eos(self) -> Sequence[int]: ...
    @property
    def special(self) -> frozenset[int]: ...
    @property
    def vocab_size(self) -> int: ...
    def token_bytes(self, id: int, /) -> bytes: ...
    def encode(self, text: str, special: bool = True) -> list[int]: ...


@dataclass(frozen=True)
class TokenTable:
    """`spelled` has the bytes of each id of the model. They are empty for special tokens, end
    tokens and ids without a token; no grammar allows these as text."""

    spelled: tuple[bytes, ...]
    eos: tuple[int, ...]
    encode: Callable[[str], list[int]] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.eos:
            raise ConfigError("structured output needs a tokenizer with an end token")

    @classmethod
    def of(cls, tokenizer: TokenSpelling, vocab_size: int | None = None) -> "TokenTable":
        """`vocab_size` is the model's, if that differs from the tokenizer's."""
        size = vocab_size or tokenizer.vocab_size
        eos = tuple(id for id in tokenizer.eos if id < size)
        silent = tokenizer.special | set(eos)
        return cls(
            tuple(b"" if id in silent else tokenizer.token_bytes(id) for id in range(size)),
            eos,
            lambda text: tokenizer.encode(text, special=False),
        )

    @property
    def vocab_size(self) -> int:
        return len(self.spelled)

    @property
    def words(self) -> int:
        """The width of a mask row: one bit for each id, 32 in a word, the lowest bit first."""
        return -(-self.vocab_size // 32)

    @cached_property
    def eos_row(self) -> I32:
        """The mask that allows the end tokens alone."""  # [words]
        row = np.zeros(self.words, np.uint32)
        for id in self.eos:
            row[id >> 5] |= np.uint32(1 << (id & 31))
        return frozen(row.view(np.int32))

    @cached_property
    def text_row(self) -> I32:
        """The mask that allows every id with bytes."""  # [words]
        bits = np.zeros(self.words * 32, np.uint8)
        bits[: self.vocab_size] = [bool(one) for one in self.spelled]
        return frozen(np.packbits(bits, bitorder="little").view(np.int32))

    @cached_property
    def _in_order(self) -> list[bytes]:
        return sorted({one for one in self.spelled if one})

    def may_grow(self, ending: bytes) -> bool:
        """Is there a token that starts with these bytes and has more?"""
        at = bisect_right(self._in_order, ending)
        return at < len(self._in_order) and self._in_order[at].startswith(ending)

    @cached_property
    def _longest(self) -> int:
        return len(max(self.spelled, key=len))

    def canonical(self, before: Sequence[int], text: bytes) -> list[int]:
        """The tokens that `text` has after the tokens `before`, whatever follows it.

        The text is encoded together with the tokens before it. The result is empty if these would
        be encoded differently now. Tokens at the end that could be longer, depending on what
        follows, are left out.
        """
        if self.encode is None or not text:
            return []
        before = before[-CONTEXT:]
        prefix = b"".join(self.spelled[id] for id in before)
        try:
            ids = self.encode((prefix + text).decode())
        except UnicodeDecodeError:
            return []
        if ids[: len(before)] != list(before) or any(id >= self.vocab_size for id in ids):
            return []
        ids = ids[len(before) :]
        if b"".join(self.spelled[id] for id in ids) != text:
            return []
        return self._settled(ids, text)

    def _settled(self, ids: list[int], text: bytes) -> list[int]:
        """The first tokens, up to where a token that crosses the end of the text could start."""
        reach = range(min(len(text), self._longest), 0, -1)
        open_bytes = next((n for n in reach if self.may_grow(text[-n:])), 0)
        end, kept = len(text) - open_bytes, 0
        for at, id in enumerate(ids):
            kept += len(self.spelled[id])
            if kept > end:
                return ids[:at]
        return ids

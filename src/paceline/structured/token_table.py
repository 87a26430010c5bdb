"""The bytes of a model's tokens, for grammars."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from paceline.core.arrays import I32, frozen
from paceline.core.errors import ConfigError


class TokenSpelling(Protocol):
    """The methods of a tokenizer that a table needs."""

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

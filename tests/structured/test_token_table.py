"""Masks of end tokens and of text."""

import numpy as np
import pytest

from paceline.core.errors import ConfigError
from paceline.structured.token_table import TokenTable
from tests.structured.support import PADDING, table

SPELLED = (b"a", b"b", b"ab", b"abc", b"", b'"', b'":')


SMALL = TokenTable(SPELLED, (4,))


def bits(row: np.ndarray) -> list[int]:
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()


def test_rows_have_one_bit_for_each_id() -> None:
    assert SMALL.words == 1
    assert TokenTable((b"a",) * 33, (0,)).words == 2
    assert bits(SMALL.eos_row) == [4]
    assert bits(SMALL.text_row) == [0, 1, 2, 3, 5, 6]
    assert bits(TokenTable((b"",) * 64, (31, 32)).eos_row) == [31, 32]


def test_special_end_and_missing_tokens_are_no_text() -> None:
    assert table().eos == (1, 2)
    size = table().vocab_size
    silent = [id for id, text in enumerate(table().spelled) if not text]
    assert silent == [0, 1, 2, *range(size - PADDING, size)]


def test_an_end_token_is_needed() -> None:
    with pytest.raises(ConfigError, match="needs a tokenizer with an end token"):
        TokenTable((b"a",), ())

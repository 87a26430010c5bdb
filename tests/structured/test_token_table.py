"""Masks and canonical tokens."""

import numpy as np
import pytest

from paceline.core.errors import ConfigError
from paceline.structured.token_table import TokenTable
from tests.structured.support import PADDING, ids, table

SPELLED = (b"a", b"b", b"ab", b"abc", b"", b'"', b'":')


def encode(text: str) -> list[int]:
    """The longest token first."""
    found: list[int] = []
    while text:
        best = max((t for t in SPELLED if t and text.encode().startswith(t)), key=len)
        found.append(SPELLED.index(best))
        text = text[len(best) :]
    return found


SMALL = TokenTable(SPELLED, (4,), encode)


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


@pytest.mark.parametrize(
    ("before", "text", "expected"),
    [
        ([], b"abcb", [3, 1]),  # b starts no longer token
        ([], b'b"', [1]),  # the quote could become ":
        ([], b'b":', [1, 6]),
        ([], b"ab", []),  # could become abc
        ([], b"", []),
        ([1], b'":', [6]),
        ([2], b"c", []),  # the tokens before would be encoded as abc
        ([], b"\xff", []),
        ([4], b'":', []),  # a special token has no text to encode
    ],
)
def test_tokens_that_do_not_depend_on_what_follows(
    before: list[int], text: bytes, expected: list[int]
) -> None:
    assert SMALL.canonical(before, text) == expected


def test_without_an_encoder_there_are_no_canonical_tokens() -> None:
    assert TokenTable(SPELLED, (4,)).canonical([], b'b":') == []


def test_canonical_tokens_are_those_of_the_whole_text() -> None:
    text = "hello world hello there the things"
    whole = ids(text)
    for cut in range(len(text)):
        found = table().canonical([], text[:cut].encode())
        assert found == whole[: len(found)]
        settled = b"".join(table().spelled[id] for id in found)
        assert len(settled) >= cut - 8
    for at in range(len(whole)):
        rest = b"".join(table().spelled[id] for id in whole[at:])
        found = table().canonical(whole[:at], rest)
        assert found == whole[at:][: len(found)]

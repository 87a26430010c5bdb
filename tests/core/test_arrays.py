"""Tables that cost memory only where they are written, and token ids in any form."""

import resource
from pathlib import Path

import numpy as np
import pytest

from paceline.core import arrays
from paceline.core.arrays import NO_I32, NO_INDEX, frozen, sparse_zeros, token_array
from paceline.core.errors import RequestError

STATM = Path("/proc/self/statm")


def test_a_sparse_table_begins_as_zeros_and_can_be_written() -> None:
    table = sparse_zeros(3, 5)
    assert (table.shape, table.dtype) == ((3, 5), np.int32)
    assert not table.any()
    table[1, 4] = 7
    assert (int(table.sum()), int(table[1, 4])) == (7, 7)


@pytest.mark.parametrize(("rows", "columns"), [(0, 5), (5, 0), (0, 0)])
def test_a_sparse_table_may_be_empty(rows: int, columns: int) -> None:
    assert sparse_zeros(rows, columns).shape == (rows, columns)


def test_two_sparse_tables_share_nothing() -> None:
    one, other = sparse_zeros(1, 4), sparse_zeros(1, 4)
    one[:] = 1
    assert not other.any()


def test_a_sparse_table_does_without_advice_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrays, "NO_HUGE_PAGES", None)
    assert sparse_zeros(2, 2).tolist() == [[0, 0], [0, 0]]


@pytest.mark.skipif(not STATM.exists(), reason="the kernel does not tell what is resident")
def test_a_sparse_table_is_resident_only_where_it_was_written() -> None:
    def resident_bytes() -> int:
        return int(STATM.read_text().split()[1]) * resource.getpagesize()

    before = resident_bytes()
    table = sparse_zeros(1 << 14, 1 << 14)  # a gigabyte
    table[:: 1 << 12, 0] = 5
    assert int(table[1 << 12, 0]) == 5
    assert resident_bytes() - before < 1 << 22  # less than four huge pages


def test_a_frozen_array_is_the_same_array_and_read_only() -> None:
    array = np.array([1, 2])
    assert frozen(array) is array
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 5


def test_the_shared_empty_arrays_are_frozen() -> None:
    assert (NO_INDEX.dtype, NO_I32.dtype) == (np.intp, np.int32)
    assert len(NO_INDEX) == len(NO_I32) == 0
    assert not NO_INDEX.flags.writeable
    assert not NO_I32.flags.writeable


def test_token_arrays_may_be_empty() -> None:
    assert token_array([], "nothing").tolist() == []


def test_an_array_that_was_made_here_is_not_copied() -> None:
    made = token_array([5, 6], "a prompt")
    assert token_array(made, "a prompt") is made
    assert made.dtype == np.int32
    assert not made.flags.writeable


def test_an_error_says_what_the_ids_belong_to() -> None:
    with pytest.raises(RequestError, match=r"^a prompt has a negative token id: -3$"):
        token_array([1, -3], "a prompt")
    with pytest.raises(RequestError, match=r"^a prompt must be a list of token ids: "):
        token_array(["a"], "a prompt")

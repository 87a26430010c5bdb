"""Names for the array types that travel between layers."""

import mmap as memory
from array import array
from collections.abc import Iterable, Sequence
from mmap import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.core.errors import RequestError

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]
Index = npt.NDArray[np.intp]  # slots; intp so that fancy indexing needs no cast
Names = npt.NDArray[np.object_]  # request ids

NO_HUGE_PAGES: int | None = getattr(memory, "MADV_NOHUGEPAGE", None)

NO_INDEX: Index = np.empty(0, np.intp)
NO_I32: I32 = np.empty(0, np.int32)


def sparse_zeros(rows: int, columns: int) -> I32:
    """A table of zeros that takes up memory only where it has been written.

    Plain numpy asks for huge pages, and one written cell would then cost two megabytes.
    """
    pages = mmap(-1, max(rows * columns, 1) * 4)
    if hasattr(mmap, "madvise") and NO_HUGE_PAGES is not None:
        pages.madvise(NO_HUGE_PAGES)
    return np.frombuffer(pages, np.int32)[: rows * columns].reshape(rows, columns)


def every(flags: npt.NDArray[Any]) -> bool:
    """Whether all are true or not zero, at a fifth of the cost of `flags.all()`."""
    return np.count_nonzero(flags) == flags.size


def frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same array, no longer writeable."""
    array.flags.writeable = False
    return array


for _empty in (NO_INDEX, NO_I32):
    frozen(_empty)


INT32 = np.dtype(np.int32)
Integers = npt.NDArray[np.integer[Any]]


def plain(value: Any) -> Any:
    """A scalar of numpy's as one of Python's; anything else as it is."""
    scalar: Any = value
    return scalar.item() if isinstance(value, np.generic) else value


def token_array(ids: Iterable[int], what: str) -> I32:
    """Token ids as a read-only array, or a RequestError that says what is wrong."""
    known: Any = ids
    if getattr(ids, "dtype", None) == np.int32 and not known.flags.writeable:
        return known  # it has been through here before
    given: list[int] | tuple[int, ...] = ()
    try:
        given = ids if isinstance(ids, (list, tuple)) else list(ids)
        found = np.array(array("I", given), INT32)  # several times faster than from the list
    except (TypeError, OverflowError) as error:
        raise RequestError(f"{what} {_wrong_ids(given, error)}") from None
    if len(found) and found[found.argmin()] < 0:  # only unsigned numbers go as far
        raise RequestError(f"{what} {_wrong_ids(given, 'one is too large')}")
    found.setflags(write=False)
    return found


def _wrong_ids(given: Iterable[Any], why: object) -> str:
    """What is wrong with token ids that make no array."""
    least = min((one for one in map(plain, given) if isinstance(one, int)), default=0)
    if least < 0:
        return f"has a negative token id: {least}"
    return f"must be a list of token ids: {why}"


class TokenIds:
    """For type checkers: a field that takes token ids in any sequence and keeps an array.

    A checker reads the parameter of `__init__` from `__set__`, and the attribute from `__get__`.
    No object of this class exists.
    """

    def __get__(self, instance: object, owner: object) -> I32: ...

    def __set__(self, instance: object, ids: Sequence[int] | Integers) -> None: ...

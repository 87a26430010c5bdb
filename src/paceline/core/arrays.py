"""Names for the array types that travel between layers."""

import mmap as memory
from mmap import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

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


def frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same array, no longer writeable."""
    array.flags.writeable = False
    return array


for _empty in (NO_INDEX, NO_I32):
    frozen(_empty)

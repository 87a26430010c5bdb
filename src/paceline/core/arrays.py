"""Names for the few array types that travel between layers."""

from typing import Any

import numpy as np
import numpy.typing as npt

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]
Index = npt.NDArray[np.intp]  # slots; intp so that fancy indexing needs no cast
Names = npt.NDArray[np.object_]  # request ids

NO_INDEX: Index = np.empty(0, np.intp)
NO_I32: I32 = np.empty(0, np.int32)


def frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same array, no longer writeable."""
    array.flags.writeable = False
    return array


for _empty in (NO_INDEX, NO_I32):
    frozen(_empty)

"""Give memory of a CPU back while a model sleeps."""

import logging
import mmap
import os
from collections.abc import Callable, Iterable, Sequence
from ctypes import CDLL, c_int, c_size_t, c_void_p, get_errno

from torch import Tensor

from paceline.runner.weights.renewal import Renewable, weights_of

DONTNEED, REMOVE = 4, 9  # of madvise: drop pages of this process; drop pages of a shared mapping

log = logging.getLogger(__name__)


class HostMemory:
    """See `MemoryKeeper`. The weights are in host memory anyway, so level 1 keeps them where they
    are. Pages that are dropped are zero at the next access, and take no memory until then.

    kv    what is kept of sequences, in shared mappings of its own
    free  bytes that can be allocated now
    """

    def __init__(self, model: Renewable, kv: Sequence[Tensor], free: Callable[[], int]) -> None:
        self._model, self._kv, self._free = model, kv, free

    def check(self, level: int) -> None:
        """Every level can be released."""

    def release(self, level: int) -> None:
        drop_pages(self._kv, REMOVE)
        if level > 1:
            drop_pages(weights_of(self._model), DONTNEED)

    def restore(self, tags: Sequence[str]) -> None:
        """The next access takes the memory."""

    def free_bytes(self) -> int:
        return self._free()


def drop_pages(tensors: Iterable[Tensor], advice: int) -> None:
    """Drop the pages that lie in tensors as a whole. Where the system does not, they stay."""
    madvise = CDLL(None, use_errno=True).madvise
    madvise.argtypes = [c_void_p, c_size_t, c_int]
    for tensor in tensors:
        storage, page = tensor.untyped_storage(), mmap.PAGESIZE
        first = -(-storage.data_ptr() // page) * page
        end = (storage.data_ptr() + storage.nbytes()) // page * page
        if end > first and madvise(first, end - first, advice):
            log.warning("memory is not given back: %s", os.strerror(get_errno()))

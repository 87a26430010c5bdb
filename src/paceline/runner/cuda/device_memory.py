"""GPU memory of weights and KV that a sleeping model gives back, while CUDA graphs stay valid.

The C library `device_memory.c` has the pages; torch takes segments of pools from it. Everything
else stays on the GPU: context, kernels, graphs and their buffers, states, the sampler, drafters.
"""

import logging
import mmap
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from ctypes import c_int64
from functools import cache
from typing import Any, Literal, cast
from weakref import finalize

import torch
from torch import Tensor

from paceline.core.errors import RequestError
from paceline.runner.kv_store import KVStore
from paceline.runner.native.library import library
from paceline.runner.weights.renewal import Renewable, lasting_tensors

Tag = Literal["weights", "kv_cache"]
POOLS: dict[Tag, int] = {"weights": 0, "kv_cache": 1}
TAKES: dict[Tag, str] = {"weights": "memory_take_weights", "kv_cache": "memory_take_kv"}
MOST_SEGMENTS = 1 << 16
PINNED_AT_ONCE, PINNING_THREADS = 1 << 30, 8
NO_ROOM = 2  # CUDA_ERROR_OUT_OF_MEMORY

log = logging.getLogger(__name__)


@cache
def allocator(tag: Tag) -> Any:
    """What a pool takes its segments from. It lives as long as the process, as torch needs it."""
    return torch.cuda.memory.CUDAPluggableAllocator(library()._name, TAKES[tag], "memory_give_back")


class AddressRange:
    """GPU memory as other libraries see it."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


class DevicePools:
    """The pools of weights and of KV. What is allocated inside `of` lies in one of them."""

    def __init__(self) -> None:
        self._pools: dict[Tag, Any] = {
            tag: torch.cuda.MemPool(allocator(tag).allocator()) for tag in POOLS
        }

    def of(self, tag: Tag) -> AbstractContextManager[None]:
        return torch.cuda.use_mem_pool(self._pools[tag])

    def segments(self, tag: Tag) -> Iterator[tuple[int, int]]:
        """Addresses and sizes, in bytes."""
        addresses, sizes = ((c_int64 * MOST_SEGMENTS)() for _ in range(2))
        count = library().memory_segments(POOLS[tag], addresses, sizes, MOST_SEGMENTS)
        assert count <= MOST_SEGMENTS, f"{count} segments"
        yield from zip(addresses[:count], sizes[:count], strict=True)

    def size(self, tag: Tag) -> int:
        return sum(size for _, size in self.segments(tag))

    def content(self, tag: Tag) -> Iterator[Tensor]:
        """The bytes of each segment; its pages are there."""
        for address, size in self.segments(tag):
            yield torch.as_tensor(AddressRange(address, size), device="cuda")

    def release(self, tag: Tag) -> None:
        """Give the pages back. Nothing may run on the GPU."""
        if failure := library().memory_release(POOLS[tag]):
            raise RequestError(f"the GPU keeps the memory of {tag} (CUDA error {failure})")

    def restore(self, tag: Tag) -> None:
        """Take pages again, with undefined content. RequestError if there is no room for all."""
        if failure := library().memory_restore(POOLS[tag]):
            why = "has no room" if failure == NO_ROOM else f"gives no memory (error {failure})"
            raise RequestError(
                f"the GPU {why} for {tag}, {self.size(tag) >> 20} MiB: free some and call wake_up "
                "again"
            )


def in_pool(pools: DevicePools | None, tag: Tag) -> AbstractContextManager[None]:
    """Allocate in a pool, if there are any."""
    return nullcontext() if pools is None else pools.of(tag)


def kv_store(pools: DevicePools | None, *arguments: Any) -> KVStore:
    """A KV store whose content lies in its pool, and nothing else of it."""
    with in_pool(pools, "kv_cache"):
        kv = KVStore(*arguments)
    kv.group, kv.layer_index = kv.group.clone(), kv.layer_index.clone()
    return kv


class PinnedMemory:
    """Page-locked host memory. torch's own would be rounded up to a power of two."""

    def __init__(self, size: int) -> None:
        memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # the system has no large pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        self.content = torch.frombuffer(memory, dtype=torch.uint8)
        with ThreadPoolExecutor(PINNING_THREADS) as threads:
            pieces = range(0, size, PINNED_AT_ONCE)
            failures = [*threads.map(self._pin, pieces)]
        if any(failures):
            log.warning("host memory for sleep is not page-locked: sleep and wake-up take longer")
        pinned = [first for first, failed in zip(pieces, failures, strict=True) if not failed]
        finalize(self, unpin, self.content, pinned)

    def _pin(self, first: int) -> bool:
        piece = self.content[first : first + PINNED_AT_ONCE]
        cudart = cast("Any", torch.cuda.cudart())
        return bool(int(cudart.cudaHostRegister(piece.data_ptr(), len(piece), 0)))


def piece_ends(first: int, size: int) -> list[int]:
    """Where pieces end within bytes that begin at `first`, counted from there."""
    return [*range(PINNED_AT_ONCE - first % PINNED_AT_ONCE, size, PINNED_AT_ONCE)]


def unpin(content: Tensor, pieces: Sequence[int]) -> None:
    """Unlock pages before their memory is given back."""
    cudart = cast("Any", torch.cuda.cudart())
    for first in pieces:
        cudart.cudaHostUnregister(content.data_ptr() + first)


class DeviceMemory:
    """See `MemoryKeeper`. Host memory for the weights is taken once, and kept.

    aside   tensors in the pool of weights that are no weights, and their content during level 2
    """

    def __init__(
        self, model: Renewable, kv: KVStore, pools: DevicePools | None, refusal: str = ""
    ) -> None:
        """`refusal` says why the memory cannot be released; "": it can."""
        self._model, self._kv, self._pools, self._refusal = model, kv, pools, refusal
        self._host: PinnedMemory | None = None
        self._is_on_host = False
        self._aside: list[tuple[Tensor, Tensor]] = []

    def reserve(self) -> None:
        """Take the host memory of level 1 now, so that the first sleep need not."""
        if self._pools is not None and self._host is None:
            self._host = PinnedMemory(self._pools.size("weights"))

    def check(self, level: int) -> None:
        if self._pools is None:
            raise RequestError("on a GPU, memory is released only with enable_sleep_mode: set it")
        if self._refusal:
            raise RequestError(self._refusal)

    def release(self, level: int) -> None:
        pools = self._present
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # segments without tensors must not leave between copies
        self._aside, self._is_on_host = [], level == 1
        if level == 1:
            self.reserve()
            for device, host in self._copies():
                host.copy_(device, non_blocking=True)
        else:
            lasting = lasting_tensors(self._model)
            self._aside = [(one, one.cpu()) for one in lasting if one.is_cuda]
        torch.cuda.synchronize()
        for tag in POOLS:
            pools.release(tag)

    @torch.inference_mode()
    def restore(self, tags: Sequence[str]) -> None:
        pools = self._present
        if "weights" in tags:
            pools.restore("weights")
            for device, host in self._copies() if self._is_on_host else ():
                device.copy_(host, non_blocking=True)
            for device, kept in self._aside:
                device.copy_(kept)
        if "kv_cache" in tags:
            pools.restore("kv_cache")
            self._kv.content.zero_()
        torch.cuda.synchronize()

    def free_bytes(self) -> int:
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]

    @property
    def _present(self) -> DevicePools:
        assert self._pools is not None, "there are no pools"
        return self._pools

    def _copies(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The content of the weights, each part with its place on the host. A copy must not cross
        from one piece of page-locked memory into the next."""
        assert self._host is not None
        first = 0
        for segment in self._present.content("weights"):
            for part in segment.tensor_split(piece_ends(first, len(segment))):
                yield part, self._host.content[first : first + len(part)]
                first += len(part)

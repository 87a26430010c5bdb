"""Blocks in an array, as a store for connectors."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event

import numpy as np

from paceline.core.request import Request
from paceline.kv.connector import BlockMemory, Bytes, Transfer
from paceline.kv.fence import TransferTicket
from paceline.kv.remote.background import Worker

REQUEST = Request(id="a", prompt=[1, 2, 3], max_tokens=1)


class BlockArray:
    """A store whose blocks all have different bytes, by `seed`."""

    def __init__(self, blocks: int = 16, block_bytes: int = 64, seed: int = 0) -> None:
        draw = np.random.default_rng(seed)
        self.content: Bytes = draw.integers(0, 256, (blocks, block_bytes), np.uint8)
        self.block_bytes = block_bytes
        self.layout = "tiny-array"

    @property
    def memory(self) -> BlockMemory:
        return BlockMemory(self.content.ctypes.data, len(self.content), self.block_bytes)

    def read(self, blocks: Sequence[int]) -> Bytes:
        return self.content[list(blocks)]

    def read_into(self, blocks: Sequence[int], rows: Iterable[Bytes]) -> None:
        for block, row in zip(blocks, rows, strict=True):
            row[:] = self.content[block]

    def write(self, blocks: Sequence[int], rows: Iterable[Bytes]) -> None:
        for block, row in zip(blocks, rows, strict=True):
            self.content[block] = row

    def host_memory(self, rows: int) -> Bytes:
        return np.zeros((rows, self.block_bytes), np.uint8)


def keys_of(*names: int) -> tuple[bytes, ...]:
    return tuple(name.to_bytes(16, "big") for name in names)


def transfer(
    ticket: int, keys: Sequence[bytes], blocks: Sequence[int], request: Request = REQUEST
) -> Transfer:
    return Transfer(TransferTicket(ticket), request, 0, tuple(keys), tuple(blocks))


@contextmanager
def stopped(worker: Worker) -> Iterator[None]:
    """A worker that does nothing for a while."""
    begun, end = Event(), Event()

    def wait() -> None:
        begun.set()
        end.wait(30)

    worker.do(wait)
    begun.wait(30)
    yield
    end.set()

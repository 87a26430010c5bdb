"""Requests in the slots of a GPU runner, their images, and copies of their blocks."""

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from paceline.core.arrays import Index
from paceline.core.plan import Pairs, Plan
from paceline.core.request import Request
from paceline.runner.batch import Batch
from paceline.runner.cuda.kernels.sampling import is_plain
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.staging import Staging
from paceline.runner.cuda.state import CudaState
from paceline.runner.encoder_store import EncoderStore, MultimodalEncoder, ReadEnds
from paceline.runner.kv_store import KVStore
from paceline.runner.sampling.sampler import Sampler
from paceline.runner.tensors import from_numpy


class CudaEncoderStore(EncoderStore):
    """The encoder store in the tables of a model."""

    def __init__(self, encoder: MultimodalEncoder, model: CudaModel) -> None:
        super().__init__(encoder, model.image_table)
        self._deep = model.deep_images

    def write(self, rows: Tensor, embeddings: Tensor) -> None:
        width = self.content.shape[1]
        super().write(rows, embeddings[:, :width])
        if self._deep is not None:
            table = self._deep.table
            table[rows] = embeddings[:, width:].reshape(-1, *table.shape[1:]).to(table)


class CudaImages:
    """The encoder store is the end of the table of token embeddings:

        table   [ embeddings of the vocabulary ][ rows of the encoder store ]
        id        0 ... vocabulary - 1            vocabulary + row

    So a step reads the embeddings of images as it reads those of tokens, also in a captured graph.
    While it is launched, positions of images have the ids of their rows; then they have their
    tokens again. Models that read no images read `image_tokens` instead. Some towers have further
    embeddings of each position, for layers after the first; they are in `DeepImages`.
    """

    def __init__(self, encoder: MultimodalEncoder, model: CudaModel, state: CudaState) -> None:
        self._store = CudaEncoderStore(encoder, model)
        self._first, self._stand_for = model.first_image_id, model.image_tokens
        self._state, vision = state, model.config.vision
        self._reads_itself = "never" if vision is None else vision.reads_itself

    def encode(self, plan: Plan, requests: Mapping[int, Request]) -> None:
        """Encode what a plan lists; `requests` are those in the slots."""
        if plan.encode:
            self._store.encode(plan.encode, requests)

    def are_read_whole(self, plan: Plan) -> bool:
        """Does a step compute images whose positions all read each other?"""
        return self._reads_itself != "never" and len(plan.embedded) > 0

    def with_ends(self, batch: Batch, plan: Plan, requests: Mapping[int, Request]) -> Batch:
        """The batch of such a step, with what each position reads."""
        ends = ReadEnds.of(plan, requests).of_all(
            batch.position, lambda column: self._state.send(column)[0]
        )
        return replace(batch, ends=ends, ends_in_windows=self._reads_itself == "windowed")

    @contextmanager
    def substituted(self, plan: Plan) -> Generator[None]:
        """Let positions of images have the ids of their rows."""
        read, tokens = plan.embedded, self._state.tokens.view(-1)
        if not len(read):
            yield
            return
        width = self._state.tokens.shape[1]
        # No drafts are in flight before a prompt ends.
        position = plan.start[read.row] + read.offset
        at = plan.rows.slot[read.row] * width + position
        there, ids = self._state.send(at.astype(np.int32), read.source + np.int32(self._first))
        index = there.long()
        before = tokens.index_select(0, index)
        self._stand_for.index_copy_(0, (ids - self._first).long(), before)
        tokens.index_copy_(0, index, ids)
        try:
            yield
        finally:
            tokens.index_copy_(0, index, before)


class Residents:
    """The requests in slots, as of the latest plan. The sampler has the same ones."""

    def __init__(self, slots: int, sampler: Sampler, is_invariant: bool = False) -> None:
        self.requests: dict[int, Request] = {}  # by slot
        self.asking: dict[int, Request] = {}  # with prompt_logprobs, by slot
        self.pooling: dict[int, Request] = {}  # with pooling, by slot
        self.images: CudaImages | None = None  # None: prompts have no images
        self._sampler, self.is_invariant = sampler, is_invariant
        self._plain = np.zeros(slots, np.bool_)  # samples by temperature alone
        self._masked = np.zeros(slots, np.bool_)  # samples under a mask
        self._first_block = np.zeros(slots, np.int32)  # equal for rows that share a prefix

    def apply(self, plan: Plan) -> None:
        for slot in plan.released:
            if self.requests.pop(slot, None) is not None:
                self._sampler.release(slot)
                self.asking.pop(slot, None)
                self.pooling.pop(slot, None)
        for new in plan.admitted:
            request = new.request
            self._sampler.admit(new.slot, request, new.tokens)  # may run out of memory
            self.requests[new.slot] = request
            if request.sampling.prompt_logprobs is not None:
                self.asking[new.slot] = request
            if request.pooling:
                self.pooling[new.slot] = request
            is_free = not request.min_tokens and not request.silent
            self._plain[new.slot] = is_free and is_plain(request.sampling, self._sampler.vocab)
            self._masked[new.slot] = request.constraint is not None
            self._first_block[new.slot] = new.blocks[0]

    def encoded(self, plan: Plan) -> AbstractContextManager[None]:
        """Encode the images of a plan, and let its positions have them while it is launched."""
        if self.images is None:
            return nullcontext()
        self.images.encode(plan, self.requests)
        return self.images.substituted(plan)

    def read_images_whole(self, plan: Plan) -> bool:
        """Does a step compute images whose positions all read each other? No graph does."""
        return self.images is not None and self.images.are_read_whole(plan)

    def with_ends(self, batch: Batch, plan: Plan) -> Batch:
        """The batch of a step, in which positions of images may read each other."""
        if self.images is None or not self.images.are_read_whole(plan):
            return batch
        return self.images.with_ends(batch, plan, self.requests)

    def are_plain(self, slot: Index) -> bool:
        return bool(self._plain[slot].all())

    def alike(self, slots: list[int], ids: Tensor, draw: Callable[[], Tensor]) -> Tensor:
        """Ids [rows, …] of the sampler. In an invariant model, rows that sample by temperature
        alone have those that the kernel for such rows draws, as in steps without other rows."""
        plain = self._plain[slots]
        if not (self.is_invariant and plain.any()):
            return ids
        is_drawn = from_numpy(plain).to(ids.device).view(-1, *[1] * (ids.dim() - 1))
        return torch.where(is_drawn, draw(), ids)

    def any_masked(self, slot: Index) -> bool:
        return bool(self._masked[slot].any())

    def order(self, plan: Plan) -> Index:
        """Return the order of rows. Rows of one position come first, since they have a kernel of
        their own. Rows that share a prefix are adjacent, so that the prefix is read from memory
        once and then from the cache. Longer contexts come first, because programs that start last
        should be short.
        """
        rows, reads = plan.rows, plan.start + plan.rows.count
        _, family = np.unique(self._first_block[rows.slot], return_inverse=True)
        most = np.zeros(len(rows), np.int32)
        np.maximum.at(most, family, reads)
        return np.lexsort((-reads, family, -most[family], rows.count > 1))


PIECE_BYTES = 32 << 20  # of one copy: sampled ids on their way to the host wait for one at most
PIECES = 8  # in flight at once; with more, steps wait
RING_BYTES = PIECES * PIECE_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class CopyBuffer:
    """GPU memory for blocks in transit: filled on one stream, then read on the other."""

    room: Tensor  # [blocks, words]
    filled: torch.cuda.Event
    read: torch.cuda.Event


class BlockCopies:
    """The stream of the steps reads and writes the store; `stream` reads and writes host memory.

        steps    … step 6 | gather | step 7 | step 8          | scatter | step 9 …
        stream                     └ to the host ─┘ from the host ─┘

    So both memories are read and written in the order of plans, whatever overlaps: a block may be
    reused once it is gathered, and a copy from the host starts after the copy to it has ended. A
    copy from the host starts when its plan is launched, beside the steps that still run. A ring of
    buffers connects the two streams; each buffer is filled again once it has been read.
    """

    def __init__(self, kv: KVStore, host_blocks: int, piece_bytes: int = PIECE_BYTES) -> None:
        # Blocks are copied as wide integers. Head sizes are even, so 4 bytes always divide them.
        word = torch.int64 if kv.block_bytes % torch.int64.itemsize == 0 else torch.int32
        self._store = kv.content.flatten(1).view(word)  # [blocks, words]
        device, words = self._store.device, self._store.shape[1]
        self.host = torch.empty((host_blocks, words), dtype=word, pin_memory=True)
        self.stream = torch.cuda.Stream(device)
        self._size = max(min(piece_bytes // kv.block_bytes, host_blocks), 1)  # blocks of a piece
        shape = (min(PIECES, host_blocks), self._size, words)
        rooms = torch.empty(shape, dtype=word, device=device)
        self._pieces = deque(
            CopyBuffer(room, torch.cuda.Event(), torch.cuda.Event()) for room in rooms
        )
        self._staging = Staging(device)

    def carry_out(self, plan: Plan) -> None:
        """Start all copies of a plan, in the order of `Plan`, before its step."""
        self.copy(plan.copies)
        self.out(plan.swap_out)
        self.back(plan.swap_in)

    def copy(self, pairs: Pairs) -> None:
        """Copy blocks on the GPU. All are read before any is written."""
        if pairs:
            sources, targets = self._staging.send(*np.array(pairs, np.int32).T.copy())
            self._store.index_copy_(0, targets.long(), self._store.index_select(0, sources))

    def out(self, pairs: Sequence[tuple[int, int]], memory: Tensor | None = None) -> None:
        """Copy blocks from the GPU to the host, or rows of other memory that are as large."""
        steps, store = torch.cuda.current_stream(), self._words(memory)
        for piece, device, host in self._parts([(there, here) for here, there in pairs]):
            room = piece.room[: len(host)]
            steps.wait_event(piece.read)
            torch.index_select(store, 0, device, out=room)
            piece.filled.record(steps)
            self.stream.wait_event(piece.filled)
            with torch.cuda.stream(self.stream):
                for here, there in runs(host):
                    self.host[there].copy_(room[here], non_blocking=True)
            piece.read.record(self.stream)

    def back(self, pairs: Sequence[tuple[int, int]], memory: Tensor | None = None) -> None:
        """Copy blocks from the host to the GPU, or to rows of other memory that are as large."""
        steps, store = torch.cuda.current_stream(), self._words(memory)
        for piece, device, host in self._parts(list(pairs)):
            room = piece.room[: len(host)]
            self.stream.wait_event(piece.read)
            with torch.cuda.stream(self.stream):
                for here, there in runs(host):
                    room[here].copy_(self.host[there], non_blocking=True)
            piece.filled.record(self.stream)
            steps.wait_event(piece.filled)
            store.index_copy_(0, device.long(), room)
            piece.read.record(steps)

    def _words(self, memory: Tensor | None) -> Tensor:
        return self._store if memory is None else memory.view(self._store.dtype)

    def _parts(
        self, pairs: list[tuple[int, int]]
    ) -> Generator[tuple[CopyBuffer, Tensor, list[int]]]:
        """Split pairs (host, GPU) by the size of a buffer. Yield the buffer, the GPU blocks as a
        tensor, and the host blocks in ascending order, so that adjacent ones are one copy."""
        pairs = sorted(pairs)
        for at in range(0, len(pairs), self._size):
            host, device = zip(*pairs[at : at + self._size], strict=True)
            piece = self._pieces[0]
            self._pieces.rotate(-1)
            yield piece, self._staging.send(np.array(device, np.int32))[0], list(host)


def runs(blocks: list[int]) -> Generator[tuple[slice, slice]]:
    """Yield runs of adjacent blocks: their indices in the list, and the blocks."""
    begin = 0
    for end in range(1, len(blocks) + 1):
        if end == len(blocks) or blocks[end] != blocks[end - 1] + 1:
            first = blocks[begin]
            yield slice(begin, end), slice(first, first + end - begin)
            begin = end

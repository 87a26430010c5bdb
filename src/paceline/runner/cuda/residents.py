"""The requests in the slots of a GPU runner, and the order of their rows in a step."""

from contextlib import AbstractContextManager, nullcontext

import numpy as np

from paceline.core.arrays import Index
from paceline.core.plan import Plan
from paceline.core.request import Request
from paceline.runner.cuda.items import CudaItems
from paceline.runner.cuda.kernels.sampling import is_plain
from paceline.runner.sampler import Sampler


class Residents:
    """The requests in slots, as of the latest plan. The sampler has the same ones."""

    def __init__(self, slots: int, sampler: Sampler) -> None:
        self.requests: dict[int, Request] = {}  # by slot
        self.asking: dict[int, Request] = {}  # with prompt_logprobs, by slot
        self.pooling: dict[int, Request] = {}  # with pooling, by slot
        self.items: CudaItems | None = None  # None: prompts have no items
        self._sampler = sampler
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
        """Encode the items of a plan, and let its positions have them while it is launched."""
        if self.items is None:
            return nullcontext()
        self.items.encode(plan, self.requests)
        return self.items.in_place(plan)

    def are_plain(self, slot: Index) -> bool:
        return bool(self._plain[slot].all())

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

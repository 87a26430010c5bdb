"""Copies of whole blocks on a CPU: within a store, to host memory, and back."""

import torch

from paceline.core.plan import Pairs, Plan
from paceline.runner.kv_store import KVStore
from paceline.runner.lazy_memory import lazy_zeros


class BlockMoves:
    """Copies blocks on the device, then to the host, then from it, as plans list them."""

    def __init__(self, kv: KVStore) -> None:
        self._kv = kv
        self._host = torch.empty((0, *kv.content.shape[1:]), dtype=kv.dtype)

    def reserve(self, blocks: int) -> None:
        """Make room on the host for swapping."""
        self._host = lazy_zeros((blocks, *self._kv.content.shape[1:]), self._kv.dtype)

    def carry_out(self, plan: Plan) -> None:
        self._kv.copy(plan.copies)
        if plan.swap_out:
            device, host = ends(plan.swap_out)
            self._host[host] = self._kv.read(device).to(self._host.device)
        if plan.swap_in:
            host, device = ends(plan.swap_in)
            self._kv.write(device, self._host[host])


def ends(pairs: Pairs) -> tuple[list[int], list[int]]:
    """Return the sources and the targets of copies."""
    return [source for source, _ in pairs], [target for _, target in pairs]

"""The interface of what layers on a GPU mix, and what they share in a step."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from paceline.runner.attention_backend import Prepared
from paceline.runner.cuda.coordinates import RotaryTable
from paceline.runner.cuda.states.rows import CudaStateRows
from paceline.runner.kv_store import KVStore


@dataclass(frozen=True, slots=True, eq=False)
class CudaLayerContext:
    """What all layers read in one step."""

    position: Tensor  # [positions]
    cells: Sequence[Tensor]  # by group: [positions]; index of the first value that is written
    kv: KVStore
    attention: Prepared
    adapters: Tensor | None  # [positions]; index of each adapter; None: no position has one
    rotary: Mapping[RotaryTable, Tensor]  # by table, for coordinates: [positions, 2, head_dim / 2]
    inputs: Sequence[Tensor] = ()  # by layer: [positions, width], its own inputs
    states: CudaStateRows | None = None  # None: the model has no states


class CudaMixer(ABC):
    """Attention, or another part of a layer that reads more than the residual stream of a
    position."""

    @abstractmethod
    def __call__(self, hidden: Tensor, step: CudaLayerContext) -> Tensor:
        """Everything but the last linear, [positions, inputs of this linear]."""

    def store(self, hidden: Tensor, position: Tensor, cells: Tensor, kv: KVStore) -> None:
        """Write what the layer keeps of positions [n] to cells of the store [n], and no more."""
        raise AssertionError("it keeps nothing of a position")

    @abstractmethod
    def add_to(self, hidden: Tensor, mixed: Tensor, adapters: Tensor | None) -> None:
        """Add the last linear of what was mixed to the residual stream."""

    @abstractmethod
    def kernels(self) -> dict[str, str]:
        """Which kernels compute the linears, by rows."""

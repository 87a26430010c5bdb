"""The kernels for GPUs: on a GPU, or in Triton's interpreter, compared with torch in float32."""

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from paceline import Scheduler
from paceline.runner.attention_backend import load
from paceline.runner.batch import Batch
from paceline.runner.cuda.model import CUDA, CudaModel
from paceline.runner.kv_store import KVStore
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.layer_groups import BackendSupport, LayerGroups
from paceline.runner.models.model import Model
from paceline.runner.models.traits import find
from paceline.runner.state_store import RowStates
from paceline.runner.weights.dummy import Dummy
from tests.conformance.architectures import (
    FULL,
    MIXED_TRAITS,
    SLIDING,
    Case,
    distinct,
    few_cases,
)
from tests.conformance.model_backends import Comparison
from tests.gpu.runners import gpu_runner
from tests.gpu.support import ON_GPU
from tests.runner.sequences import OnCPU, logits_of
from tests.runner.support import cells_of, with_states

LENGTH = 64
# The interpreter is slow. Of two layers, the last one differs from all others.
SMALL = {"num_hidden_layers": 2, "head_dim": 8, "intermediate_size": 32}
# The last two layers read keys of those before them.
READING = {
    **SMALL,
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": [SLIDING, FULL] * 2,
}
SHAPES = {
    "plain",
    "keys of their own",
    "keys shared by all",
    "groups of three",
    "biases everywhere",
    "experts",
    "small",
    "low caps",
    "low limit",
    *MIXED_TRAITS,
}  # variants that kernels see; others differ in the numbers of tensors alone


class OnCUDA:
    """A model of kernels. As in a graph, steps of single positions write to the store while they
    attend."""

    def __init__(
        self,
        model: CudaModel,
        device: str,
        kv_dtype: torch.dtype = torch.float32,
        attention: str = "triton",
    ) -> None:
        self.config: ModelConfig = model.config
        self._attention = load(attention)
        self._model, self._device, self._kv_dtype = model, device, kv_dtype

    def store(self, blocks: int, block_size: int, groups: LayerGroups | None = None) -> KVStore:
        return KVStore(self.config, blocks, block_size, self._kv_dtype, self._device, groups)

    def forward(self, batch: Batch, kv: KVStore, wanted: Tensor | None = None) -> Tensor:
        columns = {
            name: one.to(self._device, torch.int32)
            for name in Batch.__slots__
            if isinstance(one := getattr(batch, name), Tensor)
        }
        is_decode = batch.positions == batch.rows
        states = self._there(
            with_states(batch, self.config, self._device).states, 0 if is_decode else None
        )
        there = replace(batch, states=states, **columns)
        backend, heads = self._attention, self.config.heads
        if is_decode:
            attention = backend.prepare_graph(there, kv, heads)
        else:
            attention = backend.prepare(there, kv)
        picked = None if wanted is None else wanted.to(self._device, torch.int32)
        return self._model.forward(there, cells_of(there, kv), kv, attention, picked)

    def _there(self, states: RowStates | None, longer: int | None) -> RowStates | None:
        if states is None:
            return None
        return RowStates(states.store, states.slot.to(self._device, torch.int32), longer)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden).float().cpu()


@cache
def both(case: Case, device: str) -> tuple[CudaModel, Model]:
    whole = case.config()
    sizes: dict[str, Any] = READING if whole.reading_layers else SMALL
    if kinds := {**case.entries, **sizes}.get("layer_types"):
        sizes = {**sizes, "layer_types": kinds[-sizes["num_hidden_layers"] :]}
    config = whole if whole.states is not None else case.config(**sizes)  # of several kinds
    source = Dummy(config, seed=3)
    ours = CudaModel.load(source, LENGTH, torch.float32, device)
    return ours, Model.load(source)


@dataclass(frozen=True)
class CudaBackend:
    name: str
    device: str
    marks: list[pytest.MarkDecorator]
    support: ClassVar[BackendSupport] = CUDA

    def cases(self) -> list[Case]:
        every = few_cases(support=CUDA)
        if self.device != "cpu":
            return every
        wanted = distinct([case for case in every if case.variant in SHAPES], CUDA)
        # The decoder of a model with images is one that is here without them too.
        return [one for one in wanted if not find(one.architecture).vision]

    def compared(self, case: Case) -> Comparison:
        ours, truth = both(case, self.device)
        expected = partial(logits_of, OnCPU(truth, "paged"))
        return Comparison(OnCUDA(ours, self.device), expected, tolerance=1e-3)

    def runner(self, case: Case, scheduler: Scheduler) -> Any:
        return gpu_runner(both(case, self.device)[0], scheduler)


BACKENDS = [CudaBackend("CUDA", "cuda", ON_GPU)]
INTERPRETED = CudaBackend("CUDA, interpreted", "cpu", [])

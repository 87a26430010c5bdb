"""Layers with states on the kernels for GPUs, in Triton's interpreter, compared with torch."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.runner.batch import Batch
from paceline.runner.cuda.linears import CudaLinear
from paceline.runner.cuda.states.mixers import CudaStateMixer
from paceline.runner.cuda.states.rows import CudaStateRows
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import DenseLinear
from paceline.runner.layers.mixers.table import WITH_STATE
from paceline.runner.models.describe import describe
from paceline.runner.models.states.state_layout import StateLayout
from paceline.runner.state_store import RowStates, StateRows, StateStore
from paceline.runner.weights.dummy import Dummy
from tests.conformance.architectures import Case
from tests.interpreted.host_device import large_programs
from tests.runner.support import rows_of

SLOTS, SPOILED = 4, 0xFF
RECURRENT = 4  # dimensions of the recurrent states of all slots
# Rows of each step, by slot: positions, and how many are computed before.
STEPS = (
    {2: (66, 0), 0: (1, 0), 3: (2, 0)},
    {3: (1, 2), 2: (5, 66)},
    {2: (1, 71), 0: (1, 1)},
)
CASES = [Case("qwen3_5"), Case("falconh1", "norm before gate"), Case("lfm2")]


class Compared:
    """The first layer with a state, twice, and a state of each slot for both."""

    def __init__(self, case: Case) -> None:
        source = Dummy(case.config(), seed=3)
        spec = describe(source.config)
        self.width = spec.width
        layer, state = next((n, one.state) for n, one in enumerate(spec.layers) if one.state)
        on_gpu = LayerFactory(source, torch.float32, "cpu", CudaLinear)
        on_cpu = LayerFactory(source, torch.float32, "cpu", DenseLinear.of)
        self._ours: Any = CudaStateMixer(on_gpu, state, layer)
        self._truth: Any = WITH_STATE[type(state)](on_cpu, state, layer)
        self._norm = on_cpu.input_norm(state.norm)
        layout = StateLayout.of(source.config, 4)
        assert layout is not None
        self.stores = [StateStore(layout, SLOTS) for _ in range(2)]
        for store in self.stores:
            store.content.fill_(SPOILED)

    @torch.inference_mode()
    def step(self, batch: Batch, slots: Tensor, padding: int = 0) -> None:
        """Compute a step both ways, and compare what is read and all states. A graph has positions
        that belong to no row."""
        draw = torch.Generator().manual_seed(batch.positions)
        hidden = torch.randn(batch.positions + padding, self.width, generator=draw)
        ours, truth = (RowStates(store, slots) for store in self.stores)
        longer = replace(ours, longer=len(slots) if padding else None)
        tokens = torch.zeros(len(hidden))
        rows = CudaStateRows.of(replace(batch, tokens=tokens, states=longer))
        assert rows is not None
        found = self._ours(hidden, SimpleNamespace(states=rows))
        theirs = StateRows(truth, batch.row_start, batch.position)
        context = SimpleNamespace(rows=theirs)
        expected = self._truth(self._norm(hidden[: batch.positions]), context)
        close = {"rtol": 1e-3, "atol": 1e-4, "equal_nan": True}
        torch.testing.assert_close(found[: batch.positions], expected, **close)
        assert not found[batch.positions :].any()
        for one, other in zip(*(store.of(0) for store in self.stores), strict=True):
            if one.dim() == RECURRENT:  # tails may have other multipliers
                torch.testing.assert_close(one, other, **close)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_that_begin_anywhere(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    large_programs(monkeypatch)
    compared = Compared(case)
    for turn, rows in enumerate(STEPS):
        batch, _ = rows_of([(count, before + count) for count, before in rows.values()], 16)
        compared.step(batch, torch.tensor(list(rows)), padding=turn % 2 * 9)

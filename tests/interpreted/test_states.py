"""Layers with states on the kernels for GPUs, in Triton's interpreter, compared with torch."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.runner.batch import Batch
from paceline.runner.cuda.linears import INVARIANT, CudaLinear
from paceline.runner.cuda.states.drafted import advance_accepted
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

SLOTS, SPOILED, MOST_DRAFTS = 4, 0xFF, 3
CLOSE: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-4, "equal_nan": True}
RECURRENT = 4  # dimensions of the recurrent states of all slots
# Rows of each step, by slot: positions, and how many are computed before.
STEPS = (
    {2: (66, 0), 0: (1, 0), 3: (2, 0)},
    {3: (1, 2), 2: (5, 66)},
    {2: (1, 71), 0: (1, 1)},
)
# The same with drafts, which rows of two to four positions have, and those that are accepted.
DRAFTED = (
    ({2: (4, 72), 0: (1, 2), 3: (3, 3)}, [0, 0, 2]),
    ({0: (4, 3), 2: (6, 73), 3: (2, 6)}, [1, 0, 0]),
    ({3: (1, 7), 0: (3, 5)}, [0, 1]),
)
FEW_HEADS = {"qwen3_5": {"linear_num_key_heads": 1, "linear_num_value_heads": 2}}
CASES = [
    Case("qwen3_5"),
    Case("falconh1", "norm before gate"),
    Case("lfm2"),
    Case("kimilinear"),
    Case("jamba"),
]


class Forgetful(Dummy):
    """The decays of the last heads are strong: those of two positions underflow."""

    def read(self, name: str) -> Tensor:
        found = super().read(name)
        if not name.endswith("A_log"):
            return found
        return found + torch.linspace(0, 5, found.numel()).view(found.shape)


class Compared:
    """The first layer with a state, twice, and a state of each slot for both."""

    def __init__(self, case: Case, is_invariant: bool) -> None:
        source = Forgetful(case.config(**FEW_HEADS.get(case.architecture, {})), seed=3)
        spec = describe(source.config)
        self.width = spec.width
        layer, state = next((n, one.state) for n, one in enumerate(spec.layers) if one.state)
        build = partial(CudaLinear, kinds=INVARIANT) if is_invariant else CudaLinear
        on_gpu = LayerFactory(source, torch.float32, "cpu", build, is_invariant=is_invariant)
        on_cpu = LayerFactory(source, torch.float32, "cpu", DenseLinear.of)
        self._ours: Any = CudaStateMixer(on_gpu, state, layer)
        self._truth: Any = WITH_STATE[type(state)](on_cpu, state, layer)
        self._layer, self._scales = layer, bool(getattr(state, "multipliers", ()))
        self._norm = on_cpu.input_norm(state.norm)
        layout = StateLayout.of(source.config, 4)
        assert layout is not None
        self.stores = [StateStore(layout, SLOTS) for _ in range(2)]
        for store in self.stores:
            store.content.fill_(SPOILED)
        self.stores[0].keep_drafts(MOST_DRAFTS)

    @torch.inference_mode()
    def step(self, batch: Batch, slots: Tensor, padding: int = 0) -> None:
        """Compute a step both ways, and compare what is read and all states. A graph has positions
        that belong to no row."""
        hidden = self._drawn(batch.positions + padding)
        longer = len(slots) if padding else None
        found = self._found(hidden, batch, RowStates(self.stores[0], slots, longer))
        expected = self._expected(hidden[: batch.positions], batch, slots)
        torch.testing.assert_close(found[: batch.positions], expected, **CLOSE)
        assert not found[batch.positions :].any()
        self._compare_states()

    @torch.inference_mode()
    def step_with_drafts(self, batch: Batch, slots: Tensor, accepted: list[int]) -> None:
        """The same of rows of which some have drafts, and so many drafts are accepted."""
        hidden, count = self._drawn(batch.positions), batch.row_start.diff()
        drafts = torch.where((count > 1) & (count <= 1 + MOST_DRAFTS), count - 1, 0)
        before = self.stores[1].content.clone()
        longer = None if (count - drafts > 1).any() else 0
        found = self._found(hidden, batch, RowStates(self.stores[0], slots, longer, drafts))
        torch.testing.assert_close(found, self._expected(hidden, batch, slots), **CLOSE)
        stays = torch.where(drafts > 0, 1 + torch.tensor(accepted), count)
        known = (batch.context - drafts).int()
        position = torch.zeros(SLOTS, dtype=torch.int32)
        position[slots] = (batch.context - count + stays).int()
        advance_accepted(self.stores[0], slots, known, drafts, position)
        self.stores[1].content.copy_(before)
        rows = list(zip(stays.tolist(), position[slots].tolist(), strict=True))
        taken = [
            one[:n] for one, n in zip(hidden.split(count.tolist()), stays.tolist(), strict=True)
        ]
        self._expected(torch.cat(taken), rows_of(rows, 16)[0], slots)
        self._compare_states()

    def _drawn(self, positions: int) -> Tensor:
        return torch.randn(
            positions, self.width, generator=torch.Generator().manual_seed(positions)
        )

    def _found(self, hidden: Tensor, batch: Batch, states: RowStates) -> Tensor:
        rows = CudaStateRows.of(replace(batch, tokens=torch.zeros(len(hidden)), states=states))
        assert rows is not None
        return self._ours(hidden, SimpleNamespace(states=rows))

    def _expected(self, hidden: Tensor, batch: Batch, slots: Tensor) -> Tensor:
        rows = StateRows(RowStates(self.stores[1], slots), batch.row_start, batch.position)
        return self._truth(self._norm(hidden), SimpleNamespace(rows=rows))

    def _compare_states(self) -> None:
        for one, other in zip(*(store.of(self._layer) for store in self.stores), strict=True):
            if one.dim() == RECURRENT or not self._scales:
                torch.testing.assert_close(one, other, **CLOSE)


@pytest.mark.parametrize(
    ("case", "is_invariant"),
    [*((case, False) for case in CASES), (CASES[0], True), (CASES[2], True), (CASES[4], True)],
    ids=str,
)
def test_rows_that_begin_anywhere_and_rows_with_drafts(
    case: Case, is_invariant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    large_programs(monkeypatch)
    compared = Compared(case, is_invariant)
    for turn, rows in enumerate(STEPS):
        batch, _ = rows_of([(count, before + count) for count, before in rows.values()], 16)
        compared.step(batch, torch.tensor(list(rows)), padding=turn % 2 * 9)
    if case.architecture == "jamba":
        return  # which does not draft
    for rows, accepted in DRAFTED:
        batch, _ = rows_of([(count, before + count) for count, before in rows.values()], 16)
        compared.step_with_drafts(batch, torch.tensor(list(rows)), accepted)

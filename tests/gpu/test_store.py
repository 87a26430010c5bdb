"""The oracle's digests in a store on a GPU, on random schedules: no cell is ever another's."""

from typing import Any

import pytest
import torch

from paceline.core.plan import Plan, StepResult
from paceline.runner.cuda.residents import BlockCopies
from paceline.runner.cuda.state import CudaState
from paceline.runner.kv_store import KVStore
from paceline.testing.oracle import OracleRunner
from tests.gpu.support import ON_GPU
from tests.property.schedules import Drive
from tests.runner.support import tiny

pytestmark = ON_GPU

LONGEST = 4096


class GpuStore(OracleRunner):
    """Digests lie where the block tables on the GPU say, and move as the GPU moves them."""

    def __init__(self, slots: int, old: OracleRunner, seed: int) -> None:
        super().__init__(
            len(old.cells),
            old.block_size,
            old.vocab,
            accept=old.accept,
            seed=seed,
            host_blocks=len(old.host),
        )
        config = tiny(num_hidden_layers=2, num_key_value_heads=1, head_dim=2)
        blocks = len(old.cells) + 1
        self.kv = KVStore(config, blocks, self.block_size, torch.float64, "cuda")
        self.moves = BlockCopies(self.kv, len(self.host), piece_bytes=self.kv.block_bytes)
        self.state = CudaState(slots, LONGEST, self.kv)

    def lose(self, plan: Plan) -> None:
        self.state.apply(plan)
        super().lose(plan)

    def run(self, plan: Plan) -> StepResult:
        result = super().run(plan)
        table = self.state.table.cpu()
        for slot in plan.rows.slot.tolist():
            known = [block for block in self.tracks[slot].table if block >= 0]
            assert table[0, slot, : len(known)].tolist() == known
        return result

    def seen(self, block: int, offset: int) -> int:
        halves = self.kv.content[block, :, offset].reshape(2, -1).cpu()
        assert (halves == halves[:, :1]).all(), "parts of a cell differ"
        return (int(halves[0, 0]) << 31) | int(halves[1, 0])

    def put(self, block: int, offset: int, digest: int) -> None:
        halves = torch.tensor([digest >> 31, digest & (2**31 - 1)], dtype=torch.float64)
        self.kv.content[block, :, offset] = halves[:, None, None].cuda()

    def copy(self, source: int, target: int) -> None:
        self.moves.copy(((source, target),))

    def store(self, source: int, target: int) -> None:
        self.moves.out(((source, target),))

    def restore(self, source: int, target: int) -> None:
        self.moves.back(((source, target),))


@pytest.mark.parametrize("seed", range(4))
def test_the_store_keeps_every_cell_on_random_schedules(seed: int) -> None:
    drive: Any = Drive(seed)
    slots = drive.scheduler.config.step.max_num_seqs
    drive.runner = GpuStore(slots, drive.runner, seed)
    drive.run()

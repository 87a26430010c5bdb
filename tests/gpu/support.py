"""What the tests on a card have in common."""

import pytest
import torch

from paceline.runner.batch import Batch
from paceline.runner.cuda.driver import can_compile
from tests.runner import support
from tests.runner.support import Rows

ON_A_CARD = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a card"),
]
on_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or not can_compile(torch.device("cuda", 0)),
    reason="the kernel is for H100 and H200",
)


def rows_of(counts: Rows, block_size: int) -> tuple[Batch, int]:
    return support.rows_of(counts, block_size, "cuda")

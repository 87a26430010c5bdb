"""Memory through which columns go to a GPU."""

import numpy as np
import torch

from paceline.runner.cuda.staging import LEAST, Staging
from tests.gpu.support import ON_GPU

pytestmark = ON_GPU


def test_columns_of_any_size_arrive_and_leave_little_behind() -> None:
    staging, draw = Staging(torch.device("cuda")), np.random.default_rng(0)
    for turn in range(300):
        size = int(draw.integers(1, 3 * LEAST)) if turn % 3 == 0 else int(draw.integers(1, 99))
        column = draw.integers(-9, 9, size).astype(np.int32)
        other = draw.random(3, dtype=np.float32)
        there, beside = staging.send(column, other)
        torch.cuda.synchronize()
        assert (there.cpu().numpy() == column).all()
        assert (beside.cpu().numpy() == other).all()
    assert len(staging._free) <= 2

"""Batches with their lengths on the host, which need no copy from the GPU."""

from dataclasses import dataclass

import numpy as np

from paceline.core.arrays import I32
from paceline.runner.batch import Batch


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BatchWithLengths(Batch):
    """A batch with its lengths on the host, for backends that plan there."""

    starts: I32  # [rows + 1]; row_start
    contexts: I32  # [rows]; context


def lengths(batch: Batch) -> tuple[I32, I32]:
    """Return row starts and contexts on the host. A plain batch needs a copy from the GPU."""
    if isinstance(batch, BatchWithLengths):
        return batch.starts, batch.contexts
    read = (batch.row_start, batch.context)
    starts, contexts = (tensor.cpu().numpy().astype(np.int32) for tensor in read)
    return starts, contexts

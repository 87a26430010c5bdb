"""Typed aliases of torch functions without annotations."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from_numpy: Callable[[np.ndarray], Tensor] = torch.from_numpy
to_ints: Callable[[Tensor], list[int]] = Tensor.tolist  # of a tensor [n]
to_floats: Callable[[Tensor], list[float]] = Tensor.tolist  # likewise
split: Callable[..., tuple[Tensor, ...]] = torch.split
solve_triangular: Callable[..., Tensor] = torch.linalg.solve_triangular
vector_norm: Callable[..., Tensor] = torch.linalg.vector_norm


def indices(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Numbers on a device, without waiting for it."""
    found = torch.tensor(numbers, dtype=torch.int64)
    return found.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else found


def processors_of(device: torch.device) -> int:
    """The streaming multiprocessors of a GPU."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)

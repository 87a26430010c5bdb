"""Functions of torch that it does not annotate, with their types."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from_numpy: Callable[[np.ndarray], Tensor] = torch.from_numpy
to_ints: Callable[[Tensor], list[int]] = Tensor.tolist  # of a tensor [n]
vector_norm: Callable[..., Tensor] = torch.linalg.vector_norm

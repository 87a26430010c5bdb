"""Products with weights of 8 bits, by kernels compiled for this processor."""

from ctypes import byref

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.native.library import Matrix, library


class Native:
    """Whole numbers in, whole sums: a row's result is the same bits whatever is beside it."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        if dtype != torch.float32 or weight.device.type != "cpu":
            raise ConfigError(f"native products are of float32 on a CPU, not {dtype}")
        self._kernels = library()
        panel, depth = self._kernels.linear_panel(), self._kernels.linear_depth()
        whole, self._scale = quantised(weight)
        self._outputs, inputs = weight.shape
        padded = F.pad(whole, (0, -inputs % depth, 0, -self._outputs % panel))
        self._width = padded.shape[1]
        panels = padded.view(-1, panel, self._width // depth, depth)
        # [panels, width / depth, panel, depth]; linear.c draws it
        self._packed = panels.transpose(1, 2).contiguous()
        self._bias = bias
        self._matrix = byref(
            Matrix(
                self._packed.data_ptr(),
                self._scale.data_ptr(),
                None if bias is None else bias.data_ptr(),
                inputs,
                self._width,
                self._outputs,
            )
        )

    def __call__(self, x: Tensor) -> Tensor:
        out = x.new_empty(len(x), self._outputs)
        self._multiply(x, out, is_added=False)
        return out

    def add_to(self, total: Tensor, x: Tensor) -> None:
        self._multiply(x, total, is_added=True)

    def _multiply(self, x: Tensor, out: Tensor, is_added: bool) -> None:
        rows, kernels = len(x), self._kernels
        scratch_bytes = kernels.linear_scratch_bytes(rows, self._width)
        scratch = torch.empty(scratch_bytes, dtype=torch.uint8)
        kernels.linear(
            self._matrix,
            x.data_ptr(),
            x.stride(0),
            rows,
            out.data_ptr(),
            out.stride(0),
            is_added,
            scratch.data_ptr(),
            torch.get_num_threads(),
        )


def quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers of 8 bits, [outputs, inputs], and what they are multiples of, [outputs]."""
    scale = weight.abs().amax(dim=1).clamp_(min=1e-30).div_(127)
    return (weight / scale.unsqueeze(1)).round_().to(torch.int8), scale

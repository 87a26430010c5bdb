"""Applies packed masks to logits on the CPU."""

from functools import cache

import numpy as np
import torch
from torch import Tensor

from paceline.core.masks import MaskRows
from paceline.runner.native.library import is_available, library


def apply_masks(logits: Tensor, masks: MaskRows, lines: Tensor) -> None:
    """Give every token that a mask does not allow a logit of -inf. Line `lines[i]` has mask i.

    Allowed tokens keep their logit, so a row without numbers is still noticed.
    """
    bits, lines = np.ascontiguousarray(masks.rows), lines.contiguous()
    if logits.dtype != torch.float32 or not logits.is_contiguous() or not has_kernels():
        for line, own in zip(lines.tolist(), ~masks.allowed(logits.shape[1]), strict=True):
            logits[line].masked_fill_(torch.from_numpy(own), -torch.inf)
        return
    library().mask_logits(
        logits.data_ptr(),
        logits.shape[1],
        lines.data_ptr(),
        bits.ctypes.data,
        bits.shape[1],
        len(bits),
        torch.get_num_threads(),
    )


def without_forbidden(drafts: Tensor, masks: MaskRows) -> Tensor:
    """Drafts [rows, most] up to the first that its mask does not allow, and -1 behind them."""
    rows, most = drafts.shape
    number = torch.bincount(torch.from_numpy(masks.line) // (1 + most), minlength=rows)  # masks
    allowed = torch.where(number > 0, number - 1, most)
    return drafts.masked_fill(torch.arange(most) >= allowed[:, None], -1)


@cache
def has_kernels() -> bool:
    """Checked once: if compiling fails, every step would try again."""
    return is_available()

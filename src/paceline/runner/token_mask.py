"""Applies packed masks to logits on the CPU."""

import numpy as np
import torch
from torch import Tensor

from paceline.core.masks import MaskRows

# What to add to the logits of eight tokens, by the byte of their mask. Adding keeps NaN, so that a
# row without numbers is still noticed.
OCTETS = np.arange(256, dtype=np.uint8)[:, None]
BITS = np.unpackbits(OCTETS, axis=1, bitorder="little")
AMOUNTS = torch.from_numpy(np.where(BITS, 0.0, -np.inf)).float()  # [256, 8]


def apply_masks(logits: Tensor, masks: MaskRows, lines: Tensor) -> None:
    """Give every token that a mask does not allow a logit of -inf. Line `lines[i]` has mask i."""
    octets = torch.from_numpy(masks.bits.view(np.uint8))  # [masked, bytes]
    for line, own in zip(lines.tolist(), octets, strict=True):
        logits[line] += AMOUNTS[own.long()].flatten()[: logits.shape[1]]

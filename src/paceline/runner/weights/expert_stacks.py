"""Tensors of experts that HF's files keep in one tensor for all experts, plain or in MXFP4."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from paceline.runner.models.tensor_spec import Shape, StackedForm, TensorSpec

GROUP = 32  # numbers with one scale
SIZES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
VALUES = torch.tensor((*SIZES, *(-size for size in SIZES)))
BIAS = 127  # of the exponent that is stored


def dequantised(blocks: Tensor, scales: Tensor) -> Tensor:
    """Numbers [..., inputs] in float32, from bytes of two numbers each, [..., inputs / 32, 16], and
    exponents [..., inputs / 32]. The lower half of a byte is the earlier number."""
    halves = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2)  # [..., groups, 32]
    powers = scales.to(torch.int32).sub_(BIAS).unsqueeze(-1)
    return torch.ldexp(VALUES[halves.long()], powers).flatten(-2)


# What a tensor in MXFP4 is stored as: [experts, outputs, groups, bytes], [experts, outputs, groups]
BLOCKS, SCALES = "_blocks", "_scales"


class ExpertStacks:
    """Finds each expert's part of a tensor: see `StackedForm`. A part is read by itself."""

    def __init__(self, tensors: Iterable[TensorSpec]) -> None:
        self._forms: dict[str, StackedForm] = {
            tensor.name: tensor.stack for tensor in tensors if tensor.stack is not None
        }
        self._parts: dict[str, set[int]] = {}
        for form in self._forms.values():
            self._parts.setdefault(form.name, set()).add(form.part)
        self._files: dict[str, Any] = {}  # by the name of a tensor in them

    @property
    def is_quantized(self) -> bool:
        return any(stored.endswith(BLOCKS) for stored in self._files)

    def takes(self, stored: str) -> bool:
        """Whether a tensor of a file has parts of experts."""
        return stored.removesuffix(BLOCKS).removesuffix(SCALES) in self._parts

    def is_packed(self, stored: str) -> bool:
        """Whether it is one of the two that have a tensor in MXFP4."""
        return stored not in self._parts

    def add(self, stored: str, file: Any) -> None:
        self._files[stored] = file

    def shapes(self) -> dict[str, Shape]:
        """Of all parts that were found. A tensor of another number of experts has none."""
        found: dict[str, Shape] = {}
        for name, form in self._forms.items():
            shape = self._shape(form.name)
            if shape is not None and shape[0] == len(self._parts[form.name]):
                outputs = len(range(form.first, shape[-1], form.every))
                found[name] = outputs, *shape[1:-1]
        return found

    def _shape(self, stack: str) -> Shape | None:
        """[experts, inputs, outputs] or [experts, outputs]; None if the tensor was not found."""
        if stack in self._files:
            return tuple(self._slice(stack).get_shape())
        if {stack + BLOCKS, stack + SCALES} <= self._files.keys():
            experts, outputs, groups, _ = self._slice(stack + BLOCKS).get_shape()
            return experts, groups * GROUP, outputs
        return None

    def __contains__(self, name: str) -> bool:
        return name in self._forms

    def read(self, name: str) -> Tensor:
        form = self._forms[name]
        own = slice(form.first, None, form.every)
        if form.name in self._files:
            return self._slice(form.name)[form.part][..., own].t()
        packed = (self._slice(form.name + kind)[form.part][own] for kind in (BLOCKS, SCALES))
        return dequantised(*packed)

    def _slice(self, stored: str) -> Any:
        return self._files[stored].get_slice(stored)

"""Tensors that HF's files stack for all experts."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from paceline.runner.models.tensor_spec import Shape, StackedForm, TensorSpec


class ExpertStacks:
    """Finds each expert's part of a stacked tensor, and reads it alone: see `StackedForm`.

    Files that newer versions of transformers have saved may have inputs and outputs the other way
    round, which shows in the sizes.
    """

    def __init__(self, tensors: Iterable[TensorSpec]) -> None:
        found = [(tensor, tensor.stack) for tensor in tensors if tensor.stack is not None]
        self._forms: dict[str, StackedForm] = {tensor.name: form for tensor, form in found}
        self._wanted = {tensor.name: tensor.shape for tensor, _ in found}
        self._parts: dict[str, set[int]] = {}
        self.types = {form.name: tensor.types for tensor, form in found if tensor.types}
        for _, form in found:
            self._parts.setdefault(form.name, set()).add(form.part)
        self._files: dict[str, Any] = {}  # by tensor name

    def takes(self, stored: str) -> bool:
        """Is a tensor of a file stacked?"""
        return stored in self._parts

    def add(self, stored: str, file: Any) -> None:
        self._files[stored] = file

    def shapes(self) -> dict[str, Shape]:
        """The shapes of all parts. A tensor with another number of experts has none."""
        found: dict[str, Shape] = {}
        for name, form in self._forms.items():
            if form.name not in self._files:
                continue
            experts, *sizes = self._slice(form.name).get_shape()
            if experts == len(self._parts[form.name]):
                outputs = range(sizes.pop(self._output_dim(name)))[outputs_of(form)]
                found[name] = len(outputs), *sizes
        return found

    def __contains__(self, name: str) -> bool:
        """Is a tensor stacked in these files? Others of the same model may have it by itself."""
        return name in self._forms and self._forms[name].name in self._files

    def read(self, name: str) -> Tensor:
        form = self._forms[name]
        part = self._slice(form.name)[form.part].movedim(self._output_dim(name), 0)
        return part[outputs_of(form)]

    def _output_dim(self, name: str) -> int:
        """The output dimension in the part of an expert."""
        form, (_, *inputs) = self._forms[name], self._wanted[name]
        _, *sizes = self._slice(form.name).get_shape()
        is_turned = form.outputs < 0 and sizes[:-1] != inputs and sizes[1:] == inputs
        return 0 if is_turned else dim_of(form)

    def _slice(self, stored: str) -> Any:
        return self._files[stored].get_slice(stored)


def outputs_of(form: StackedForm) -> slice:
    """The outputs of a tensor among those that are stacked."""
    return slice(form.first, form.end, form.every)


def dim_of(form: StackedForm) -> int:
    """The output dimension in the part of an expert, as it is published."""
    return form.outputs if form.outputs < 0 else form.outputs - 1

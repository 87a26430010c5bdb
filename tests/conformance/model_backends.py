"""What the suite needs of a backend that computes models, and the backends that it finds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import pytest
import torch
from torch import Tensor

from paceline import Scheduler
from paceline.runner.models.layer_groups import BackendSupport
from tests.conformance.architectures import Case
from tests.runner.sequences import LoadedModel

Logits = Callable[[Sequence[int]], Tensor]  # of every position of some tokens
# Modules that list BACKENDS. One whose libraries are not installed is passed over.
SOURCES = (
    "tests.golden.torch_backend",
    "tests.conformance.native_backend",
    "tests.gpu.cuda_backend",
)


@dataclass(frozen=True)
class Comparison:
    """A model on a backend, and what is expected of it.

    tolerance   of each logit
    distance    of all of them, as a part of the whole, where roundings add up instead
    """

    model: LoadedModel
    expected: Logits
    tolerance: float = 1e-4
    distance: float | None = None

    def check(self, ours: Tensor, expected: Tensor) -> None:
        if self.distance is None:
            torch.testing.assert_close(ours, expected, rtol=self.tolerance, atol=self.tolerance)
        else:
            assert (ours - expected).norm() <= self.distance * expected.norm()


class ModelBackend(Protocol):
    """One way to compute models."""

    @property
    def name(self) -> str: ...

    @property
    def support(self) -> BackendSupport: ...

    @property
    def refuses(self) -> bool:
        """Whether it refuses what it does not support; otherwise something else computes that."""
        ...

    @property
    def marks(self) -> Sequence[pytest.MarkDecorator]:
        """Of its tests."""
        ...

    def cases(self) -> list[Case]: ...

    def compared(self, case: Case) -> Comparison: ...

    def runner(self, case: Case, scheduler: Scheduler) -> Any:
        """The runner that carries out plans with a model of the case."""
        ...


def backends() -> list[ModelBackend]:
    found: list[ModelBackend] = []
    for source in SOURCES:
        try:
            found += import_module(source).BACKENDS
        except ImportError:
            continue
    return found


def every_case(backends: Sequence[ModelBackend]) -> list[Any]:
    """Pairs of backend and case, as parameters of a test."""
    return [
        pytest.param((backend, case), id=f"{backend.name}: {case}", marks=backend.marks)
        for backend in backends
        for case in backend.cases()
    ]

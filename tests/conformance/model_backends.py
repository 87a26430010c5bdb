"""What the suite needs of a backend that computes models, the backends that it finds, and how their
logits are compared."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import pytest
import torch
from torch import Tensor

from paceline import Scheduler
from paceline.core.errors import ConfigError
from paceline.runner.models.layer_groups import BackendSupport
from tests.conformance.architectures import Case, refusal, tokens_of
from tests.runner.sequences import LoadedModel, Sequences
from tests.runner.support import Piece, batch_of

BLOCK = 4
Step = dict[str, int] | tuple[str, str]  # positions by sequence; or what happens to one of them
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
    def marks(self) -> Sequence[pytest.MarkDecorator]:
        """Of its tests."""
        ...

    def cases(self) -> list[Case]:
        """Models that it computes, or refuses."""
        ...

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


def pairs_of(backend: ModelBackend, cases: Iterable[Case]) -> list[Any]:
    """A backend and each case that it computes, as parameters of a test."""
    return [
        pytest.param((backend, case), id=f"{backend.name}: {case}", marks=backend.marks)
        for case in cases
        if refusal(case, backend.support) is None
    ]


def every_case(backends: Sequence[ModelBackend]) -> list[Any]:
    return [pair for backend in backends for pair in pairs_of(backend, backend.cases())]


def check_refusals(backend: ModelBackend, cases: Iterable[Case]) -> None:
    """A backend refuses the cases that it does not compute, and names what it lacks."""
    for case in cases:
        if reason := refusal(case, backend.support):
            with pytest.raises(ConfigError, match=re.escape(reason)):
                backend.compared(case)


# -- sequences, step by step ----------------------------------------------------


def follow(compared: Comparison, lengths: dict[str, int], steps: Sequence[Step]) -> None:
    """Compute sequences as the steps say, and compare all logits on the way."""
    sequences = Sequences(compared.model, BLOCK)
    truth: dict[str, Tensor] = {}
    for name, length in lengths.items():
        tokens = tokens_of(length, seed=length)
        sequences.add(name, tokens)
        truth[name] = compared.expected(tokens)
    ours: list[Tensor] = []
    expected: list[Tensor] = []
    for step in steps:
        if isinstance(step, tuple):
            what, name = step
            getattr(sequences, what)(name)
            continue
        first = dict(sequences.computed)
        for name, logits in sequences.step(**step).items():
            ours.append(logits)
            expected.append(truth[name][first[name] : sequences.computed[name]])
    compared.check(torch.cat(ours), torch.cat(expected))
    assert sequences.computed == lengths, "something was left out"


def compare_wanted(
    model: LoadedModel, pieces: Sequence[Piece], choices: Sequence[list[int]]
) -> None:
    """Wanted positions come in any order and several times; all are in the store afterwards."""
    batch = batch_of(pieces, BLOCK)
    stored = model.store(8, BLOCK)
    every = model.forward(batch, stored).cpu()
    for wanted in choices:
        kv = model.store(8, BLOCK)
        some = model.forward(batch, kv, torch.tensor(wanted, dtype=torch.int64)).cpu()
        torch.testing.assert_close(some, every[wanted], rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(kv.content, stored.content, rtol=1e-5, atol=1e-5)

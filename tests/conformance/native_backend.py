"""The decoder in C, with weights of 8 bits and of 4."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar

import pytest
from torch import Tensor

from paceline import Scheduler
from paceline.runner.layers.native_stack import NATIVE, NativeStack
from paceline.runner.models.layer_groups import BackendSupport
from paceline.runner.models.model import Model
from paceline.runner.native.library import is_available
from paceline.runner.weights.dummy import Dummy
from tests.conformance.architectures import Case, distinct, few_cases
from tests.conformance.model_backends import Comparison
from tests.runner.sequences import OnCPU, logits_of
from tests.runner.support import stepped
from tests.runner.test_runner import runner_for


class FourBits(Dummy):
    """Weights that 4 bits hold."""

    def read(self, name: str) -> Tensor:
        tensor = super().read(name)
        return stepped(tensor) if tensor.dim() == 2 else tensor


@cache
def loaded(case: Case, kind: type[Dummy]) -> Model:
    model = Model.load(kind(case.config(), seed=3), weights="int8")
    assert isinstance(model._layers, NativeStack)  # pyright: ignore[reportPrivateUsage]
    return model


@dataclass(frozen=True)
class NativeBackend:
    """Compared with torch layers that have the same rounded weights: roundings of activations may
    fall to the other side here and there, and nothing else may differ."""

    name: str
    kind: type[Dummy]
    cases: Callable[[], list[Case]]
    support: ClassVar[BackendSupport] = NATIVE
    marks: ClassVar[list[pytest.MarkDecorator]] = [
        pytest.mark.skipif(not is_available(), reason="needs a C compiler")
    ]

    def compared(self, case: Case) -> Comparison:
        model = loaded(case, self.kind)
        in_torch = partial(logits_of, OnCPU(model, "paged"))
        return Comparison(OnCPU(model, "native"), in_torch, distance=0.03)

    def runner(self, case: Case, scheduler: Scheduler) -> Any:
        return runner_for(loaded(case, self.kind), scheduler, "native")


BACKENDS = [
    NativeBackend("native int8", Dummy, lambda: distinct(few_cases(0, NATIVE), NATIVE)),
    NativeBackend("native int4", FourBits, lambda: distinct(few_cases(5, NATIVE), NATIVE)),
]

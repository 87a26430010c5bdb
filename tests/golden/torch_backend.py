"""Layers in torch with every attention for a CPU, compared with transformers."""

from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import pytest

from paceline import Scheduler
from paceline.runner.layers.torch_features import TORCH
from paceline.runner.models.layer_groups import BackendSupport, features_of
from paceline.runner.models.model import Model
from paceline.runner.weights.files import open_checkpoint
from tests.conformance.architectures import Case, few_cases, spec_of
from tests.conformance.model_backends import Comparison
from tests.conformance.test_attention import found
from tests.golden.support import is_known, saved, their_logits
from tests.runner.sequences import OnCPU
from tests.runner.test_runner import runner_for

ATTENTIONS = found()
OF_ATTENTION = {
    f"layers.{name}"
    for name in ("attention.window", "attention.score_cap", "attention.sinks", "latent")
}


@cache
def both(case: Case) -> tuple[Any, Model]:
    """Theirs, and ours as read from what they saved."""
    with TemporaryDirectory() as folder:
        theirs = saved(case, Path(folder))
        return theirs, Model.load(open_checkpoint(Path(folder)))


@dataclass(frozen=True)
class TorchBackend:
    attention: str
    support: ClassVar[BackendSupport] = TORCH
    marks: ClassVar[list[pytest.MarkDecorator]] = []

    @property
    def name(self) -> str:
        return f"torch, {self.attention}"

    def cases(self) -> list[Case]:
        """Every variant with one attention. The others are compared by `test_attention` too, and
        here with architectures that attend in different ways."""
        known = [case for case in few_cases(3) if is_known(case)]
        if self.attention == ATTENTIONS[0]:
            return known
        kinds: dict[frozenset[str], Case] = {}
        for case in known:
            if case.variant == "plain":
                features = features_of(spec_of(case))
                kinds.setdefault(frozenset(one for one in features if one in OF_ATTENTION), case)
        return list(kinds.values())

    def compared(self, case: Case) -> Comparison:
        theirs, ours = both(case)
        return Comparison(OnCPU(ours, self.attention), partial(their_logits, theirs))

    def runner(self, case: Case, scheduler: Scheduler) -> Any:
        return runner_for(both(case)[1], scheduler, self.attention)


BACKENDS = [TorchBackend(attention) for attention in ATTENTIONS]

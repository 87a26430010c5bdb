"""One load under several settings, each in a process of its own."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from typing import Any, TypeVar

import numpy as np

from paceline.core.arrays import F64, I32
from paceline.simulator.loads import LoadSource, Workload
from paceline.simulator.results.figures import COMPLETE, SimulationReport
from paceline.simulator.server import ServerModel, SimulatedServer

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Variant:
    """Settings under a name."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, eq=False)
class VariantResult:
    """What came of a load under a variant; latencies by request, NaN where it did not complete."""

    name: str
    report: SimulationReport
    ids: Sequence[str]
    tenants: Sequence[str]
    prompts: I32
    ttft_s: F64
    e2e_s: F64
    explained: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Experiment:
    """What all variants share."""

    source: LoadSource
    model: ServerModel
    targets_ms: Mapping[str, float] = field(default_factory=dict[str, float])
    explained: tuple[str, ...] = ()

    def run(self, variant: Variant) -> VariantResult:
        return self.run_on(self.source.workload(), variant)

    def run_on(self, load: Workload, variant: Variant) -> VariantResult:
        settings = {**self.model.settings, **variant.settings}
        model = replace(self.model, settings=settings)
        run = SimulatedServer(model, load.requests, load.outputs, self.explained).run()
        log = run.log
        good = np.isin(np.array(log.outcome, object), COMPLETE)
        return VariantResult(
            variant.name,
            SimulationReport.of(run, self.targets_ms),
            [one.id for one in run.requests],
            [one.tenant for one in run.requests],
            log.prompts,
            np.where(good, log.first - log.arrival, np.nan),
            np.where(good, log.ended - log.arrival, np.nan),
            run.explained,
        )

    def run_all(self, variants: Sequence[Variant], jobs: int) -> list[VariantResult]:
        """In the order of the variants, up to `jobs` at a time."""
        return in_processes(self.run, variants, jobs)


def in_processes(function: Callable[[T], R], items: Iterable[T], jobs: int) -> list[R]:
    """The result of each item, in order; in this process if there is one job."""
    listed = list(items)
    if min(jobs, len(listed)) <= 1:
        return [function(item) for item in listed]
    with ProcessPoolExecutor(min(jobs, len(listed)), get_context("spawn")) as pool:
        return list(pool.map(partial(function), listed))


def variants_of(policies: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> list[Variant]:
    """Every policy with every set of settings."""
    found: list[Variant] = []
    for policy in policies:
        for given in settings or [{}]:
            named = [policy, *(f"{name}={value}" for name, value in given.items())]
            found.append(Variant(" ".join(named), {**given, "policy": policy}))
    return found

"""Variants of one load, who gains, and at whose expense."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from paceline.core.errors import ConfigError
from paceline.simulator.experiment import (
    Experiment,
    Variant,
    VariantResult,
    comparison_page,
    explanations,
    largest_changes,
    rows_of,
    sentence,
    to_dict,
    undominated,
    variants_of,
)
from paceline.simulator.loads import Workload
from paceline.simulator.requests import SimulatedRequest
from paceline.workloads.call import Segment
from tests.simulator.support import load, model


def test_every_policy_with_every_set_of_settings() -> None:
    found = variants_of(["fcfs", "fair"], [{"max_num_seqs": 2}, {"max_num_seqs": 4}])
    assert [one.name for one in found] == [
        "fcfs max_num_seqs=2",
        "fcfs max_num_seqs=4",
        "fair max_num_seqs=2",
        "fair max_num_seqs=4",
    ]
    assert found[3].settings == {"max_num_seqs": 4, "policy": "fair"}
    assert variants_of(["fcfs"], []) == [Variant("fcfs", {"policy": "fcfs"})]


def test_processes_give_the_results_of_one_process() -> None:
    experiment = Experiment(load(6), model(), explained=("3.0",))
    variants = variants_of(["fcfs", "shortest"], [])
    alone, apart = (experiment.run_all(variants, jobs) for jobs in (1, 2))
    for one, other in zip(alone, apart, strict=True):
        assert one.e2e_s.tolist() == other.e2e_s.tolist()
        assert one.report == other.report
        assert "'3.0':" in one.explained["3.0"] == other.explained["3.0"]


class GreedyTenant:
    """Twenty requests of one tenant at once, and then one of another."""

    def workload(self) -> Workload:
        requests = [
            SimulatedRequest(f"g{n}", 0.0, (Segment(f"{n}", 40),), 30, "greedy") for n in range(20)
        ]
        polite = [
            SimulatedRequest(f"p{n}", 0.1, (Segment(f"p{n}", 9),), 5, "polite") for n in range(3)
        ]
        return Workload(requests + polite)


@pytest.fixture(scope="module")
def results() -> list[VariantResult]:
    experiment = Experiment(GreedyTenant(), model(), explained=("p0",))
    return experiment.run_all(variants_of(["fcfs", "fair"], []), 1)


def test_the_sentence_says_who_pays(results: Sequence[VariantResult]) -> None:
    said = sentence(*results)
    assert said.startswith("fair instead of fcfs: sooner first tokens for tenant polite (")
    assert "at the expense of tenant greedy (" in said
    assert "throughput" in said
    assert "no group waits noticeably longer" in sentence(results[0], results[0])


def test_the_requests_that_gain_and_lose_most(results: Sequence[VariantResult]) -> None:
    gained, lost = largest_changes(results[0], results[1], 2)
    assert {one.id for one in gained} <= {"p0", "p1", "p2"}
    assert all(one.after_s < one.before_s for one in gained)
    assert all(one.tenant == "greedy" and one.after_s > one.before_s for one in lost)


def test_explanations_in_both_worlds(results: Sequence[VariantResult]) -> None:
    told = explanations(results)["p0"]
    assert list(told) == ["fcfs", "fair"]
    assert told["fcfs"] != told["fair"]
    experiment = Experiment(GreedyTenant(), model(), explained=("nobody",))
    with pytest.raises(ConfigError, match="no request 'nobody'"):
        explanations(experiment.run_all(variants_of(["fcfs"], []), 1))


def test_the_best_are_those_that_no_other_beats(results: Sequence[VariantResult]) -> None:
    best = undominated(results)
    assert any(best)
    assert [row[-1] for row in rows_of(results)] == ["*" if one else "" for one in best]
    assert undominated([results[0]]) == [True]
    assert to_dict(results)["best"] == [
        one.name for one, yes in zip(results, best, strict=True) if yes
    ]


def test_groups_by_length_without_tenants(results: Sequence[VariantResult]) -> None:
    class Plain(GreedyTenant):
        def workload(self) -> Workload:
            found = super().workload().requests
            return Workload(
                [SimulatedRequest(r.id, r.at_s, r.content, r.output_len) for r in found]
            )

    pair = Experiment(Plain(), model()).run_all(variants_of(["fcfs", "shortest"], []), 1)
    assert "prompts up to 40 tokens" in sentence(*pair) or "no group" in sentence(*pair)


def test_the_page(results: Sequence[VariantResult]) -> None:
    text = comparison_page("compared", results)
    assert text.count("<circle") == 2
    assert "at the expense of" in text
    named = [replace(one, tenants=[f"<{name}>" for name in one.tenants]) for one in results]
    assert "tenant &lt;" in comparison_page("compared", named)
    assert "tenant <" not in comparison_page("compared", named)
    assert np.isfinite(results[0].e2e_s).all()

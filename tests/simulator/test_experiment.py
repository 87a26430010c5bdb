"""Variants of one load."""

from paceline.simulator.experiment import Experiment, Variant, variants_of
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

"""Run vLLM's own tests of its scheduler on our class.

    VENV/bin/python tests/integrations/vllm/inside/upstream_suite.py FOLDER

FOLDER is the unpacked source distribution of vLLM 0.13.0, VENV an environment made by
`benchmarks/peers/vllm_scheduler/setup.sh` with pytest. It fails unless exactly the tests fail that
`LEFT_OUT` lists. With `--theirs` the tests run on vLLM's own classes.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[4]
FILES = ("test_scheduler.py", "test_async_scheduler.py")
MODEL = ROOT / "benchmarks" / "peers" / "vllm_scheduler" / "model" / "config.json"
THEIR_MODEL = {"vocab_size": 50272, "max_position_embeddings": 2048}  # as opt-125m has

LEFT_OUT = {
    "a multimodal model": (
        "test_schedule_multimodal_requests",
        "test_schedule_partial_requests",
        "test_no_mm_input_chunking",
        "test_ec_connector_text_only_request",
        "test_ec_connector_cache_hit_external_load",
        "test_ec_connector_cache_miss_computes_locally",
        "test_ec_connector_with_partial_cache_hit_multi_round",
        "test_ec_connector_schedule_multiple_requests",
        "test_ec_connector_unable_to_allocate",
        "test_ec_connector_allocate_encoder_tokens_with_external_load",
        "test_priority_scheduling_ec_connector_preemption_and_resumption",
    ),
    "a KV connector": (
        "test_kv_connector_basic",
        "test_external_prefix_cache_metrics",
        "test_kv_connector_unable_to_allocate",
        "test_kv_connector_handles_preemption",
        "test_priority_scheduling_preemption_and_resumption_when_out_of_kv",
    ),
    "steps in flight without async_scheduling, as with pipeline parallelism": (
        "test_schedule_concurrent_batches",
        "test_preempt_during_execution",
    ),
    "vLLM's queues and block manager as they are inside": (
        "test_stop_via_update_from_output",
        "test_memory_leak",
    ),
    "two open requests of one id": (
        "test_priority_scheduling_preemption",
        "test_priority_scheduling_no_preemption_when_space_available",
    ),
}


class Swap:
    """Gives the tests a model that is here, and our class."""

    def __init__(self, model: str, ours: bool) -> None:
        self.model, self.ours = model, ours
        self.outcomes: dict[str, bool] = {}

    def pytest_collection_finish(self) -> None:
        from vllm.config import ModelConfig

        from paceline.integrations.vllm import PacelineScheduler

        def local(model: str, **settings: Any) -> ModelConfig:
            assert model == "facebook/opt-125m", f"there is no {model} here"
            return ModelConfig(self.model, **settings | {"skip_tokenizer_init": True})

        swapped: dict[str, Any] = {"ModelConfig": local}
        if self.ours:
            swapped |= dict.fromkeys(("Scheduler", "AsyncScheduler"), PacelineScheduler)
        for name in [name for name in sys.modules if name.startswith("tests.v1.core")]:
            for own in swapped.keys() & vars(sys.modules[name]).keys():
                setattr(sys.modules[name], own, swapped[own])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.rpartition("::")[2]
        self.outcomes[name] = self.outcomes.get(name, True) and report.passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--theirs", action="store_true")
    args = parser.parse_args()
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="CRITICAL", VLLM_NO_USAGE_STATS="1")
    sys.path.insert(0, str(ROOT / "src"))
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        # Without the conftest files, which need what only whole engines need.
        skipped = shutil.ignore_patterns("conftest.py")
        shutil.copytree(args.folder / "tests", folder / "tests", ignore=skipped)
        (folder / "pytest.ini").write_text("[pytest]\nmarkers = cpu_test: vLLM's own\n")
        (folder / "model").mkdir()
        model = json.loads(MODEL.read_text()) | THEIR_MODEL
        (folder / "model" / "config.json").write_text(json.dumps(model))
        os.chdir(folder)
        swap = Swap(str(folder / "model"), ours=not args.theirs)
        files = [str(folder / "tests" / "v1" / "core" / name) for name in FILES]
        pytest.main(["-q", "--tb=no", "-p", "no:cacheprovider", "-W", "ignore", *files], [swap])
    sys.exit(summary(swap.outcomes))


def summary(outcomes: dict[str, bool]) -> int:
    """Print which tests fail and what they need; 1 if other ones fail than are listed."""
    failed = [name for name, passed in outcomes.items() if not passed]
    reasons = {test: reason for reason, tests in LEFT_OUT.items() for test in tests}
    listed = [name for name in outcomes if name.partition("[")[0] in reasons]
    print(f"{len(outcomes) - len(failed)} of {len(outcomes)} pass; {len(failed)} need")
    for reason, tests in LEFT_OUT.items():
        print(f"  {sum(name.partition('[')[0] in tests for name in failed):3d}  {reason}")
    for name in sorted(set(failed) - set(listed)):
        print(f"fails and is not listed: {name}")
    for name in sorted(set(listed) - set(failed)):
        print(f"is listed and passes: {name}")
    return int(set(failed) != set(listed))


if __name__ == "__main__":
    main()

"""An invariant model gives every token the same log-probability, bit for bit, in any schedule."""

from collections import Counter
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from paceline import Scheduler
from paceline.runner.adapters.host import HostAdapters, ResidentAdapters
from paceline.runner.attention_backend import load as load_attention
from paceline.runner.kv_store import KVStore
from paceline.runner.models.model import Model
from paceline.runner.native.library import is_available
from paceline.runner.parallel.group import RankGroup
from paceline.runner.runner import TorchRunner
from paceline.runner.weights.dummy import Dummy
from tests.conformance.architectures import Case
from tests.property.same_tokens import Schedule, differences
from tests.runner.adapters.support import write_adapter
from tests.runner.drafters import drafter_for
from tests.runner.driving import for_states
from tests.runner.parallel.ranks import Repeated, on_ranks
from tests.runner.support import groups_for, tiny
from tests.seeds import seeds

if not is_available():
    pytest.skip("needs a C compiler", allow_module_level=True)

ATTENTION = "native"
# By name: a model, the precision of its linears, and whether the C kernels compute all of it.
MODELS: dict[str, tuple[Any, str]] = {
    "dense": (tiny(hidden_size=40, vocab_size=67), "float32"),
    "8 bits": (tiny(), "int8"),
    "4 bits": (tiny().loaded_as("int4"), "int8"),
    "fp8": (tiny().loaded_as("fp8"), "int8"),
    "MoE": (Case("qwen3moe").config(), "float32"),
    "windows": (Case("gemma2").config(), "float32"),
    "shared experts": (Case("qwen3next").config(), "float32"),  # with states
    "convolutions": (Case("lfm2").config(), "int8"),
}


@cache
def model_of(name: str, is_invariant: bool = True) -> Model:
    config, weights = MODELS[name]
    return Model.load(Dummy(config, seed=3), weights=weights, is_invariant=is_invariant)


def runner_for(model: Model, scheduler: Scheduler, host: HostAdapters | None = None) -> TorchRunner:
    config = scheduler.config
    groups = groups_for(model.config, config.cache)
    kv = KVStore(model.config, config.cache.num_blocks, config.cache.block_size, groups=groups)
    sizes = config.step.max_num_seqs, config.step.max_model_len
    drafter = drafter_for(model, config.speculation)
    runner = TorchRunner(model, kv, load_attention(ATTENTION), drafter, *sizes)
    runner.reserve_host(config.preemption.swap_space)
    if host is not None:
        slots = config.step.max_num_seqs
        runner.use_adapters(ResidentAdapters(host, model.adapters, config.step.max_loras, slots))
    return runner


def schedules(model: Model, count: int = 2, **fields: Any) -> list[Schedule]:
    """A pool has room for states of a few sequences, and the others are swapped. They are computed
    one position at a time, so one schedule has to do."""
    changes: dict[str, Any] = {}
    if model.config.states is not None:
        count = 1
        changes = for_states({"block_size": 8}, model.config)
        changes |= {"num_blocks": 14 + 3 * changes["state_blocks"], "preemption_mode": "swap"}
        changes |= {"swap_space": 64, "max_num_batched_tokens": 16, "enable_prefix_caching": True}
    return [Schedule(seed, changes=changes, **fields) for seed in seeds(count)]


def check(model: Model, runs: list[Schedule], host: HostAdapters | None = None) -> Counter[str]:
    """What happened in these schedules, of which no token has other bits than alone."""
    seen: Counter[str] = Counter()
    for schedule in runs:
        assert not differences(schedule, lambda scheduler: runner_for(model, scheduler, host))
        seen += schedule.seen
    return seen


@pytest.mark.parametrize("name", MODELS)
def test_every_log_probability_has_the_bits_that_it_has_alone(name: str) -> None:
    model = model_of(name)
    seen = check(model, schedules(model))
    assert seen["tokens"] > 150
    assert seen["swapped"] if model.config.states is not None else seen["drafted"]
    assert seen["preempted"]


def test_adapters_of_other_rows_change_no_bit(tmp_path: Path) -> None:
    """Rows with adapters are computed one by one, and the others as in a step without adapters."""
    model = model_of("dense")
    host = HostAdapters(model.targets, 4)
    for seed, name in enumerate("xy"):
        folder = write_adapter(tmp_path / name, model.config, seed, r=4)
        host.keep(name, host.read(str(folder)))
    check(model, schedules(model, adapters=("", "x", "y")), host)


def test_drafts_that_are_drawn_at_random_change_no_token() -> None:
    model, drafting = model_of("dense"), {"proposer": "draft_model", "num_speculative_tokens": 2}
    assert check(model, [Schedule(one, changes=drafting) for one in seeds(1)])["drafted"]


def test_two_ranks_add_in_one_order() -> None:
    """Rank 1 runs the plans of rank 0, with a runner for each of its schedulers."""
    config, sent = tiny(vocab_size=64), SimpleQueue[Any]()

    def work(group: RankGroup) -> list[str]:
        model = Model.load(Dummy(config, seed=3), group=group, is_invariant=True)
        if not group.is_first:
            runner: Any = None
            while (given := sent.get()) is not None:
                if isinstance(given, Scheduler):
                    runner = runner_for(model, given)
                    continue
                runner.launch(given)
                if not given.empty:
                    runner.wait()
            return []

        def runner_of(scheduler: Scheduler) -> Repeated:
            sent.put(scheduler)
            return Repeated(runner_for(model, scheduler), sent)

        changes = {"num_speculative_tokens": 0}
        schedule = Schedule(0, changes=changes, most_requests=4, most_tokens=12)
        try:
            return differences(schedule, runner_of)
        finally:
            sent.put(None)

    assert on_ranks(2, work) == [[], []]


def test_a_model_that_is_not_invariant_fails() -> None:
    model = model_of("dense", is_invariant=False)
    assert any(
        differences(schedule, lambda scheduler: runner_for(model, scheduler))
        for schedule in schedules(model)
    )

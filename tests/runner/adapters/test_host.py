"""Adapters in mixed batches under the real scheduler, and their slots on the device."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import Request, Scheduler
from paceline.core.plan import Admitted, Plan, Rows
from paceline.runner.adapters.host import AdapterTable, HostAdapters, ResidentAdapters
from paceline.runner.attention_backend import load
from paceline.runner.kv_store import KVStore
from paceline.runner.models.model import Model
from paceline.runner.proposers.ngram import Ngram
from paceline.runner.runner import TorchRunner
from paceline.runner.weights.dummy import Dummy
from tests.runner.adapters.support import Merged, write_adapter
from tests.runner.driving import SETTINGS, drive, requests
from tests.runner.support import tiny
from tests.runner.test_runner import ALL_WAYS, outputs

NAMES = ("", "x", "y", "z")
OF_REQUEST = ("x", "", "x", "y", "z")  # two of one adapter, which share a prefix with the model's


class Adapted:
    """A model, three adapters, and a merged model of each."""

    def __init__(self, folder: Path) -> None:
        base = Dummy(tiny(), seed=3)
        self.model = Model.load(base)
        self.merged = {"": self.model}
        self.host = HostAdapters(self.model.targets, 8)
        for seed, name in enumerate(NAMES[1:]):
            own = write_adapter(folder / name, tiny(), seed, r=2 + 2 * seed)
            self.merged[name] = Model.load(Merged(base, own))
            self.host.keep(name, self.host.read(str(own)))

    def expected(self, asked: list[Request], **changes: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in NAMES:
            own = [replace(one, adapter="") for one in asked if one.adapter == name]
            found |= outputs(self.merged[name], own, **changes)[0]
        return found

    def outputs(
        self, asked: list[Request], depth: int = 1, max_loras: int = 2, **changes: Any
    ) -> tuple[dict[str, Any], Scheduler]:
        scheduler = Scheduler.create(**{**SETTINGS, **changes, "max_loras": max_loras})
        config = scheduler.config
        kv = KVStore(self.model.config, config.cache.num_blocks, config.cache.block_size)
        slots = config.step.max_num_seqs
        sizes = slots, config.step.max_model_len
        own = ResidentAdapters(self.host, self.model.adapters, max_loras, slots)
        proposer = Ngram(config.speculation)
        runner = TorchRunner(self.model, kv, load("paged"), proposer, *sizes)
        runner.use_adapters(own)
        runner.reserve_host(config.preemption.swap_space)
        return drive(scheduler, runner, asked, depth), scheduler


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    return Adapted(tmp_path_factory.mktemp("adapters"))


def asked(**fields: Any) -> list[Request]:
    pairs = zip(requests(**fields), OF_REQUEST, strict=True)
    return [replace(one, adapter=adapter) for one, adapter in pairs]


@pytest.fixture(scope="module")
def expected(adapted: Adapted) -> dict[str, Any]:
    return adapted.expected(asked())


@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_mixed_batch_gives_the_tokens_of_merged_weights(
    adapted: Adapted, expected: dict[str, Any], way: str
) -> None:
    found, scheduler = adapted.outputs(asked(), **ALL_WAYS[way])
    assert found == expected
    assert len({tuple(ids[:10]) for ids in expected.values()}) == len(expected)
    if "recomputed" in way or "swapped" in way:
        assert scheduler.stats.preemptions, "the pool was not tight"


def test_samples_and_beams_of_an_adapter(adapted: Adapted) -> None:
    several = [replace(one, n=2, seed=5) for one in asked()[:4]]
    several[2] = replace(several[2], beam_width=3)
    assert adapted.outputs(several)[0] == adapted.expected(several)


def test_a_prefix_is_found_by_requests_of_the_same_adapter_alone(adapted: Adapted) -> None:
    first, other, again = (
        Request(id=name, prompt=[7] * 16, max_tokens=4, adapter=adapter)
        for name, adapter in (("a", "x"), ("b", ""), ("c", "x"))
    )
    scheduler = Scheduler.create(**SETTINGS, max_loras=1)
    kv = KVStore(adapted.model.config, 64, 4)
    own = ResidentAdapters(adapted.host, adapted.model.adapters, 1, 8)
    runner = TorchRunner(
        adapted.model, kv, load("paged"), Ngram(scheduler.config.speculation), 8, 64
    )
    runner.use_adapters(own)
    found = {}
    for request, hits in ((first, 0), (other, 0), (again, 12)):
        before = scheduler.stats.to_dict()["prefix_hits"]
        found |= drive(scheduler, runner, [request])
        assert scheduler.stats.to_dict()["prefix_hits"] - before == hits
    assert found == adapted.expected([first, other, again])


NO_ROWS = Rows(*(np.empty(0, np.int32) for _ in range(8)))  # pyright: ignore[reportArgumentType]


def plan(released: tuple[int, ...] = (), **admitted: int) -> Plan:
    """Slots by the name of their adapter; "_" is none."""
    new = tuple(
        Admitted(
            slot, Request("a", [1], adapter=name.strip("_")), np.ones(1, np.int32), 0, (), False
        )
        for name, slot in admitted.items()
    )
    return Plan(0, NO_ROWS, np.empty(0, np.int32), admitted=new, released=released)


@pytest.fixture
def filled() -> list[tuple[int, str]]:
    return []


@pytest.fixture
def table(filled: list[tuple[int, str]]) -> AdapterTable:
    return AdapterTable(2, 4, lambda index, identity: filled.append((index, identity)))


def test_slots_of_one_adapter_share_its_index(
    table: AdapterTable, filled: list[tuple[int, str]]
) -> None:
    assert not table.apply(plan(_=3))
    assert not table.any_used
    assert table.apply(plan(x=0))
    assert table.apply(plan(y=1, x=2))
    assert table.of_slot.tolist() == [0, 1, 0, -1]
    assert filled == [(0, "x"), (1, "y")]


def test_an_adapter_stays_until_its_index_is_needed(
    table: AdapterTable, filled: list[tuple[int, str]]
) -> None:
    table.apply(plan(x=0, y=1))
    table.apply(plan(released=(0, 1)))
    assert not table.any_used
    table.apply(plan(x=3))  # it is still there
    table.apply(plan(z=0))  # y is the least recently used
    assert filled == [(0, "x"), (1, "y"), (1, "z")]
    assert table.of_slot.tolist() == [1, -1, -1, 0]


def test_a_slot_may_change_hands_within_a_plan(
    table: AdapterTable, filled: list[tuple[int, str]]
) -> None:
    table.apply(plan(x=0, y=1))
    table.apply(plan(released=(0,), z=0))
    assert filled[-1] == (0, "z")
    assert table.of_slot.tolist() == [0, 1, -1, -1]


def test_more_adapters_than_table_are_a_mistake_of_the_scheduler(table: AdapterTable) -> None:
    table.apply(plan(x=0, y=1))
    with pytest.raises(AssertionError, match="max_loras"):
        table.apply(plan(z=2))

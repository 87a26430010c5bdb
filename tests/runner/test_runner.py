"""The runner under the real scheduler: every way of scheduling gives the same tokens."""

from typing import Any

import numpy as np
import pytest
import torch

from paceline import Request, Scheduler
from paceline.core.capabilities import StepCost
from paceline.core.masks import TokenMasks
from paceline.core.plan import Plan
from paceline.core.sampling import Sampling
from paceline.runner.attention_backend import load
from paceline.runner.kv_store import KVStore
from paceline.runner.models.model import Model
from paceline.runner.proposer import Drafter
from paceline.runner.proposers.ngram import Ngram
from paceline.runner.runner import TorchRunner
from paceline.runner.sampling.token_choice import TokenCounts
from paceline.runner.weights.dummy import Dummy
from paceline.testing.oracle import OracleRunner
from tests.property.schedules import Drive
from tests.runner.driving import SETTINGS, TIGHT, WAYS, drive, for_states, requests
from tests.runner.support import groups_for, tiny


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.load(Dummy(tiny(), seed=3))


def runner_for(
    model: Model,
    scheduler: Scheduler,
    backend: str = "paged",
    masks: TokenMasks | None = None,
    drafter: Drafter | None = None,
) -> TorchRunner:
    config = scheduler.config
    blocks, groups = config.cache.num_blocks, groups_for(model.config, config.cache)
    kv = KVStore(model.config, blocks, config.cache.block_size, groups=groups)
    sizes = config.step.max_num_seqs, config.step.max_model_len
    drafter = drafter or Ngram(config.speculation)
    runner = TorchRunner(model, kv, load(backend), drafter, *sizes, masks)
    runner.reserve_host(config.preemption.swap_space)
    return runner


def outputs(
    model: Model, asked: list[Request], depth: int = 1, **changes: Any
) -> tuple[dict[str, Any], Scheduler]:
    """What each request, or child, got; and the scheduler when all have ended."""
    scheduler = Scheduler.create(**for_states({**SETTINGS, **changes}, model.config))
    runner = runner_for(model, scheduler)
    return drive(scheduler, runner, asked, depth), scheduler


DRAFTED: dict[str, dict[str, Any]] = {
    "drafted": {"num_speculative_tokens": 3, "speculation": "fixed"},
    "drafted, ahead, tight": {**TIGHT, "num_speculative_tokens": 2, "depth": 2},
}
ALL_WAYS = WAYS | DRAFTED


@pytest.mark.parametrize("way", ALL_WAYS)
@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0), Sampling(temperature=0.9)])
def test_tokens_do_not_depend_on_the_schedule(model: Model, way: str, sampling: Sampling) -> None:
    asked = requests(sampling=sampling, seed=11)
    plainly, _ = outputs(model, asked)
    got, scheduler = outputs(model, asked, **ALL_WAYS[way])
    assert got == plainly
    if "num_blocks" in ALL_WAYS[way] and ALL_WAYS[way]["num_blocks"] == TIGHT["num_blocks"]:
        assert scheduler.stats.preemptions, "the pool was not tight"
    if "swapped" in way:
        assert scheduler.stats.swapped_in_blocks, "nothing was swapped"


@pytest.mark.parametrize("speculation", ["fixed", "adaptive"])
def test_drafts_of_one_do_not_reach_beyond_the_end_of_another(
    model: Model, speculation: str
) -> None:
    """One is about to end at the model's length, and the other still drafts."""
    asked = [Request(id="ends", prompt=[7] * 25), Request(id="drafts", prompt=[5, 6] * 3)]
    plainly, _ = outputs(model, asked, max_model_len=32)
    drafting = {"num_speculative_tokens": 8, "speculation": speculation}
    got, scheduler = outputs(model, asked, max_model_len=32, **drafting)
    assert got == plainly
    assert scheduler.stats.drafted


def test_speed_is_measured_on_a_store_of_few_blocks(model: Model) -> None:
    scheduler = Scheduler.create(**SETTINGS | {"max_model_len": 12, "num_blocks": 3})
    assert min(runner_for(model, scheduler).measure()) > 0


def test_a_request_does_not_depend_on_its_neighbours(model: Model) -> None:
    asked = requests(sampling=Sampling(temperature=0.7, top_p=0.9), seed=3)
    together, _ = outputs(model, asked)
    for request in asked:
        alone, _ = outputs(model, [request])
        assert alone[request.id] == together[request.id]


def test_children_are_the_requests_that_have_their_seeds(model: Model) -> None:
    fields: dict[str, Any] = {"prompt": [3, 1, 4, 1, 5, 9], "max_tokens": 9}
    fields["sampling"] = Sampling(temperature=1.0)
    got, scheduler = outputs(model, [Request(id="a", n=3, seed=20, **fields)])
    assert scheduler.stats.copied_blocks == 2
    for child in range(3):
        single = Request(id="a", seed=20 + child, **fields)
        assert got[f"{child}_a"] == outputs(model, [single])[0]["a"]


def test_a_family_survives_every_kind_of_preemption(model: Model) -> None:
    asked = requests(n=2, seed=5, sampling=Sampling(temperature=0.9))
    plainly, _ = outputs(model, asked, num_blocks=128)
    for mode in ("recompute", "swap", "auto"):
        space = 0 if mode == "recompute" else 64
        got, scheduler = outputs(
            model, asked, depth=2, num_blocks=32, preemption_mode=mode, swap_space=space
        )
        assert got == plainly
        assert scheduler.stats.preemptions


def test_the_best_of_several_are_the_likeliest(model: Model) -> None:
    sampling = Sampling(temperature=1.2)
    fields: dict[str, Any] = {"prompt": [9, 8, 7], "max_tokens": 6, "seed": 1, "sampling": sampling}
    best, _ = outputs(model, [Request(id="a", n=2, best_of=4, **fields)])
    every, _ = outputs(model, [Request(id="a", n=4, **fields)])
    assert all(choice in every.values() for choice in best["a"])
    assert len(best["a"]) == 2


@pytest.mark.parametrize("depth", [1, 3])
def test_tokens_are_the_same_behind_blocks_that_are_loaded_from_the_host(
    model: Model, depth: int
) -> None:
    random = np.random.default_rng(4)
    beginnings = random.integers(1, 60, (4, 18))
    asked = [
        Request(
            id=f"r{number}",
            prompt=[*beginnings[number % 4].tolist(), number],  # pyright: ignore[reportArgumentType]
            max_tokens=20,
            sampling=Sampling(temperature=0.0),
        )
        for number in range(20)
    ]
    plainly, _ = outputs(model, asked, num_blocks=128, enable_prefix_caching=False)
    host = {"preemption_mode": "swap", "swap_space": 48}
    got, scheduler = outputs(model, asked, depth=depth, num_blocks=20, **host)
    assert scheduler.stats.external_hits
    assert got == plainly


def test_swapping_there_and_back_keeps_every_byte(model: Model) -> None:
    scheduler = Scheduler.create(**SETTINGS, preemption_mode="swap", swap_space=8)
    runner = runner_for(model, scheduler)
    kv = runner._kv  # pyright: ignore[reportPrivateUsage]
    kv.content.normal_()
    before = kv.read([3, 7, 12]).clone()
    runner.launch(nothing(swap_out=((3, 1), (7, 0), (12, 5))))
    kv.content.zero_()
    runner.launch(nothing(swap_in=((1, 20), (0, 3), (5, 7))))
    assert torch.equal(kv.read([20, 3, 7]), before)


def nothing(**moves: Any) -> Plan:
    """A plan without rows."""
    empty = Scheduler.create(num_blocks=4).plan(now=0.0)
    return Plan(1, empty.rows, empty.start, **moves)


class Store(OracleRunner):
    """The oracle's digests in the real store, read and written where a model would."""

    def __init__(self, blocks: int, block_size: int, vocab: int, **options: Any) -> None:
        super().__init__(blocks, block_size, vocab, **options)
        config = tiny(num_hidden_layers=2, num_key_value_heads=1, head_dim=2)
        self.kv = KVStore(config, blocks, block_size, torch.float64)
        self.kept = torch.zeros((len(self.host), *self.kv.content.shape[1:]), dtype=torch.float64)

    def seen(self, block: int, offset: int) -> int:
        halves = self.kv.content[block, :, offset].reshape(2, -1)
        assert (halves == halves[:, :1]).all(), "parts of a cell differ"
        return (int(halves[0, 0]) << 31) | int(halves[1, 0])

    def put(self, block: int, offset: int, digest: int) -> None:
        cells = self.kv.cells(torch.tensor([[block * self.block_size + offset]]))
        for layer, half in enumerate((digest >> 31, digest & (2**31 - 1))):
            self.kv.put(cells[layer], torch.full((1, 2, 2), float(half), dtype=torch.float64))

    def copy(self, source: int, target: int) -> None:
        self.kv.copy([(source, target)])

    def store(self, source: int, target: int) -> None:
        self.kept[target] = self.kv.read([source])[0]

    def restore(self, source: int, target: int) -> None:
        self.kv.write([target], self.kept[source : source + 1])


@pytest.mark.parametrize("seed", range(6))
def test_the_store_keeps_every_cell_on_random_schedules(seed: int) -> None:
    drive = Drive(seed)
    old = drive.runner
    drive.runner = Store(
        len(old.cells),
        old.block_size,
        old.vocab,
        accept=old.accept,
        seed=seed,
        host_blocks=len(old.host),
    )
    drive.run()


def test_a_prefix_is_found_by_the_next_request(model: Model) -> None:
    prompt = list(range(2, 34))
    scheduler = Scheduler.create(**SETTINGS)
    runner = runner_for(model, scheduler)
    got = []
    for name in ("a", "b"):
        scheduler.submit(Request(id=name, prompt=prompt, max_tokens=1), now=0.0)  # pyright: ignore[reportArgumentType]
        plan = scheduler.plan(now=0.0)
        runner.launch(plan)
        got.append((plan.total, scheduler.commit(plan, runner.wait(), now=0.0).ids.tolist()))
    assert [total for total, _ in got] == [32, 4]
    assert got[0][1] == got[1][1]


POISON = 57  # a token of which the model knows no numbers


class Poisoned(Dummy):
    """As any other, but for one token."""

    def read(self, name: str) -> torch.Tensor:
        found = super().read(name)
        if name == "model.embed_tokens.weight":
            found[POISON] = float("nan")
        return found


@pytest.fixture(scope="module")
def poisoned() -> Model:
    return Model.load(Poisoned(tiny(), seed=3))


def bad_ones() -> list[Request]:
    """Requests that meet the poison in the middle of the prompt, at its end, and in a family."""
    shared = [5, 9, 2, 7]  # with good ones
    prompts = [*shared, POISON, *range(20, 40)], [*shared, 1, 1, 3, POISON], [44, POISON, 3, 3, 3]
    widths = {"bad0": 1, "bad1": 1, "bad2": 2}
    return [
        Request(id=name, prompt=prompt, max_tokens=20, n=n)  # pyright: ignore[reportArgumentType]
        for (name, n), prompt in zip(widths.items(), prompts, strict=True)
    ]


@pytest.mark.parametrize("backend", ["paged", "native", "sdpa"])
@pytest.mark.parametrize(
    "way", ["ahead", "in small pieces", "recomputed, ahead", "swapped, ahead", "drafted", "alone"]
)
def test_who_meets_no_numbers_fails_alone(
    model: Model, poisoned: Model, way: str, backend: str
) -> None:
    good, changes = requests(), {"alone": {}, **ALL_WAYS}[way]
    plainly, _ = outputs(model, good)
    assert not any(POISON in tokens for tokens in plainly.values())
    depth = changes.get("depth", 1)
    scheduler = Scheduler.create(**SETTINGS | {k: v for k, v in changes.items() if k != "depth"})
    runner = runner_for(poisoned, scheduler, backend)
    bad = bad_ones()
    for _ in range(2):  # those who come later get blocks that had no numbers in them
        got = drive(scheduler, runner, [*bad, *good], depth)
        assert {name: got[name] for name in plainly} == plainly
        assert {name for name, tokens in got.items() if tokens} == set(plainly)
        for one in bad:
            assert "not finite" in scheduler.explain(one.id)
            assert "finished: failed" in scheduler.explain(one.id)
    assert scheduler.stats.failed_rows >= 2 * len(bad)


def test_one_that_could_not_be_taken_in_leaves_its_slot_to_others(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Scheduler.create(**SETTINGS)
    runner = runner_for(model, scheduler)

    def full(_: TokenCounts) -> None:
        raise RuntimeError("no memory is left")

    def begun(request: Request) -> Plan:
        scheduler.submit(request, now=0.0)
        return scheduler.plan(now=0.0)

    costly = Sampling(temperature=0.0, repetition_penalty=1.2)
    with monkeypatch.context() as patch:
        patch.setattr(TokenCounts, "_grow", full)
        plan = begun(Request(id="a", prompt=np.array([1, 2, 3]), sampling=costly))
        with pytest.raises(RuntimeError, match="no memory"):
            runner.launch(plan)
        scheduler.fail(plan, now=0.0)
    plan = begun(Request(id="b", prompt=np.array([1, 2, 3]), max_tokens=1, sampling=costly))
    assert list(plan.released) == plan.rows.slot.tolist(), "it is the same slot"
    runner.launch(plan)
    assert len(scheduler.commit(plan, runner.wait(), now=0.0).finished) == 1


def test_a_row_without_numbers_is_told_as_failed(model: Model) -> None:
    scheduler = Scheduler.create(**SETTINGS)
    runner = runner_for(model, scheduler)
    kv = runner._kv  # pyright: ignore[reportPrivateUsage]
    for name, prompt in (("a", [1, 2, 3, 4, 5]), ("b", [7, 8])):
        scheduler.submit(Request(id=name, prompt=prompt, max_tokens=4), now=0.0)  # pyright: ignore[reportArgumentType]
    plan = scheduler.plan(now=0.0)
    runner.launch(plan)
    scheduler.commit(plan, runner.wait(), now=0.0)
    for block in scheduler.snapshot()["requests"]["a"]["blocks"][0]:
        kv.content[block] = float("nan")
    plan = scheduler.plan(now=0.0)
    runner.launch(plan)
    result = runner.wait()
    (failed,) = result.failed
    assert (failed.row, result.count.tolist(), result.ids[0, 0]) == (0, [0, 1], -1)
    assert failed.reason == "the logits of 'a' in step 2 are not finite"


def test_the_cost_of_a_position_is_measured(model: Model) -> None:
    """Steps of 8 positions take 4 ms, and 8 ms where each has 16 more before it."""
    runner = runner_for(model, Scheduler.create(**SETTINGS))
    ends: list[int] = []

    def seconds(positions: int, end: int) -> float:
        ends.append(end)
        return 0.004 if positions == end else 0.008

    runner._chunk_s = seconds  # pyright: ignore[reportPrivateUsage]
    assert runner.measure_cost(24, positions=8, distance=16) == StepCost(500_000, 31_250)
    assert ends == [8, 24]
    assert runner.measure_cost(1) == StepCost(4_000_000, 0)  # nothing lies before it


def test_a_cost_is_measured_within_the_blocks(model: Model) -> None:
    runner = runner_for(model, Scheduler.create(**SETTINGS))
    assert runner.measure_cost(10**6).position_ns > 0


def test_rates_are_positive(model: Model) -> None:
    runner = runner_for(model, Scheduler.create(**SETTINGS))
    assert np.all(np.array(runner.measure()) > 0)

"""Schedulers of models whose layers read different positions."""

from typing import Any

import pytest

from paceline import Scheduler
from paceline.core.errors import ConfigError, RequestError
from paceline.testing.reference import reference
from tests.sched.scripted_connector import ScriptedConnector
from tests.sched.support import (
    DEPTHS,
    SMALL,
    VOCAB,
    Pipeline,
    ask,
    commit,
    findable,
    gate,
    preempt,
    small,
    state,
    step,
)

FULL = {"kind": "full"}
WINDOW = {"kind": "sliding_window", "window": 6}
BOTH = [FULL, WINDOW]


def grouped(groups: list[dict[str, Any]] = BOTH, **settings: Any) -> Scheduler:
    return small(**{"num_blocks": 32, "attention_groups": groups} | settings)


def run(scheduler: Scheduler, depth: int) -> Pipeline:
    pipeline = Pipeline(scheduler, depth)
    pipeline.runner.groups = scheduler.config.cache.groups
    return pipeline


def used(scheduler: Scheduler) -> int:
    pool = scheduler.state.cache.pool
    return pool.size - pool.free


def test_gemma_3_needs_less_than_a_third_of_the_blocks_at_32k() -> None:
    """One layer in six reads all positions; the others read 1,024."""
    tokens, size = 32_768, 16
    windows = {"kind": "sliding_window", "window": 1024, "count": 5}
    scheduler = Scheduler.create(
        max_model_len=tokens,
        max_num_batched_tokens=1024,
        max_num_seqs=1,
        num_blocks=6 * tokens // size,
        block_size=size,
        attention_groups=[FULL, windows],
    )
    scheduler.submit(ask("a", tokens - 8, max_tokens=8), 0.0)
    most = 0
    while not scheduler.idle:
        plan = scheduler.plan(0.0)
        most = max(most, used(scheduler))
        commit(scheduler, plan)
    assert most == 2048 + 5 * 128
    assert most < 6 * tokens // size / 4
    assert scheduler.state.cache.tables.most_blocks(tokens) == 2048 + 5 * 129


def test_plans_and_snapshots_tell_blocks_by_group() -> None:
    scheduler = grouped()
    scheduler.submit(ask("a", 11), 0.0)
    assert step(scheduler)["blocks"] == {"a": [[0, 1, 2], [3, 4, 5]]}
    assert state(scheduler, "a")["blocks"] == [[0, 1, 2], [4, 5]]  # position 11 reads 6 to 11
    assert scheduler.snapshot()["free_blocks"] == 27
    assert step(scheduler)["blocks"] == {}
    assert step(scheduler)["blocks"] == {"a": [[6], [7]]}
    assert state(scheduler, "a")["blocks"] == [[0, 1, 2, 6], [5, 7]]
    scheduler.submit(ask("b", 3), 0.0)
    assert state(scheduler, "b")["blocks"] == [[], []]


def test_blocks_of_a_window_go_back_when_their_positions_are_confirmed() -> None:
    scheduler = grouped(max_num_batched_tokens=8)
    scheduler.submit(ask("a", 24), 0.0)
    first, second = scheduler.plan(0.0), scheduler.plan(0.0)
    assert used(scheduler) == 6 + 4
    commit(scheduler, first)
    assert used(scheduler) == 10  # position 8 reads from 3 on
    commit(scheduler, second)
    assert used(scheduler) == 8
    assert findable(scheduler, ask("a", 24).prompt[:4]) == 4


@DEPTHS
@pytest.mark.parametrize("groups", [BOTH, [WINDOW], [FULL, {"kind": "chunked_local", "window": 8}]])
def test_long_outputs_are_right_in_the_smallest_pool(
    depth: int, groups: list[dict[str, Any]]
) -> None:
    fits = grouped(groups, max_num_batched_tokens=8).state.cache.tables.most_blocks(63)
    scheduler = grouped(groups, max_num_batched_tokens=8, num_blocks=fits)
    requests = [ask(name, 20, max_tokens=44) for name in "ab"]
    for request in requests:
        scheduler.submit(request, 0.0)
    pipeline = run(scheduler, depth).run()
    for request in requests:
        assert pipeline.got[request.id] == reference(request, VOCAB, 64)[0]
    assert used(scheduler) == 0


def test_residents_wait_for_blocks_that_steps_in_flight_pass() -> None:
    scheduler = grouped([WINDOW], max_num_batched_tokens=8, num_blocks=4)
    scheduler.submit(ask("a", 40), 0.0)
    first, second = scheduler.plan(0.0), scheduler.plan(0.0)
    assert scheduler.plan(0.0).empty
    commit(scheduler, first)
    assert scheduler.plan(0.0).empty
    commit(scheduler, second)
    assert step(scheduler)["tokens"] == {"a": 8}
    assert scheduler.stats.preemptions == 0


def test_blocks_that_a_window_gives_back_let_others_in() -> None:
    scheduler = grouped([WINDOW], max_num_batched_tokens=16, num_blocks=6)
    scheduler.submit(ask("a", 16, max_tokens=8), 0.0)
    scheduler.submit(ask("b", 12), 0.0)
    plan = scheduler.plan(0.0)
    assert gate(scheduler) == ("budget", "b", 12)
    commit(scheduler, plan)
    assert step(scheduler)["new"] == ["b"]


@DEPTHS
def test_a_family_that_returns_forks_where_its_members_read(depth: int) -> None:
    scheduler = grouped(num_blocks=64)
    request = ask("a", 14, max_tokens=20, n=3, seed=5)
    scheduler.submit(request, 0.0)
    pipeline = run(scheduler, depth)
    for _ in range(12):
        pipeline.launch()
        pipeline.land()
    preempt(scheduler, "a")
    cache = scheduler.state.cache
    for other in scheduler.state.sequence_groups["a"].members[
        1:
    ]:  # only the leader finds its outputs
        cache.index.extend_keys(other)
        for name in [name for key in other.keys[3:] for name in cache.index.names(key)]:
            for block in cache.pool.find([name]):
                cache.pool.unseal(block, name)
    pipeline.run()
    assert all(len(pipeline.got[f"{child}_a"]) == 20 for child in range(3))
    assert findable(scheduler, request.prompt[:13]) == 12


def test_a_family_that_forks_with_its_prompt_in_flight_ends_in_the_smallest_pool() -> None:
    settings = {"max_num_batched_tokens": 4, "num_blocks": 6, "enable_prefix_caching": False}
    scheduler = grouped([WINDOW], **settings)
    scheduler.submit(ask("a", 17, max_tokens=24, n=2, seed=3), 0.0)
    pipeline = run(scheduler, depth=2)
    for _ in range(16):
        while len(pipeline.flight) < 2 and not pipeline.launch().empty:
            pass
        pipeline.land()
    preempt(scheduler, "a")
    pipeline.run()
    assert [len(pipeline.got[f"{child}_a"]) for child in range(2)] == [24, 24]


def test_a_family_that_is_preempted_twice_returns_in_the_smallest_pool() -> None:
    """Members that begin behind their own hits would not share the prompt with their leader."""
    groups = [FULL, {"kind": "sliding_window", "window": 3, "count": 2}]
    settings = {"max_num_batched_tokens": 4, "block_size": 2}
    fits = grouped(groups, **settings).state.cache.tables.most_blocks(43, width=2, shared=26)
    scheduler = grouped(groups, **settings, num_blocks=fits)
    scheduler.submit(ask("a", 27, max_tokens=16, n=2, seed=3), 0.0)
    pipeline = run(scheduler, depth=1)
    for steps in (12, 8):
        for _ in range(steps):
            pipeline.launch()
            pipeline.land()
        preempt(scheduler, "a")
    pipeline.run()
    assert [len(pipeline.got[f"{child}_a"]) for child in range(2)] == [16, 16]


@DEPTHS
def test_swapped_sequences_return_with_the_blocks_of_all_groups(depth: int) -> None:
    scheduler = grouped(preemption_mode="swap", swap_space=32)
    requests = [ask("a", 22, max_tokens=20), ask("b", 9, max_tokens=20, n=2, seed=3)]
    for request in requests:
        scheduler.submit(request, 0.0)
    pipeline = run(scheduler, depth)
    for _ in range(6):
        pipeline.launch()
        pipeline.land()
    for name in "ab":
        preempt(scheduler, name)
    assert scheduler.snapshot()["swapped"] == ["b", "a"]
    pipeline.run()
    assert pipeline.got["a"] == reference(requests[0], VOCAB, 64)[0]
    assert scheduler.stats.swapped_in_blocks > 0


def test_what_never_fits_is_refused_by_the_blocks_of_all_groups() -> None:
    scheduler = grouped(num_blocks=16)
    scheduler.submit(ask("a", 20, max_tokens=4), 0.0)
    with pytest.raises(RequestError, match="need 26 blocks of 4, and the whole pool has 16"):
        scheduler.submit(ask("b", 50, max_tokens=14), 0.0)


def test_the_cache_of_all_groups_is_reset() -> None:
    scheduler = grouped()
    prompt = ask("a", 20).prompt
    scheduler.submit(ask("a", 20), 0.0)
    step(scheduler)
    assert findable(scheduler, prompt) == 20
    assert scheduler.reset_prefix_cache(reset_running_requests=True)
    assert findable(scheduler, prompt) == 0


def test_a_connector_of_one_group_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"attention_groups has full, sliding_window: remove"):
        grouped().connect(ScriptedConnector())


def test_a_connector_loads_what_each_group_reads_and_stores_what_the_device_has() -> None:
    scheduler, connector = grouped(), ScriptedConnector(99)
    connector.takes_groups = True
    scheduler.connect(connector)
    scheduler.submit(ask("a", 20), 0.0)
    step(scheduler)
    (load,) = connector.fetched
    assert len(load.keys) == 4 + 2  # before position 16, the window has 11 to 15
    assert used(scheduler) == 6
    connector.end_all()
    assert step(scheduler)["tokens"] == {"a": 4}
    (stored,) = connector.stored
    assert len(stored.keys) == 5 + 3  # the device never had the others
    assert scheduler.stats.external_hits == 16


def test_one_full_group_is_what_there_was() -> None:
    plain, named = small(), small(attention_groups=[FULL])
    assert type(plain.state.cache.tables) is type(named.state.cache.tables)
    assert plain.config == named.config
    assert SMALL["num_blocks"] == named.state.cache.pool.size

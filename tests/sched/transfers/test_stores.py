"""What a connector gets to keep, and what it may not see."""

from dataclasses import replace

import numpy as np

from paceline import Scheduler
from paceline.core.plan import Failed
from paceline.core.request import Finish
from tests.sched.scripted_connector import ScriptedConnector
from tests.sched.support import PROMPT, answer, ask, small, step


def storing(**config: str) -> tuple[Scheduler, ScriptedConnector]:
    scheduler, connector = small(), ScriptedConnector(0, **config)
    scheduler.connect(connector)
    return scheduler, connector


def test_blocks_are_stored_at_the_first_token_and_the_rest_at_the_end() -> None:
    scheduler, connector = storing()
    scheduler.submit(ask("a", PROMPT, 6), 0.0)
    step(scheduler)
    (prompt,) = connector.stored
    assert (prompt.first, len(prompt.blocks)) == (0, 3)
    for _ in range(5):
        step(scheduler)
    (_, rest) = connector.stored
    assert (rest.first, len(rest.blocks)) == (3, 1)  # 18 positions are computed
    assert scheduler.state.cache.pool.free == 16 - 4
    assert scheduler.state.cache.fences.coming == 4
    connector.end_all()
    step(scheduler)
    assert scheduler.state.cache.pool.free == 16


def test_keys_are_the_same_in_every_engine() -> None:
    found: list[tuple[bytes, ...]] = []
    for _ in range(2):
        scheduler, connector = storing()
        scheduler.submit(ask("a", PROMPT), 0.0)
        step(scheduler)
        found.append(connector.stored[0].keys)
    assert found[0] == found[1]


def test_a_sequence_that_has_sampled_nothing_stores_nothing() -> None:
    scheduler, connector = storing()
    scheduler.submit(ask("a", 50), 0.0)
    step(scheduler)  # 32 of 50
    scheduler.abort("a", 0.0)
    step(scheduler)
    assert not connector.stored


def test_a_row_that_fails_stores_nothing_and_its_content_is_forgotten() -> None:
    scheduler, connector = storing()
    scheduler.submit(ask("a", PROMPT), 0.0)
    plan = scheduler.plan(0.0)
    scheduler.submit(ask("b", PROMPT), 0.0)
    scheduler.plan(0.0)  # it finds the blocks of a, which gives them keys
    result = answer(plan)
    failed = replace(result, count=np.zeros_like(result.count), failed=(Failed(0, "no numbers"),))
    scheduler.commit(plan, failed, 0.0)
    assert not connector.stored
    assert len({*connector.forgotten}) == 3


def test_a_consumer_stores_nothing() -> None:
    scheduler, connector = storing(kv_role="kv_consumer")
    scheduler.submit(ask("a", PROMPT, 1), 0.0)
    step(scheduler)
    assert scheduler.idle
    assert not connector.stored


def test_blocks_of_an_ended_request_are_kept_until_they_are_sent() -> None:
    scheduler, connector = storing()
    connector.hands_over, connector.handed = True, {"remote_block_ids": [1]}
    scheduler.connect(connector)
    scheduler.submit(ask("a", PROMPT, 1), 0.0)
    plan = scheduler.plan(0.0)
    (end,) = scheduler.commit(plan, answer(plan), 0.0).finished
    assert end.kv_transfer_params == {"remote_block_ids": [1]}
    ((transfer, finish),) = connector.finishes
    assert (finish, len(transfer.blocks), transfer.first) == (Finish.LENGTH, 3, 0)
    connector.end_all()  # the stores
    step(scheduler)
    assert scheduler.state.cache.pool.free == 16 - 3
    assert not scheduler.reset_prefix_cache()
    connector.end(transfer)
    assert scheduler.reset_prefix_cache()
    assert scheduler.state.cache.pool.free == 16


def test_an_aborted_request_is_not_handed_over() -> None:
    scheduler, connector = storing()
    connector.hands_over, connector.handed = True, {"remote_block_ids": [1]}
    scheduler.connect(connector)
    scheduler.submit(ask("a", PROMPT), 0.0)
    step(scheduler)
    scheduler.abort("a", 0.0)
    assert not connector.finishes

"""Batches arrive once, in order and without gaps, or subscribers can tell."""

import os
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest
import zmq

from paceline.core.errors import ConfigError
from paceline.core.events import BlockRemoved, BlockStored
from paceline.core.settings.features import KVEventsConfig
from paceline.engine import kv_events as module
from paceline.engine.kv_events import EventPublisher
from tests.engine.kv_events.consumer import Consumer
from tests.engine.kv_events.support import Endpoints, endpoints

SIZE = 2
CLEARED = [{"type": "AllBlocksCleared"}]


@pytest.fixture
def at() -> Iterator[Endpoints]:
    with endpoints() as found:
        yield found


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def stored(number: int) -> BlockStored:
    return BlockStored(key(number), None, (number, number), "")


def blocks(consumer: Consumer) -> list[int]:
    return [tokens[0] for _, tokens in consumer.blocks.values()]


@pytest.mark.parametrize("encoding", ["array", "map"])
def test_a_subscriber_gets_all_batches_in_order(at: Endpoints, encoding: str) -> None:
    made = EventPublisher(at.config(encoding=encoding, topic="kv@pod@model"), SIZE)
    with at.consumer("kv@pod@model") as router:
        router.catch_up()
        first = router.last
        for number in range(100):
            made.publish([stored(number)])
        made.publish([BlockRemoved(key(number)) for number in range(90)])
        router.until(lambda: router.last == first + 101)
        assert router.batches[0] == CLEARED
        assert len(router.batches) == 102
        assert blocks(router) == list(range(90, 100))
        for number in range(100, 200):
            made.publish([stored(number)])
        made.close()  # after all of these
        router.until(lambda: router.last == first + 201)


def test_one_that_comes_late_gets_what_is_kept(at: Endpoints) -> None:
    made = EventPublisher(at.config(buffer_steps=3), SIZE)
    for number in range(5):
        made.publish([stored(number)])
    with at.consumer() as router:
        router.catch_up()
        router.until(lambda: blocks(router) == [2, 3, 4] or router.catch_up())
        router.catch_up()
        assert blocks(router) == [2, 3, 4]
    made.close()


def test_a_replay_has_all_that_was_published_before_it_was_asked_for(at: Endpoints) -> None:
    made = EventPublisher(at.config(), SIZE)
    with at.consumer() as router:
        for number in range(200):
            made.publish([stored(number)])
            router.catch_up()
            assert blocks(router)[-1] == number
    made.close()


def test_one_that_reads_too_slowly_catches_up(at: Endpoints) -> None:
    """It costs the publisher nothing: batches beyond the limit are dropped for this subscriber."""
    made = EventPublisher(at.config(hwm=2), SIZE)
    with at.consumer() as router:
        router.live.set_hwm(2)
        router.catch_up()
        for number in range(3000):
            made.publish([stored(number)])
        router.until(lambda: blocks(router) == list(range(3000)) or router.catch_up())
    made.close()


def test_a_queue_that_is_full_loses_batches_and_says_so(
    at: Endpoints, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun, go_on, encode = Event(), Event(), module.encode_batch

    def late(*arguments: Any) -> bytes:
        begun.set()
        go_on.wait()
        return encode(*arguments)

    monkeypatch.setattr(module, "encode_batch", late)
    made = EventPublisher(at.config(max_queue_size=2), SIZE)
    begun.wait()
    for number in range(6):
        made.publish([stored(number)])
    go_on.set()
    with at.consumer() as router:
        router.until(lambda: router.catch_up() or blocks(router) == [0, 1])
        made.publish([stored(7)])
        router.until(lambda: router.catch_up() or 7 in blocks(router))
        assert blocks(router) == [7], "the others may be gone"
        assert router.batches[-1][0] == CLEARED[0]
        made.publish([stored(8)])
        router.until(lambda: router.catch_up() or blocks(router) == [7, 8])
    made.close()
    assert [record.message for record in caplog.records] == [
        "2 batches of KV events wait to be sent: further ones are lost"
    ]


def test_a_restart_is_a_gap_and_clears_what_the_last_one_stored(at: Endpoints) -> None:
    first = EventPublisher(at.config(), SIZE)
    first.publish([stored(1)])
    with at.consumer() as router:
        router.until(lambda: router.catch_up() or blocks(router) == [1])
        before = router.last
        first.close()
        second = EventPublisher(at.config(), SIZE)
        second.publish([stored(2)])
        number = 3
        while not router.receive(0.05):  # it may not be connected again yet
            second.publish([stored(number)])
            number += 1
        router.until(lambda: 2 in blocks(router))
        assert 1 not in blocks(router)
        assert router.last > before
        second.close()


def test_a_replay_endpoint_is_not_needed(at: Endpoints) -> None:
    made = EventPublisher(at.config(replay_endpoint=""), SIZE)
    with Consumer(at.live) as router:
        number = 0
        while not router.receive(0.02):
            made.publish([stored(number)])
            number += 1
        made.publish([stored(1 << 20)])
        router.until(lambda: 1 << 20 in blocks(router))
    made.close()


def test_a_publisher_may_connect_to_a_collector() -> None:
    context = zmq.Context()
    collector = context.socket(zmq.SUB)
    collector.setsockopt(zmq.SUBSCRIBE, b"kv@")
    port = collector.bind_to_random_port("tcp://127.0.0.1")
    config = KVEventsConfig(True, endpoint=f"tcp://127.0.0.1:{port}", topic="kv@a@b")
    made = EventPublisher(config, SIZE)
    while not collector.poll(20):
        made.publish([stored(1)])
    made.close()
    assert collector.recv_multipart()[0] == b"kv@a@b"
    context.destroy(linger=0)


def test_a_malformed_request_for_a_replay_is_ignored(
    at: Endpoints, caplog: pytest.LogCaptureFixture
) -> None:
    made = EventPublisher(at.config(), SIZE)
    with at.consumer() as router:
        assert router.replay is not None
        for frames in ([b"hello"], [b"", b"short"], [b"", bytes(8), b"more"]):
            router.replay.send_multipart(frames)
        router.catch_up()
        assert router.batches == [CLEARED]
    made.close()
    assert len(caplog.records) == 3


@pytest.mark.parametrize("taken", ["endpoint", "replay_endpoint"])
def test_an_endpoint_that_is_taken_is_an_error(taken: str) -> None:
    context = zmq.Context()
    other = context.socket(zmq.PUB)
    port = other.bind_to_random_port("tcp://*")
    fields: dict[str, Any] = {"endpoint": "inproc://live", taken: f"tcp://*:{port}"}
    message = rf"cannot bind {taken} tcp://\*:{port}: Address already in use; choose another one"
    with pytest.raises(ConfigError, match=message):
        EventPublisher(KVEventsConfig(True, **fields), SIZE)
    context.destroy(linger=0)


def test_closing_leaves_nothing_open(at: Endpoints) -> None:
    before = len(os.listdir("/proc/self/fd"))
    made = EventPublisher(at.config(), SIZE)
    made.publish([stored(1)])
    made.close()
    assert len(os.listdir("/proc/self/fd")) == before

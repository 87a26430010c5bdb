"""Settings of features: attention groups and KV events, with the names of vLLM."""

from typing import Any

import numpy as np
import pytest

from paceline.core.errors import ConfigError
from paceline.core.settings.config import CacheConfig
from paceline.core.settings.features import AttentionGroup, KVEventsConfig, attention_groups

FULL = AttentionGroup()
WINDOW = AttentionGroup("sliding_window", 4)
CHUNK = AttentionGroup("chunked_local", 8)


@pytest.mark.parametrize(
    ("group", "computed", "unread"),
    [
        (FULL, 100, 0),
        (WINDOW, 3, 0),
        (WINDOW, 4, 1),
        (WINDOW, 7, 4),  # position 7 reads 4, 5, 6 and itself
        (AttentionGroup("sliding_window", 1), 7, 7),
        (CHUNK, 7, 0),
        (CHUNK, 8, 8),
        (CHUNK, 17, 16),
    ],
)
def test_a_position_reads_what_its_kind_of_attention_reads(
    group: AttentionGroup, computed: int, unread: int
) -> None:
    assert group.unread(computed) == unread
    assert group.unread(np.array([computed, 0], np.int32)).tolist() == [unread, 0]


def test_groups_come_from_plain_data_too() -> None:
    given = [{"kind": "sliding_window", "window": 4}, FULL]
    assert attention_groups(given) == (WINDOW, FULL)
    assert attention_groups([one.to_dict() for one in (FULL, WINDOW, CHUNK)]) == (
        FULL,
        WINDOW,
        CHUNK,
    )


def test_groups_of_a_kind_are_numbered_one_by_one() -> None:
    several = AttentionGroup("sliding_window", 4, count=3)
    assert CacheConfig(attention_groups=(FULL, several)).groups == (FULL, several, several, several)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"kind": "sliding_window"}, "sliding_window attention group is 0; it must be positive"),
        ({"kind": "full", "window": 8}, "full attention group is 8; it must be 0"),
        ({"kind": "sparse", "window": 8}, "is 'sparse'; choose one of full, sliding_window"),
        ({"count": 0}, "count is 0; it must be positive"),
        ({"window": "8"}, "window is '8'; it must be of type int"),
        ({"size": 8}, "attention_groups is"),
        (8, "attention_groups is"),
    ],
)
def test_a_group_that_cannot_be_is_refused(given: object, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        attention_groups([given])


def test_events_are_on_unless_there_is_no_publisher() -> None:
    for publisher, is_on in (("", True), ("zmq", True), ("null", False)):
        assert KVEventsConfig(True, publisher).is_on is is_on  # pyright: ignore[reportArgumentType]
        assert not KVEventsConfig(False, publisher).is_on  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("endpoint", "is_bound"),
    [
        ("tcp://*:5557", True),
        ("tcp://[::]:5557", True),
        ("ipc:///tmp/events", True),
        ("inproc://events", True),
        ("tcp://router:5557", False),
        ("tcp://10.0.0.7:5557", False),
    ],
)
def test_a_wildcard_or_a_file_is_bound_and_an_address_is_connected_to(
    endpoint: str, is_bound: bool
) -> None:
    assert KVEventsConfig(endpoint=endpoint).is_bound is is_bound


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("publisher", "nats", "publisher is 'nats'; choose one of null, zmq"),
        ("encoding", "json", "encoding is 'json'; choose one of array, map"),
        ("endpoint", "", "endpoint is ''; write it as PROTOCOL://ADDRESS"),
        ("replay_endpoint", "5558", "replay_endpoint is '5558'; write it as PROTOCOL://ADDRESS"),
        ("buffer_steps", 0, "buffer_steps is 0; it must be positive"),
        ("max_queue_size", 0, "max_queue_size is 0; it must be positive"),
        ("hwm", -1, "hwm is -1; it cannot be negative"),
        ("topic", 7, "topic is 7; it must be of type str"),
    ],
)
def test_what_is_wrong_is_named(field: str, value: Any, complaint: str) -> None:
    with pytest.raises(ConfigError) as failure:
        KVEventsConfig(**{field: value})
    assert str(failure.value).startswith(complaint)

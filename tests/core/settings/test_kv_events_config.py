"""Settings of KV events: vLLM's names and defaults, and what is wrong is named."""

from typing import Any

import pytest

from paceline.core.errors import ConfigError
from paceline.core.settings.features import KVEventsConfig


def test_the_defaults_are_those_of_vllm_and_events_are_off() -> None:
    config = KVEventsConfig()
    assert not config.is_on
    assert config.endpoint == "tcp://*:5557"
    assert (config.buffer_steps, config.hwm, config.max_queue_size) == (10_000, 100_000, 100_000)
    assert (config.replay_endpoint, config.topic, config.encoding) == ("", "", "array")


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

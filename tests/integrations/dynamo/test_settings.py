from typing import Any

import pytest

from paceline.core.errors import ConfigError
from paceline.integrations.dynamo.settings import DynamoSettings


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"namespace": ""}, "namespace is empty"),
        ({"discovery_backend": "zookeeper"}, "discovery_backend is 'zookeeper'"),
        ({"request_plane": "udp"}, "request_plane is 'udp'"),
        ({"event_plane": "tcp"}, "event_plane is 'tcp'"),
        ({"drain_s": -1.0}, "drain_s is -1.0"),
    ],
)
def test_wrong_settings_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DynamoSettings(**given)

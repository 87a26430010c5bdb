"""Settings of a server that are refused."""

import pytest

from paceline.core.errors import ConfigError
from paceline.server.settings import ServerSettings


@pytest.mark.parametrize(
    ("count", "problem"), [(-1, "it cannot be negative"), (257, "it can be 256 at most")]
)
def test_the_number_of_front_ends_is_bounded(count: int, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"^api_server_count is {count}; {problem}$"):
        ServerSettings(api_server_count=count)

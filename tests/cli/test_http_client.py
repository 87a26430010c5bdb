"""What commands ask of a server, and what they say when it does not answer."""

import pytest

from paceline.bench.client import client
from paceline.cli.http_client import ServerError, first_model
from tests.server.support import MODEL, Site, on_its_own_server


def test_a_command_uses_the_first_model_that_a_server_lists() -> None:
    async def scenario(site: Site) -> None:
        async with client(site.url, None, 5.0) as http:
            assert await first_model(http) == MODEL
        async with client(f"{site.url}/elsewhere", "key", 5.0) as http:
            assert http.headers["Authorization"] == "Bearer key"
            with pytest.raises(ServerError, match="404"):
                await first_model(http)
        async with client("http://127.0.0.1:9", None, 5.0) as http:
            expected = "^http://127.0.0.1:9 does not answer: .*; start `paceline serve` there"
            with pytest.raises(ServerError, match=expected):
                await first_model(http)

    on_its_own_server(scenario)

"""Requests that ask for a transfer, with a connector and without one."""

import pytest

from paceline.core.errors import RequestError
from tests.sched.scripted_connector import ScriptedConnector
from tests.sched.support import PROMPT, ask, small


def test_a_transfer_needs_a_connector_that_makes_it() -> None:
    scheduler = small()
    asks = ask("a", PROMPT, kv_transfer_params={"do_remote_decode": True})
    with pytest.raises(RequestError, match=r"'a' has kv_transfer_params; .* remove `kv_transfer"):
        scheduler.check_transfer(asks)
    scheduler.connect(ScriptedConnector())
    with pytest.raises(RequestError, match="kv_connector 'scripted' has no use for kv_transfer_"):
        scheduler.check_transfer(asks)
    scheduler.check_transfer(ask("b", PROMPT))

import pytest

from paceline.core.errors import ConfigError
from paceline.kv.remote.leases import AllowedPeers


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("10.1.2.3", True),
        ("10.2.0.1", False),
        ("::1", True),
        ("[::1]", True),
        ("Prefill-0.prefill", True),
        ("prefill-1.prefill", False),
        ("", False),
    ],
)
def test_hosts_are_allowed_by_name_address_and_network(host: str, allowed: bool) -> None:
    assert AllowedPeers(["10.1.0.0/16", "::1", "prefill-0.Prefill"]).has(host) == allowed
    assert AllowedPeers([]).has(host)


@pytest.mark.parametrize("entry", ["10.0.0.1:5600", "a b", "", None, "*"])
def test_an_entry_that_is_no_host_is_named(entry: object) -> None:
    with pytest.raises(ConfigError, match=r"allowed_peers has .*without ports"):
        AllowedPeers([entry])

"""Which engines KV may be read from."""

import re
from collections.abc import Sequence
from ipaddress import ip_address, ip_network
from typing import Any

from paceline.core.errors import ConfigError

NAME = re.compile(r"[a-z0-9]([a-z0-9_.-]*[a-z0-9])?")


class AllowedPeers:
    """Hosts by name, by address, or by network such as 10.1.0.0/16. An empty list allows all.

    Names are compared as they are written: they are not resolved.
    """

    def __init__(self, listed: Sequence[Any]) -> None:
        """ConfigError if an entry is none of these."""
        plain = [str(one or "").strip("[]").lower() for one in listed]
        networks = [network_of(one) for one in plain]
        self._networks = [one for one in networks if one is not None]
        self._names = {name for name, one in zip(plain, networks, strict=True) if one is None}
        for name in self._names:
            if not NAME.fullmatch(name):
                raise ConfigError(
                    f"allowed_peers has {name!r}; list hosts by name, by address, or by network "
                    "such as 10.1.0.0/16, without ports"
                )

    def has(self, host: str) -> bool:
        """Whether KV may be read from a host."""
        if not (self._names or self._networks):
            return True
        plain = host.strip("[]").lower()
        try:
            address = ip_address(plain)
        except ValueError:
            return plain in self._names
        return any(address in network for network in self._networks)


def network_of(text: str) -> Any:
    """The network, or the address as a network; None if it is neither."""
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None

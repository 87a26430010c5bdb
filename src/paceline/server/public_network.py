"""Connects to public addresses only, so that a URL of a client reaches nothing on the inside."""

import asyncio
import socket
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

import httpcore

from paceline.core.errors import RequestError

Address = IPv4Address | IPv6Address
NAT64 = ip_network("64:ff9b::/96")  # IPv4 addresses inside IPv6 ones
IPV4_BITS = 0xFFFF_FFFF


def is_public(address: Address) -> bool:
    """Whether an address is on the internet: not private, loopback, link-local or the like."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address.teredo is not None:
            return False
        if address in NAT64:
            inner = IPv4Address(int(address) & IPV4_BITS)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not address.is_multicast


class PublicNetwork(httpcore.AsyncNetworkBackend):
    """Looks up a name, checks every address that it has, and connects to one of those.

    The address that is checked is the one that is used: a name cannot change in between.
    """

    def __init__(self, allowed: Callable[[Address], bool] = is_public) -> None:
        self._allowed = allowed
        self._network: Any = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        found = await self._addresses(host, port)
        for address in found:
            if not self._allowed(ip_address(address)):
                raise RequestError(
                    f"the host {host!r:.200} of an image has the address {address}, which is not "
                    "public; images are fetched from public addresses only"
                )
        return await self._network.connect_tcp(
            found[0], port, timeout, local_address, socket_options
        )

    async def _addresses(self, host: str, port: int) -> list[str]:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise RequestError(f"the host {host!r:.200} of an image is unknown: {error}") from None
        return [str(one[4][0]).partition("%")[0] for one in found]

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

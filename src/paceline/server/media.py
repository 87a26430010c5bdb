"""Fetches images of conversations by their URLs, where the settings allow it."""

import asyncio
import socket
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from ssl import SSLContext
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpcore

from paceline.core.errors import RequestError
from paceline.server.settings import ServerSettings

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


WEB = ("http://", "https://")
ANY = "*"
OK = 200
MOVED = (301, 302, 303, 307, 308)
MOST_REDIRECTS = 3
MOST_URLS = 64  # of one conversation
AT_ONCE = 8  # connections of a request
HEADERS = [("Accept", "image/*"), ("Accept-Encoding", "identity"), ("User-Agent", "paceline")]


def is_web(source: Any) -> bool:
    return isinstance(source, str) and source.lower().startswith(WEB)


@cache
def tls() -> SSLContext:
    """Made once: it reads all certificates that are trusted."""
    return httpcore.default_ssl_context()


class MediaFetcher:
    """Without domains in the settings, every URL is refused, except data URLs."""

    def __init__(self, settings: ServerSettings, network: PublicNetwork | None = None) -> None:
        self._domains = frozenset(one.lower() for one in settings.allowed_media_domains)
        self._bytes, self._seconds = settings.media_bytes, settings.media_s
        self._network = network or PublicNetwork()

    async def fetched(self, sources: Sequence[Any]) -> Sequence[Any]:
        """The sources of images, with bytes instead of URLs."""
        urls = list(dict.fromkeys(source for source in sources if is_web(source)))
        if not urls:
            return sources
        if len(urls) > MOST_URLS:
            raise RequestError(f"a conversation has {len(urls)} URLs; the most is {MOST_URLS}")
        for url in urls:
            self._check(url)
        async with httpcore.AsyncConnectionPool(
            ssl_context=tls(), max_connections=AT_ONCE, network_backend=self._network
        ) as pool:
            found = await asyncio.gather(*(self._fetch(pool, url) for url in urls))
        content = dict(zip(urls, found, strict=True))
        return [content[source] if is_web(source) else source for source in sources]

    def _check(self, url: str) -> None:
        """RequestError if a URL is malformed, or its domain is not allowed."""
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError as error:
            raise RequestError(f"the URL {url!r:.200} of an image is malformed: {error}") from None
        if parts.scheme not in ("http", "https") or not host or parts.username is not None:
            raise RequestError(
                f"the URL {url!r:.200} of an image must be http or https, with a host and without "
                "a user"
            )
        if ANY not in self._domains and host.lower() not in self._domains:
            raise RequestError(
                f"images are not fetched from {host!r:.200}; send a data URL, or start the server "
                "with --allowed-media-domains"
            )

    async def _fetch(self, pool: httpcore.AsyncConnectionPool, url: str) -> bytes:
        try:
            async with asyncio.timeout(self._seconds):
                return await self._followed(pool, url)
        except TimeoutError:
            raise RequestError(
                f"the image at {url!r:.200} did not arrive within {self._seconds:g} s"
            ) from None
        except (
            httpcore.NetworkError,
            httpcore.ProtocolError,
            httpcore.UnsupportedProtocol,
        ) as error:
            raise RequestError(f"the image at {url!r:.200} cannot be fetched: {error}") from None

    async def _followed(self, pool: httpcore.AsyncConnectionPool, url: str) -> bytes:
        """Each redirect is checked as the first URL is."""
        at = url
        for _ in range(1 + MOST_REDIRECTS):
            self._check(at)
            async with pool.stream("GET", at, headers=HEADERS) as response:
                if response.status == OK:
                    return await self._content(response, url)
                headers = {name.lower(): value for name, value in response.headers}
                target = headers.get(b"location", b"").decode("latin-1")
                if response.status not in MOVED or not target:
                    raise RequestError(
                        f"the image at {url!r:.200} cannot be fetched: status {response.status}"
                    )
                at = urljoin(at, target)
        raise RequestError(f"the image at {url!r:.200} is behind too many redirects")

    async def _content(self, response: httpcore.Response, url: str) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for part in response.aiter_stream():
            size += len(part)
            if size > self._bytes:
                raise RequestError(
                    f"the image at {url!r:.200} has more than {self._bytes} bytes (media_bytes)"
                )
            parts.append(part)
        return b"".join(parts)

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from ipaddress import ip_address

import pytest

from paceline.core.errors import RequestError
from paceline.server.media import MediaFetcher, PublicNetwork, is_public
from paceline.server.settings import ServerSettings

ALLOWED = ServerSettings(allowed_media_domains=("127.0.0.1",), media_bytes=1000, media_s=60.0)
HASTY = replace(ALLOWED, media_s=0.1)
PAGES = {
    "/a.png": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nimage",
    "/large": b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + b"x" * 2000,
    "/none": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    "/moved": b"HTTP/1.1 302 Found\r\nLocation: /a.png\r\nContent-Length: 0\r\n\r\n",
    "/around": b"HTTP/1.1 302 Found\r\nLocation: /around\r\nContent-Length: 0\r\n\r\n",
    "/away": b"HTTP/1.1 302 Found\r\nLocation: http://10.0.0.1/\r\nContent-Length: 0\r\n\r\n",
    "/file": b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n",
    "/broken": b"nothing that HTTP knows\r\n\r\n",
}


@asynccontextmanager
async def site() -> AsyncGenerator[str]:
    """A server with pages; it never answers for an unknown one."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        page = PAGES.get(head.split()[1].decode())
        if page is None:
            await reader.read()  # until the client leaves
        else:
            writer.write(page)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def play(
    scene: Callable[[str, MediaFetcher], Awaitable[None]], settings: ServerSettings = ALLOWED
) -> None:
    async def main() -> None:
        async with site() as url:
            await scene(url, MediaFetcher(settings, PublicNetwork(lambda _: True)))

    asyncio.run(main())


def test_images_are_fetched_and_data_urls_stay() -> None:
    async def scene(url: str, fetcher: MediaFetcher) -> None:
        asked = [f"{url}/a.png", "data:,x", f"{url}/moved", f"{url}/a.png"]
        assert await fetcher.fetched(asked) == [b"image", "data:,x", b"image", b"image"]
        plain = ["data:,x", b"image"]
        assert await fetcher.fetched(plain) is plain

    play(scene)


@pytest.mark.parametrize(
    ("page", "why"),
    [
        ("/large", "more than 1000 bytes"),
        ("/none", "status 404"),
        ("/around", "too many redirects"),
        ("/away", "not fetched from '10.0.0.1'"),
        ("/file", "must be http or https"),
        ("/broken", "cannot be fetched"),
        ("/silent", "within 0.1 s"),
    ],
)
def test_an_image_that_cannot_be_had_is_refused_with_the_reason(page: str, why: str) -> None:
    async def scene(url: str, fetcher: MediaFetcher) -> None:
        with pytest.raises(RequestError, match=why):
            await fetcher.fetched([url + page])

    play(scene, HASTY if page == "/silent" else ALLOWED)


@pytest.mark.parametrize(
    ("url", "settings", "why"),
    [
        ("http://127.0.0.1:9/a", ALLOWED, "127.0.0.1, which is not public"),
        ("http://localhost:9/a", ServerSettings(allowed_media_domains=("*",)), "not public"),
        ("http://[::1]:9/a", ServerSettings(allowed_media_domains=("*",)), "not public"),
        ("http://example.com/a", ALLOWED, "not fetched from 'example.com'"),
        ("https://example.com/a", ServerSettings(), "--allowed-media-domains"),
        ("http://user@127.0.0.1/a", ALLOWED, "without a user"),
        ("http://127.0.0.1:x/a", ALLOWED, "malformed"),
    ],
)
def test_urls_that_are_never_asked(url: str, settings: ServerSettings, why: str) -> None:
    with pytest.raises(RequestError, match=why):
        asyncio.run(MediaFetcher(settings).fetched([url]))


def test_public_addresses() -> None:
    public = ["8.8.8.8", "2001:4860:4860::8888", "::ffff:8.8.8.8", "64:ff9b::808:808"]
    private = [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0"),
        *("100.64.0.1", "224.0.0.1", "255.255.255.255", "::1", "fe80::1", "fc00::1", "ff02::1"),
        *("::ffff:127.0.0.1", "2002:7f00:1::", "64:ff9b::7f00:1", "2001:0:7f00:1::", "::"),
    ]
    assert all(is_public(ip_address(one)) for one in public)
    assert not any(is_public(ip_address(one)) for one in private)

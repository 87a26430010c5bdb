"""KV in a real server: one engine finds what another stored, and no server is a miss."""

import logging
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import numpy as np
import pytest
import redis

from paceline.core.errors import ConfigError
from paceline.core.request import Request
from paceline.core.settings.features import ConnectorConfig
from paceline.kv.connector import TransferEnd
from paceline.kv.connectors import valkey
from paceline.kv.connectors.valkey import Valkey
from paceline.kv.fence import TransferTicket
from paceline.kv.remote.block_files import USED_S
from tests.kv.block_array import REQUEST, BlockArray, keys_of, stopped, transfer
from tests.kv.resp_servers import resp_server, socket_folder

KEYS = keys_of(1, 2, 3)


class Attached:
    """A connector with an array of blocks, and its news."""

    def __init__(self, url: str, seed: int = 0, **extra: Any) -> None:
        config = ConnectorConfig("valkey", kv_connector_extra_config={"url": url, **extra})
        self.store, self.connector, self.news = BlockArray(seed=seed), Valkey(config), Event()
        self.connector.attach(self.store, self.news.set)

    def offered(self, keys: tuple[bytes, ...], have: int = 0, request: Request = REQUEST) -> int:
        while (answer := self.connector.offer(request, keys, have)) is None:
            self.heard()
        return answer

    def ended(self) -> TransferEnd:
        while not (ends := self.connector.poll()):
            self.heard()
        (end,) = ends
        return end

    def heard(self) -> None:
        assert self.news.wait(30), "there is no news"
        self.news.clear()

    def kept(self, keys: tuple[bytes, ...], blocks: list[int]) -> None:
        """Store, and wait until the server has it."""
        self.connector.store(transfer(9, keys, blocks))
        self.ended()
        while self.connector.keep(keys) < len(keys):
            self.heard()
            self.connector.poll()


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_folder() as found:
        yield found


@pytest.fixture
def url(folder: Path) -> Iterator[str]:
    with resp_server(folder) as found:
        yield found


def test_another_engine_finds_what_one_stored(url: str) -> None:
    one, other = Attached(url), Attached(url, seed=1)
    assert other.offered(KEYS) == other.offered(KEYS, have=3) == 0
    one.kept(KEYS, [4, 0, 7])
    new = Request(id="b", prompt=[1, 2, 3])
    assert other.offered((*KEYS, *keys_of(4)), request=new) == 3
    assert other.offered((*KEYS, *keys_of(4)), have=2, request=new) == 1
    other.connector.fetch(transfer(5, KEYS[1:], [3, 2]))
    assert other.ended() == TransferEnd(TransferTicket(5))
    assert np.array_equal(other.store.content[[3, 2]], one.store.content[[0, 7]])
    for each in (one, other):
        each.connector.close()


def test_an_answer_holds_after_a_long_step(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = Attached(url), Attached(url)
    one.kept(KEYS, [4, 0, 7])
    assert other.connector.offer(REQUEST, KEYS, 0) is None
    other.heard()
    monkeypatch.setattr(valkey, "monotonic", lambda: monotonic() + 10)
    assert other.connector.poll() == []  # as a step begins
    assert other.connector.offer(REQUEST, KEYS, 0) == 3
    for each in (one, other):
        each.connector.close()


def test_an_answer_is_used_although_others_store(url: str) -> None:
    one, other = Attached(url), Attached(url)
    one.kept(KEYS, [4, 0, 7])
    assert other.connector.offer(REQUEST, KEYS, 0) is None
    other.heard()
    other.kept(keys_of(8), [1])
    assert other.connector.offer(REQUEST, KEYS, 0) == 3
    other.kept(keys_of(9), [1])
    assert other.connector.offer(REQUEST, KEYS, 0) is None  # the server may have more now
    for each in (one, other):
        each.connector.close()


def name_of(key: bytes) -> bytes:
    return b"paceline:tiny-array:" + key


def test_a_load_ends_before_what_is_gone(url: str) -> None:
    one = Attached(url)
    one.kept(KEYS, [1, 2, 3])
    with redis.Redis.from_url(url) as client:
        client.delete(name_of(KEYS[1]))
    before = one.store.content[6:].copy()
    one.connector.fetch(transfer(1, KEYS, [5, 6, 7]))
    assert one.ended() == TransferEnd(TransferTicket(1), 1, "the server no longer has it")
    assert np.array_equal(one.store.content[5], one.store.content[1])
    assert np.array_equal(one.store.content[6:], before)
    assert one.connector.keep(KEYS) == 1
    one.connector.forget([KEYS[0]])
    one.connector.clear()
    one.connector.close()


@pytest.mark.parametrize(
    "wrong", ["another key's", "random", "changed", "without a head", "short", "a list"]
)
def test_wrong_content_is_not_loaded_and_is_stored_again(url: str, wrong: str) -> None:
    one, other = Attached(url), Attached(url, seed=1)
    one.kept(KEYS, [1, 2, 3])
    name = name_of(KEYS[1])
    with redis.Redis.from_url(url) as client:
        content = client.get(name)
        assert isinstance(content, bytes)
        if wrong == "a list":
            client.delete(name)
            client.rpush(name, b"1")
        else:
            client.set(
                name,
                {
                    "another key's": client.get(name_of(KEYS[2])),
                    "random": np.random.default_rng(5).bytes(len(content)),
                    "changed": content[:-1] + bytes([content[-1] ^ 1]),
                    "without a head": one.store.content[2].tobytes(),
                    "short": b"short",
                }[wrong],
            )
    before = other.store.content.copy()
    other.connector.fetch(transfer(1, KEYS, [5, 6, 7]))
    assert other.ended().bad == 1
    assert np.array_equal(other.store.content[5], one.store.content[1])
    assert np.array_equal(other.store.content[6:], before[6:])
    other.kept(KEYS, [1, 2, 3])
    one.connector.fetch(transfer(2, KEYS, [5, 6, 7]))
    assert one.ended().bad is None
    assert np.array_equal(one.store.content[6:8], other.store.content[2:4])
    for each in (one, other):
        each.connector.close()


@pytest.mark.parametrize("noticed", ["by a lookup", "by a load", "while in use"])
def test_what_the_server_lost_is_stored_again(
    url: str, noticed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, client = Attached(url), redis.Redis.from_url(url)
    one.kept(KEYS, [1, 2, 3])
    client.flushall()
    assert one.connector.keep(KEYS) == 3  # not asked yet
    if noticed == "by a lookup":
        assert one.offered(KEYS) == 0
    elif noticed == "by a load":
        one.connector.fetch(transfer(1, KEYS, [5, 6, 7]))
        assert one.ended().bad == 0
    else:
        monkeypatch.setattr(valkey, "monotonic", lambda: monotonic() + USED_S)
        while one.connector.keep(KEYS):
            one.heard()
    assert one.connector.keep(KEYS) == 0
    one.kept(KEYS, [1, 2, 3])
    assert client.dbsize() == 3
    one.connector.close()
    client.close()


def test_what_the_server_has_is_not_stored_again_but_counts_as_used(url: str) -> None:
    one, other, client = Attached(url), Attached(url), redis.Redis.from_url(url)
    client.config_set("maxmemory-policy", "allkeys-lfu")  # counts uses
    one.kept(KEYS, [1, 2, 3])
    assert other.offered(KEYS) == 3
    assert other.connector.keep(KEYS) == 3
    counts = [client.object("freq", name_of(key)) for key in KEYS]
    assert min(counts) > 5, "a new value has 5"
    for each in (one, other):
        each.connector.close()
    client.close()


def test_all_content_is_removed(url: str) -> None:
    one, client = Attached(url), redis.Redis.from_url(url)
    client.set(b"other", b"1")
    one.kept(KEYS, [1, 2, 3])
    one.connector.clear()
    assert one.connector.keep(KEYS) == 0
    one.kept(keys_of(8), [1])  # after what was to be removed
    assert sorted(client.keys()) == [b"other", name_of(*keys_of(8))]
    one.connector.close()
    client.close()


def test_no_server_is_a_miss_until_it_is_back(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = Attached(f"unix://{folder}/valkey.sock", retry_s=0.05, timeout_s=30.0)
    with caplog.at_level(logging.INFO, "paceline"):
        assert one.offered(KEYS) == 0
        one.connector.fetch(transfer(1, KEYS, [5, 6, 7]))
        assert one.ended().bad == 0
        one.connector.store(transfer(2, KEYS, [5, 6, 7]))
        assert one.ended() == TransferEnd(TransferTicket(2))
        with resp_server(folder):
            name, found = 0, 0
            while not found:
                name += 1
                one.connector.store(transfer(name + 2, KEYS, [5, 6, 7]))
                one.ended()
                found = one.offered(KEYS, request=Request(id=str(name), prompt=[1]))
            one.connector.close()  # before the server goes again
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_what_the_server_cannot_take_in_time_is_dropped(url: str) -> None:
    one = Attached(url, pending_mib=0)
    one.connector.store(transfer(1, KEYS, [1, 2, 3]))
    assert one.ended() == TransferEnd(TransferTicket(1))
    assert one.connector.keep(KEYS) == 0
    one.connector.close()


def test_a_full_server_is_still_read(url: str, caplog: pytest.LogCaptureFixture) -> None:
    one, client = Attached(url, retry_s=0.01), redis.Redis.from_url(url)
    one.kept(KEYS, [1, 2, 3])
    client.config_set("maxmemory", 1)
    for ticket in (1, 2):
        one.connector.store(transfer(ticket, keys_of(8), [4]))
        assert one.ended() == TransferEnd(TransferTicket(ticket))
        assert one.offered(KEYS, request=Request(id=f"f{ticket}", prompt=[1])) == 3
    one.connector.fetch(transfer(3, KEYS, [5, 6, 7]))
    assert one.ended() == TransferEnd(TransferTicket(3))
    client.config_set("maxmemory", 0)
    give_up = monotonic() + 30
    while not one.connector.keep(keys_of(8)):
        assert monotonic() < give_up, "nothing is stored again"
        one.connector.store(transfer(4, keys_of(8), [4]))
        one.ended()
    one.connector.close()
    client.close()
    (record,) = caplog.records
    assert "KV is loaded, but not stored" in record.message


def test_what_was_cleared_is_not_loaded_although_the_server_has_it(url: str) -> None:
    one = Attached(url)
    one.kept(KEYS, [1, 2, 3])
    with stopped(one.connector._writer):
        one.connector.clear()
        assert one.offered(KEYS) == 0
        one.connector.fetch(transfer(1, KEYS, [5, 6, 7]))
        assert one.ended() == TransferEnd(TransferTicket(1), 0, "the content was cleared")
    one.kept(keys_of(8), [1])
    assert one.offered(keys_of(8)) == 1
    one.connector.close()


def test_a_server_that_was_down_when_it_was_cleared_has_nothing(folder: Path) -> None:
    with resp_server(folder) as url:
        one = Attached(url, retry_s=0.001)
        one.kept(KEYS, [1, 2, 3])
        client = redis.Redis.from_url(url)
        client.config_set("maxclients", 1)  # as if it were down
        one.connector._stores_to._client.connection_pool.disconnect()
        one.connector.clear()
        while not one.connector._must_clear:
            one.heard()
            one.connector.poll()
        client.config_set("maxclients", 100)
        while one.connector._must_clear or one.connector._is_clearing:
            assert one.offered(KEYS) == 0
        assert not client.keys()
        one.connector.close()
        client.close()


def test_a_time_limit_of_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="timeout_s is 0; it must be positive"):
        Attached("unix:///nowhere", timeout_s=0)


def test_a_wrong_url_is_named() -> None:
    with pytest.raises(ConfigError, match="url is 'ftp://a'"):
        Attached("ftp://a")


def test_an_answer_is_about_the_keys_that_were_asked_for(url: str) -> None:
    """With windows, a request may ask about other blocks behind the same first one."""
    one = Attached(url)
    one.kept(KEYS, [4, 0, 7])
    assert one.offered(KEYS) == 3
    assert one.offered((KEYS[0], KEYS[2])) == 2
    absent = keys_of(8)
    assert one.offered((KEYS[0], *absent)) == 1

"""KV that one engine reads from another, both in this process."""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from socket import socket
from time import sleep
from typing import Any

import numpy as np
import pytest
import zmq

from paceline.core.errors import ConfigError, RequestError
from paceline.core.request import Finish, Request
from paceline.core.settings.features import ConnectorConfig
from paceline.kv.connector import TransferEnd
from paceline.kv.connectors.nixl import Nixl
from paceline.kv.fence import TransferTicket
from paceline.kv.remote.agent import BlockRead, BlockReader
from paceline.kv.remote.reads import RemoteReads
from tests.kv.block_array import BlockArray, keys_of, transfer
from tests.kv.nixl_engine import KEYS, PROMPT, NixlEngine

pytest.importorskip("nixl_cu12")


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[NixlEngine, NixlEngine]]:
    prefill, decode = NixlEngine(0), NixlEngine(1, answer_s=60.0, max_peer_blocks=64)
    yield prefill, decode
    prefill.connector.close()
    decode.connector.close()


def test_blocks_are_read_and_then_freed(engines: tuple[NixlEngine, NixlEngine]) -> None:
    prefill, decode = engines
    params = prefill.prefilled()
    assert params["do_remote_prefill"]
    assert params["remote_block_ids"] == [4, 0, 7]
    assert params["remote_num_tokens"] == len(PROMPT)
    assert prefill.connector.poll() == []
    decode.fetch(5, params, KEYS)
    assert decode.ended() == TransferEnd(TransferTicket(5))
    assert np.array_equal(decode.store.content[[1, 2, 3]], prefill.store.content[[4, 0, 7]])
    assert prefill.ended() == TransferEnd(TransferTicket(1))


def test_only_what_is_missing_is_read(engines: tuple[NixlEngine, NixlEngine]) -> None:
    prefill, decode = engines
    decode.fetch(6, prefill.prefilled(2), KEYS[2:], first=2)
    assert decode.ended() == TransferEnd(TransferTicket(6))
    assert np.array_equal(decode.store.content[1], prefill.store.content[7])
    assert prefill.ended().ticket == TransferTicket(2)


def test_blocks_that_are_here_already_are_given_back(
    engines: tuple[NixlEngine, NixlEngine],
) -> None:
    prefill, decode = engines
    request = Request(id="d", prompt=PROMPT, kv_transfer_params=prefill.prefilled(3))
    assert decode.connector.offer(request, KEYS, 3) == 0
    assert decode.connector.offer(request, KEYS, 3) == 0
    assert prefill.ended().ticket == TransferTicket(3)


def test_another_prompt_is_not_read(engines: tuple[NixlEngine, NixlEngine]) -> None:
    prefill, decode = engines
    params = prefill.prefilled(4)
    before = decode.store.content.copy()
    decode.fetch(7, params, keys_of(1, 2, 9))
    end = decode.ended()
    assert (end.bad, "another prompt" in end.reason) == (0, True)
    assert np.array_equal(decode.store.content, before)
    decode.fetch(8, params, KEYS)  # the right one still can
    assert decode.ended() == TransferEnd(TransferTicket(8))
    assert prefill.ended().ticket == TransferTicket(4)
    decode.fetch(9, params, KEYS)
    assert "no longer kept" in decode.ended().reason


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"remote_engine_id": "someone"}, "engine someone is gone"),
        ({"remote_engine_id": "no one", "remote_port": 1}, "127.0.0.1:1: the connection was lost"),
    ],
)
def test_an_engine_that_is_gone_is_a_miss(
    engines: tuple[NixlEngine, NixlEngine], changed: dict[str, Any], reason: str
) -> None:
    prefill, decode = engines
    params = prefill.prefilled(10)
    decode.fetch(10, params | changed, KEYS)
    end = decode.ended()
    assert end.bad == 0
    assert reason in end.reason
    decode.fetch(11, params, KEYS)
    assert decode.ended().bad is None
    assert prefill.ended().ticket == TransferTicket(10)


def test_an_engine_that_does_not_answer_is_a_miss(engines: tuple[NixlEngine, NixlEngine]) -> None:
    decode = NixlEngine(2, answer_s=0.05)
    with socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        params = engines[0].prefilled(30)
        decode.fetch(1, params | {"remote_port": silent.getsockname()[1]}, KEYS)
        assert decode.ended() == TransferEnd(TransferTicket(1), 0, "127.0.0.1 does not answer")
    decode.connector.close()


@pytest.mark.parametrize(
    "wrong", [{"address": -1}, {"blocks": 10**13}, {"blocks": 65}, {"device": "tape"}]
)
def test_an_engine_that_answers_nonsense_is_a_miss(
    engines: tuple[NixlEngine, NixlEngine], wrong: dict[str, Any]
) -> None:
    prefill, decode = engines
    params = prefill.prefilled(33)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as other:
        port = other.bind_to_random_port("tcp://127.0.0.1")
        decode.fetch(14, params | {"remote_engine_id": "odd", "remote_port": port}, KEYS)
        sender, question, _ = other.recv_multipart()
        memory = {"address": 4096, "blocks": 64, "block_bytes": 64} | wrong
        described = {"engine_id": "odd", "layout": "tiny-array", "memory": memory}
        answer = json.dumps(described | {"number": json.loads(question)["number"]})
        other.send_multipart([sender, answer.encode(), b""])
        end = decode.ended()
        assert end.bad == 0
        assert ("max_peer_blocks is 64" in end.reason) == ("blocks" in wrong)
    decode.fetch(15, params, KEYS)
    assert decode.ended().bad is None
    assert prefill.ended().ticket == TransferTicket(33)


def test_an_address_that_was_wrong_does_not_stay(engines: tuple[NixlEngine, NixlEngine]) -> None:
    prefill, decode = engines[0], NixlEngine(2, answer_s=0.5)
    with socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        params = prefill.prefilled(31)
        decode.fetch(1, params | {"remote_port": silent.getsockname()[1]}, KEYS)
        assert decode.ended().bad == 0
    decode.fetch(2, params, KEYS)
    assert decode.ended() == TransferEnd(TransferTicket(2))
    assert prefill.ended().ticket == TransferTicket(31)
    decode.connector.close()


@pytest.mark.parametrize("host", ["!", "a b", "x" * 5000])
def test_a_host_that_is_no_address_is_a_miss(
    engines: tuple[NixlEngine, NixlEngine], host: str
) -> None:
    prefill, decode = engines
    params = prefill.prefilled(32)
    wrong = params | {"remote_engine_id": "nowhere", "remote_host": host}
    request = Request(id="d", prompt=PROMPT, kv_transfer_params=wrong)
    assert decode.connector.offer(request, KEYS, 3) == 0  # nothing to give back either
    decode.fetch(12, wrong, KEYS)
    assert decode.ended().bad == 0
    decode.fetch(13, params, KEYS)
    assert decode.ended().bad is None
    assert prefill.ended().ticket == TransferTicket(32)


def test_blocks_of_another_model_are_not_read() -> None:
    prefill, decode = NixlEngine(0), NixlEngine(1, layout="other-model")
    params = prefill.prefilled()
    decode.fetch(1, params, KEYS)
    assert "its blocks are tiny-array, those here are other-model" in decode.ended().reason
    for each in (prefill, decode):
        each.connector.close()


def test_blocks_are_freed_when_their_lease_ends(caplog: pytest.LogCaptureFixture) -> None:
    prefill = NixlEngine(0, lease_s=0.01)
    prefill.prefilled()
    assert prefill.ended() == TransferEnd(TransferTicket(1))
    assert "no engine read the KV of request 'p-1' in time" in caplog.text
    prefill.connector.close()


def test_a_role_refuses_the_part_of_the_other() -> None:
    for role, asked, message in [
        ("kv_consumer", {"do_remote_decode": True}, "the role of this one is decode"),
        (
            "kv_producer",
            {
                "do_remote_prefill": True,
                "remote_engine_id": "p",
                "remote_request_id": "r",
                "remote_host": "h",
                "remote_port": 1,
            },
            "the role of this one is prefill",
        ),
    ]:
        connector = Nixl(ConnectorConfig("nixl", role))  # pyright: ignore[reportArgumentType]
        with pytest.raises(RequestError, match=message):
            connector.check(Request(id="a", prompt=[1], kv_transfer_params=asked))
        connector.check(Request(id="a", prompt=[1]))
    with pytest.raises(RequestError, match="needs one sequence"):
        Nixl(ConnectorConfig("nixl")).check(
            Request(id="a", prompt=[1], n=2, kv_transfer_params={"do_remote_decode": True})
        )


def test_only_allowed_peers_are_read() -> None:
    named = {"remote_engine_id": "p", "remote_request_id": "r", "remote_port": 1}
    config = ConnectorConfig("nixl", kv_connector_extra_config={"allowed_peers": ["10.0.0.0/8"]})
    for host, message in [
        ("10.0.0.1", ""),
        ("11.0.0.1", "remote_host is '11.0.0.1', which is not"),
    ]:
        params = {"do_remote_prefill": True, "remote_host": host, **named}
        asked = Request(id="a", prompt=[1], kv_transfer_params=params)
        with pytest.raises(RequestError, match=message) if message else nullcontext():
            Nixl(config).check(asked)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"lease_s": 0}, "lease_s is 0; it must be positive"),
        ({"max_leased_share": 1.5}, "max_leased_share is 1.5; it must not be more than 1"),
        ({"allowed_peers": ["a:1"]}, "allowed_peers has 'a:1'"),
    ],
)
def test_a_wrong_option_is_named(option: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Nixl(ConnectorConfig("nixl", kv_connector_extra_config=option))


def test_no_more_than_a_share_of_the_blocks_is_kept() -> None:
    prefill = NixlEngine(0, max_leased_share=0.2)  # three of 16 blocks
    prefill.prefilled(1)
    prefill.prefilled(2)  # the same blocks
    asked = Request(id="p", prompt=PROMPT, kv_transfer_params={"do_remote_decode": True})
    one = transfer(3, keys_of(9), [9], asked)
    assert prefill.connector.finished(one, Finish.LENGTH) is None
    prefill.connector.close()


def test_the_exchange_goes_on_after_a_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever fails, what it had in hand ends."""

    def fails(*_: object) -> None:
        raise RuntimeError("a fault")

    prefill, decode = NixlEngine(0), NixlEngine(1)
    for place, method in [(BlockReader, "connect"), (RemoteReads, "_claim"), (BlockRead, "state")]:
        with monkeypatch.context() as patched:
            patched.setattr(place, method, fails)
            decode.fetch(1, prefill.prefilled(1), KEYS)
            while "a fault" not in caplog.text:
                sleep(0.001)
        end = decode.ended()  # a read can be stopped when its state is known
        assert (end.bad, "see the log" in end.reason) == (0, True)
        caplog.clear()
        decode.fetch(2, prefill.prefilled(2), KEYS)
        assert decode.ended().bad is None
    for each in (prefill, decode):
        each.connector.close()


@pytest.mark.parametrize("host", ["", "*", "0.0.0.0"])
def test_the_side_channel_needs_an_address(host: str) -> None:
    extra = {"side_channel_host": host}
    with pytest.raises(ConfigError, match=r"side_channel_host is .* an address of this machine"):
        Nixl(ConnectorConfig("nixl", kv_connector_extra_config=extra))


def test_a_port_in_use_is_named(engines: tuple[NixlEngine, NixlEngine]) -> None:
    port = engines[0].prefilled(20)["remote_port"]
    with pytest.raises(ConfigError, match=f"the side channel cannot use 127.0.0.1:{port}"):
        NixlEngine(2, side_channel_port=port)


def test_what_is_read_too_late_does_not_count() -> None:
    prefill, decode = NixlEngine(0, read_s=1e-9), NixlEngine(1)
    decode.fetch(1, prefill.prefilled(), KEYS)
    assert decode.ended() == TransferEnd(TransferTicket(1), 0, "the read took too long")
    for each in (prefill, decode):
        each.connector.close()


def test_requests_without_a_transfer_have_nothing_to_do_with_it(
    engines: tuple[NixlEngine, NixlEngine],
) -> None:
    connector, plain = engines[1].connector, Request(id="a", prompt=PROMPT)
    assert connector.offer(plain, KEYS, 0) == 0
    assert connector.keep(KEYS) == len(KEYS)
    one = transfer(40, KEYS, [1, 2, 3], plain)
    assert connector.finished(one, Finish.STOP) is None
    connector.store(one)
    assert engines[1].ended() == TransferEnd(TransferTicket(40))


def test_blocks_must_have_a_place_in_memory() -> None:
    class Scattered(BlockArray):
        memory = None

    with pytest.raises(ConfigError, match="one after another"):
        Nixl(ConnectorConfig("nixl")).attach(Scattered(), lambda: None)

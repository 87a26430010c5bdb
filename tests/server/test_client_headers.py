"""Ids of requests whose clients sent none, and engines that clients choose."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from paceline.core.errors import RequestError
from paceline.server.client_headers import IDS_AT_ONCE, ClientHeaders


def test_servers_on_several_threads_draw_different_ids() -> None:
    def draw(_: int) -> list[str]:
        return [ClientHeaders.of({}, "cmpl").request_id for _ in range(40 * IDS_AT_ONCE)]

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            drawn = [id for ids in threads.map(draw, range(4)) for id in ids]
    finally:
        sys.setswitchinterval(before)
    assert len({*drawn}) == len(drawn) == 160 * IDS_AT_ONCE
    assert {len(id) for id in drawn} == {len("cmpl-") + 32}


def ranked(value: str) -> ClientHeaders:
    return ClientHeaders.of({"x-data-parallel-rank": value}, "cmpl")


def test_the_rank_of_an_engine_is_a_number() -> None:
    assert ranked("3").chosen_rank == 3
    assert ClientHeaders.of({}, "cmpl").chosen_rank is None
    for wrong in ("-1", "one", "1.0", "0x1", "²", "1" * 10):
        with pytest.raises(RequestError, match="X-data-parallel-rank is"):
            _ = ranked(wrong).chosen_rank


def test_a_session_is_named_by_the_header_or_else_by_the_body() -> None:
    named = [
        ClientHeaders.of({"x-session-id": "h" * 300}, "cmpl", None, "b", "k"),
        ClientHeaders.of({}, "cmpl", None, "b", "k"),
        ClientHeaders.of({}, "cmpl", None, None, "k"),
        ClientHeaders.of({}, "cmpl"),
    ]
    assert [one.session_id for one in named] == ["h" * 256, "b", "k", ""]
    assert named[3].in_session("s").session_id == "s"

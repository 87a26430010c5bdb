"""Ids of requests whose clients sent none."""

import sys
from concurrent.futures import ThreadPoolExecutor

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

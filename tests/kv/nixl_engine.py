"""An engine that hands its KV to others, without a model; as a program, in a process of its own."""

import json
import os
import sys
from threading import Event
from typing import Any

from paceline.core.request import Finish, Request
from paceline.core.settings.features import ConnectorConfig
from paceline.kv.connector import Transfer, TransferEnd
from paceline.kv.connectors.nixl import Nixl
from paceline.kv.fence import TransferTicket
from tests.kv.block_array import BlockArray, keys_of, transfer

os.environ.setdefault("UCX_NET_DEVICES", "lo")  # before the library is loaded
KEYS = keys_of(1, 2, 3)
PROMPT = list(range(12))


class NixlEngine:
    """A connector with an array of blocks, and its news."""

    def __init__(
        self, seed: int, layout: str = "tiny-array", block_bytes: int = 64, **extra: Any
    ) -> None:
        config = ConnectorConfig("nixl", kv_connector_extra_config=extra)
        self.store, self.connector, self.news = (
            BlockArray(16, block_bytes, seed),
            Nixl(config),
            Event(),
        )
        self.store.layout = layout
        self.connector.attach(self.store, self.news.set)

    def ended(self) -> TransferEnd:
        while not (ends := self.connector.poll()):
            assert self.news.wait(30), "there is no news"
            self.news.clear()
        (end,) = ends
        return end

    def prefilled(self, ticket: int = 1, name: str = "p") -> dict[str, Any]:
        """A finished prompt in blocks 4, 0 and 7; returns what the client gets."""
        asked = Request(id=name, prompt=PROMPT, kv_transfer_params={"do_remote_decode": True})
        kept = self.connector.finished(transfer(ticket, KEYS, [4, 0, 7], asked), Finish.LENGTH)
        assert kept is not None
        return dict(kept)

    def fetch(self, ticket: int, params: dict[str, Any], keys: Any, first: int = 0) -> None:
        """Into blocks 1, 2, …"""
        request = Request(id=f"d{ticket}", prompt=PROMPT, kv_transfer_params=params)
        offered = self.connector.offer(request, KEYS, first)
        assert offered == len(KEYS) - first
        blocks = tuple(range(1, 1 + len(keys)))
        self.connector.fetch(Transfer(TransferTicket(ticket), request, first, keys, blocks))


if __name__ == "__main__":
    engine = NixlEngine(0, **json.loads(sys.argv[1]))
    for line in sys.stdin:
        print(json.dumps(engine.prefilled(int(line))), flush=True)
